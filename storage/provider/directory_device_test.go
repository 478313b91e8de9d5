//go:build linux

package provider

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

func (t *ownedTest) directory() StorageDirectory {
	return StorageDirectory{Provider: t.kind, Path: t.dir}
}

// moveDir moves the directory as to another disk: it copies everything and removes the
// original.
func (t *ownedTest) moveDir() {
	t.Helper()
	to := t.dir + "-moved"
	sourcetest.Run(t.T, "cp", "-a", t.dir, to)
	if err := os.RemoveAll(t.dir); err != nil {
		t.Fatal(err)
	}
	t.open(to)
}

// The storage directory moves to another disk while its storage is detached.
// Fault F25.
func TestMovedDirectory(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		tags := ownerTags(uuid.NewString(), uuid.NewString())
		id := t.mustCreate(tags)
		t.write(t.mustAttach(id), "moved")
		if err := t.detach(id); err != nil {
			t.Fatal(err)
		}
		t.moveDir()
		if t.kind == LoopProviderType || t.kind == RootfsProviderType {
			_, err := t.attach(id)
			sourcetest.CheckError(t.T, err, true, "was replaced")
		}
		for range 2 {
			if err := t.directory().Reidentify(t.ctx, Moved); err != nil {
				t.Fatal(err)
			}
		}
		if got := t.mustCreate(tags); got != id {
			t.Errorf("created again as %q, want %q", got, id)
		}
		at := t.mustAttach(id)
		if t.kind != TmpfsProviderType {
			t.check(at, "moved")
		}
		// Reidentify is harmless while the storage is in use.
		if err := t.directory().Reidentify(t.ctx, Moved); err != nil {
			t.Error(err)
		}
		if got := t.mustAttach(id); got != at {
			t.Errorf("attached at %s, want %s as before", got, at)
		}
		t.mustRemove(id)
	})
}

// A loop device or mount of the original directory still exists after the directory was
// copied.
func TestMovedDirectoryStillAttached(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		id := t.mustCreate(ownerTags(uuid.NewString(), uuid.NewString()))
		at := t.mustAttach(id)
		from := t.dir
		to := from + "-moved"
		sourcetest.Run(t.T, "cp", "-a", from, to)
		t.open(to)
		var before map[string]json.RawMessage
		if err := t.store().Load(id, &before); err != nil {
			t.Fatal(err)
		}
		err := t.directory().Reidentify(t.ctx, Moved)
		word := "still mounted at " + at
		if t.kind == LoopProviderType {
			word = filepath.Base(at) + " still shows the file"
		}
		if err == nil || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), id) {
			t.Errorf("got %v", err)
		}
		var after map[string]json.RawMessage
		if err := t.store().Load(id, &after); err != nil || string(after["ino"]) != string(before["ino"]) || string(after["phase"]) != string(before["phase"]) {
			t.Errorf("the record is %s, %v, want %s as before", after, err, before)
		}
		t.open(from)
		t.mustRemove(id)
		t.open(to)
		if t.kind == managedType {
			return // its device is blank
		}
		if err := t.directory().Reidentify(t.ctx, Moved); err != nil {
			t.Error(err)
		}
		t.mustAttach(id)
		t.mustRemove(id)
	})
}

// The file of one volume was truncated by the copy, and that of another is missing. The
// third volume is identified again.
func TestPartiallyMovedDirectory(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		if t.kind != LoopProviderType {
			t.Skip("only loop volumes have a file of known size")
		}
		whole, cut, missing := t.mustCreate(ownerTags("", uuid.NewString())), t.mustCreate(ownerTags("", uuid.NewString())), t.mustCreate(ownerTags("", uuid.NewString()))
		t.moveDir()
		if err := os.Truncate(LoopVolumePath(t.dir, cut), 1<<20); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(LoopVolumePath(t.dir, missing)); err != nil {
			t.Fatal(err)
		}
		err := t.directory().Reidentify(t.ctx, Moved)
		for _, word := range []string{cut, "1048576 bytes instead of 4194304", missing, "not found"} {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%v does not say %q", err, word)
			}
		}
		if strings.Contains(err.Error(), whole) {
			t.Errorf("got %v", err)
		}
		t.mustAttach(whole)
		t.mustRemove(whole)
	})
}

// trash lists what is in the trash.
func (t *ownedTest) trash() []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(t.dir, ".trash", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	return found
}

