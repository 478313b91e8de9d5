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

// moveDir does what moving a directory to another disk does: all of it is copied, and
// the original removed.
func (t *ownedTest) moveDir() {
	t.Helper()
	to := t.dir + "-moved"
	sourcetest.Run(t.T, "cp", "-a", t.dir, to)
	if err := os.RemoveAll(t.dir); err != nil {
		t.Fatal(err)
	}
	t.open(to)
}

// TestMovedDirectory has storage that is on another disk since it was detached.
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
		// Nor does it harm while all is in use.
		if err := t.directory().Reidentify(t.ctx, Moved); err != nil {
			t.Error(err)
		}
		if got := t.mustAttach(id); got != at {
			t.Errorf("it is at %s, was at %s", got, at)
		}
		t.mustRemove(id)
	})
}

// TestMovedDirectoryThatIsStillAttached has a loop device, or a mount, of the directory
// that was copied.
func TestMovedDirectoryThatIsStillAttached(t *testing.T) {
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
			t.Errorf("recorded %s, %v, was %s", after, err, before)
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

// TestMovedInPart has one volume whose file was cut off when it was copied, and one whose
// file is missing. The others are known again.
func TestMovedInPart(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		if t.kind != LoopProviderType {
			t.Skip("of a volume's file it is known how large it is")
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
		for _, word := range []string{cut, "1048576 bytes, not 4194304", missing, "not found"} {
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
			t.Errorf("as nobody's: %v", err)
		}
		if err := t.directory().Trash(t.ctx, id, owner, deleted); err != nil {
			t.Fatal(err)
		}
		if err := t.directory().Trash(t.ctx, id, owner, deleted); !errors.Is(err, errors.NotFound) {
			t.Errorf("again: %v", err)
		}
		if all := t.owners(); len(all) != 0 {
			t.Errorf("there are %+v", all)
		}
		want := []string{id + "-1700000000.json"}
		if t.kind == LoopProviderType || t.kind == RootfsProviderType {
			want = []string{id + "-1700000000", id + "-1700000000.json"}
		}
		if got := t.trash(); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("in the trash are %q, want %q", got, want)
		}
		if t.kind == RootfsProviderType {
			t.check(filepath.Join(t.dir, ".trash", want[0]), "data")
		}
		if err := t.directory().PurgeTrash(t.ctx, deleted); err != nil {
			t.Error(err)
		}
		if got := t.trash(); len(got) != len(want) {
			t.Errorf("after a week that is not over there are %q", got)
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

		// Of one that was interrupted the next removes what it left.
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

// TestTrashOfWhatSomebodyUses has a copy of a mount, or a loop device, that no agent made.
func TestTrashOfWhatSomebodyUses(t *testing.T) {
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
			t.Errorf("there are %+v", all)
		}
	})
}

func TestDirectoriesOfNobody(t *testing.T) {
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
		t.Errorf("it was made: %v", err)
	}
	if err := (StorageDirectory{Provider: "tape", Path: "/srv"}).Reidentify(t.Context(), Moved); !errors.Is(err, errors.NotValid) {
		t.Error(err)
	}
}

// TestTrashThatWasInterrupted has an object that was moved to the trash by a process
// that died before it moved the record.
func TestTrashThatWasInterrupted(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		if t.kind == TmpfsProviderType || t.kind == managedType {
			t.Skip("there is the record alone")
		}
		tags := ownerTags(uuid.NewString(), uuid.NewString())
		id := t.mustCreate(tags)
		if err := os.Rename(t.owners()[0].Path, filepath.Join(t.dir, ".trash", id+"-1700000000")); err != nil {
			t.Fatal(err)
		}
		if all := t.owners(); len(all) != 1 || all[0].ID != id {
			t.Fatalf("there are %+v", all)
		}
		if err := t.directory().Trash(t.ctx, id, storage.OwnerOf(tags), time.Unix(1700000060, 0)); err != nil {
			t.Fatal(err)
		}
		want := id + "-1700000000 " + id + "-1700000060.json"
		if got := strings.Join(t.trash(), " "); got != want || len(t.owners()) != 0 {
			t.Errorf("in the trash are %q, want %q; there are %+v", got, want, t.owners())
		}
		if err := t.directory().PurgeTrash(t.ctx, time.Unix(1700000061, 0)); err != nil {
			t.Error(err)
		}
		if got := t.trash(); len(got) != 0 {
			t.Errorf("left in the trash: %q", got)
		}
	})
}