func TestTrash(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		tags := ownerTags(uuid.NewString(), uuid.NewString())
		owner := storage.OwnerOf(tags)
		id := t.mustCreate(tags)
		at := t.mustAttach(id)
		t.write(at, "data")
		deleted := time.Unix(1700000000, 0)

		if err := t.directory().Trash(t.ctx, id, owner, deleted); err == nil || !strings.Contains(err.Error(), at) && !strings.Contains(err.Error(), filepath.Base(at)) {
			t.Errorf("while it is attached: %v", err)
		}
		t.check(at, "data")
		if err := t.detach(id); err != nil {
			t.Fatal(err)
		}
		if err := t.directory().Trash(t.ctx, id, storage.Owner{}, deleted); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), owner.EntityUUID) {
			t.Errorf("with an empty owner: %v", err)
		}
		if err := t.directory().Trash(t.ctx, id, owner, deleted); err != nil {
			t.Fatal(err)
		}
		if err := t.directory().Trash(t.ctx, id, owner, deleted); !errors.Is(err, errors.NotFound) {
			t.Errorf("again: %v", err)
		}
		if all := t.owners(); len(all) != 0 {
			t.Errorf("owners listed: %+v", all)
		}
		want := []string{id + "-1700000000.json"}
		if t.kind == LoopProviderType || t.kind == RootfsProviderType {
			want = []string{id + "-1700000000", id + "-1700000000.json"}
		}
		if got := t.trash(); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("the trash has %q, want %q", got, want)
		}
		if t.kind == RootfsProviderType {
			t.check(filepath.Join(t.dir, ".trash", want[0]), "data")
		}
		if err := t.directory().PurgeTrash(t.ctx, deleted); err != nil {
			t.Error(err)
		}
		if got := t.trash(); len(got) != len(want) {
			t.Errorf("purged too early: the trash has %q", got)
		}
		if err := t.directory().PurgeTrash(t.ctx, deleted.Add(time.Second)); err != nil {
			t.Error(err)
		}
		if got := t.trash(); len(got) != 0 {
			t.Errorf("left in the trash: %q", got)
		}

		if t.kind == managedType {
			sourcetest.Run(t.T, "blkdiscard", "--zeroout", "--force", "/dev/"+t.devices.device.DeviceName)
		}
		id = t.mustCreate(tags)
		if err := t.directory().Delete(t.ctx, id, owner); err != nil {
			t.Error(err)
		}
		if got := t.trash(); len(got) != 0 || len(t.owners()) != 0 {
			t.Errorf("left: %q, %+v", got, t.owners())
		}

		// A second Delete removes what an interrupted one left.
		if t.kind == managedType {
			sourcetest.Run(t.T, "blkdiscard", "--zeroout", "--force", "/dev/"+t.devices.device.DeviceName)
		}
		id = t.mustCreate(tags)
		if err := t.directory().Trash(t.ctx, id, owner, deletedAtOnce()); err != nil {
			t.Fatal(err)
		}
		if err := t.directory().Delete(t.ctx, id, owner); !errors.Is(err, errors.NotFound) {
			t.Errorf("deleting again: %v", err)
		}
		if got := t.trash(); len(got) != 0 {
			t.Errorf("left in the trash: %q", got)
		}
	})
}

// The object is in use by a copy of its mount, or a loop device, that the agent did not
// make.
func TestDeleteRefusesObjectInUse(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		tags := ownerTags(uuid.NewString(), uuid.NewString())
		id := t.mustCreate(tags)
		elsewhere := filepath.Join(t.top, "elsewhere")
		if err := os.Mkdir(elsewhere, 0o700); err != nil {
			t.Fatal(err)
		}
		if t.volumes != nil {
			devicetest.AttachLoop(t, LoopVolumePath(t.dir, id))
		} else {
			at := t.mustAttach(id)
			sourcetest.Run(t.T, "mount", "--bind", at, elsewhere)
			defer func() {
				if err := unix.Unmount(elsewhere, 0); err != nil {
					t.Error(err)
				}
			}()
			if err := unix.Unmount(at, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := t.directory().Delete(t.ctx, id, storage.OwnerOf(tags)); err == nil {
			t.Error("deleted")
		}
		if all := t.owners(); len(all) != 1 || all[0].ID != id {
			t.Errorf("owners listed: %+v", all)
		}
	})
}

func TestMissingStorageDirectory(t *testing.T) {
	none := StorageDirectory{Provider: LoopProviderType, Path: filepath.Join(t.TempDir(), "none")}
	if err := none.Reidentify(t.Context(), Moved); err != nil {
		t.Error(err)
	}
	if err := none.PurgeTrash(t.Context(), time.Unix(0, 0)); err != nil {
		t.Error(err)
	}
	if err := none.Trash(t.Context(), "volume-0-1", storage.Owner{}, time.Unix(0, 0)); !errors.Is(err, errors.NotFound) {
		t.Error(err)
	}
	if _, err := os.Stat(none.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was made: %v", err)
	}
	if err := (StorageDirectory{Provider: "tape", Path: "/srv"}).Reidentify(t.Context(), Moved); !errors.Is(err, errors.NotValid) {
		t.Error(err)
	}
}

// A process moved an object to the trash and died before it moved the record.
func TestInterruptedTrash(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		if t.kind == TmpfsProviderType || t.kind == managedType {
			t.Skip("it has only a record in the storage directory")
		}
		tags := ownerTags(uuid.NewString(), uuid.NewString())
		id := t.mustCreate(tags)
		if err := os.Rename(t.owners()[0].Path, filepath.Join(t.dir, ".trash", id+"-1700000000")); err != nil {
			t.Fatal(err)
		}
		if all := t.owners(); len(all) != 1 || all[0].ID != id {
			t.Fatalf("owners listed: %+v", all)
		}
		if err := t.directory().Trash(t.ctx, id, storage.OwnerOf(tags), time.Unix(1700000060, 0)); err != nil {
			t.Fatal(err)
		}
		want := id + "-1700000000 " + id + "-1700000060.json"
		if got := strings.Join(t.trash(), " "); got != want || len(t.owners()) != 0 {
			t.Errorf("the trash has %q, want %q; objects left: %+v", got, want, t.owners())
		}
		if err := t.directory().PurgeTrash(t.ctx, time.Unix(1700000061, 0)); err != nil {
			t.Error(err)
		}
		if got := t.trash(); len(got) != 0 {
			t.Errorf("left in the trash: %q", got)
		}
	})
}
