//go:build linux

package csi_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

func (h *harness) snapshot(of string, tags map[string]string) (*storage.SnapshotInfo, error) {
	h.Helper()
	results, err := h.volumes().(storage.VolumeSnapshotter).CreateVolumeSnapshots(h.ctx, []storage.VolumeSnapshotParams{{VolumeId: of, ResourceTags: tags}})
	if err != nil {
		h.Fatal(err)
	}
	return results[0].Snapshot, results[0].Error
}

func (h *harness) mustDestroy(id string) {
	h.Helper()
	if err := h.destroy(id); err != nil {
		h.Fatal(err)
	}
}

func (h *harness) destroySnapshot(id string) error {
	h.Helper()
	errs, err := h.volumes().(storage.VolumeSnapshotter).DestroyVolumeSnapshots(h.ctx, []string{id})
	if err != nil {
		h.Fatal(err)
	}
	return errs[0]
}

// snapshotsOf returns the IDs of the snapshots that are listed for an owner.
func (h *harness) snapshotsOf(tags map[string]string) (ids []string) {
	h.Helper()
	all, err := h.volumes().(storage.VolumeSnapshotter).ListVolumeSnapshots(h.ctx)
	if err != nil {
		h.Fatal(err)
	}
	for _, o := range all {
		if storage.OwnerOf(o.ResourceTags) == storage.OwnerOf(tags) {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

func (h *harness) clone(p storage.VolumeParams, of storage.Origin) (*storage.Volume, error) {
	h.Helper()
	results, err := h.volumes().(storage.VolumeCloner).CloneVolumes(h.ctx, []storage.VolumeCloneParams{{VolumeParams: p, Origin: of}})
	if err != nil {
		h.Fatal(err)
	}
	return results[0].Volume, results[0].Error
}

// A driver may take a snapshot at once, and need longer until volumes can be made from it.
func TestSnapshotThatIsNotReady(t *testing.T) {
	h := newHarness(t)
	h.driver.unready = 2
	v := h.mustCreate(volume("0"))
	tags := ownerTags()
	for range 2 {
		if made, err := h.snapshot(v.VolumeId, tags); !errors.Is(err, storage.ErrInProgress) {
			t.Fatalf("made %+v, %v", made, err)
		}
	}
	if listed := h.snapshotsOf(tags); len(listed) != 1 {
		t.Errorf("listed: %q", listed)
	}
	first, err := h.snapshot(v.VolumeId, tags)
	if err != nil || !first.TakenAt.Equal(h.driver.snapshots["snapshot of stowage-"+tags[storage.EntityUUIDTag]].taken.AsTime()) {
		t.Errorf("%+v, %v", first, err)
	}
	calls := h.driver.count("CreateSnapshot")
	if again, err := h.snapshot(v.VolumeId, tags); err != nil || again.SnapshotId != first.SnapshotId || h.driver.count("CreateSnapshot") != calls {
		t.Errorf("again: %+v, %v, %d calls of the driver", again, err, h.driver.count("CreateSnapshot"))
	}
	h.mustDestroy(v.VolumeId)
	if err := h.destroySnapshot(first.SnapshotId); err != nil {
		t.Error(err)
	}
	h.requireClean()
}

// What an interrupted call has made is found by the name and removed, also when the volume is gone.
func TestSnapshotWhoseAnswerIsLost(t *testing.T) {
	for _, gone := range []bool{false, true} {
		h := newHarness(t)
		v := h.mustCreate(volume("0"))
		tags := ownerTags()
		h.driver.set(func() {
			h.driver.after = func(_ context.Context, method string) error {
				if method == "CreateSnapshot" {
					return status.Error(codes.DeadlineExceeded, "lost")
				}
				return nil
			}
		})
		if made, err := h.snapshot(v.VolumeId, tags); !errors.Is(err, storage.ErrInProgress) {
			t.Fatalf("made %+v, %v", made, err)
		}
		h.driver.set(func() { h.driver.after = nil })
		if gone {
			h.mustDestroy(v.VolumeId)
		}
		for _, id := range h.snapshotsOf(tags) {
			if err := h.destroySnapshot(id); err != nil {
				t.Error(err)
			}
		}
		if !gone {
			h.mustDestroy(v.VolumeId)
		}
		h.requireClean()
	}
}

// Without the snapshot, an interrupted creation from it cannot be repeated: the driver says so, and has
// nothing of the name.
func TestOriginOfInterruptedCopyIsGone(t *testing.T) {
	for _, destroyed := range []bool{false, true} {
		h := newHarness(t)
		v := h.mustCreate(volume("0"))
		s, err := h.snapshot(v.VolumeId, ownerTags())
		if err != nil {
			t.Fatal(err)
		}
		h.driver.set(func() {
			h.driver.before = func(_ context.Context, method string) error {
				if method == "CreateVolume" {
					return status.Error(codes.Unavailable, "starting")
				}
				return nil
			}
		})
		p, of := volume("1"), storage.Origin{SnapshotId: s.SnapshotId}
		if made, err := h.clone(p, of); err == nil || storage.IsNothingMade(err) {
			t.Fatalf("made %+v, %v", made, err)
		}
		h.driver.set(func() { h.driver.before = nil })
		if err := h.destroySnapshot(s.SnapshotId); err != nil {
			t.Error(err)
		}
		if destroyed {
			h.mustDestroy(p.Tag.String() + "-" + p.ResourceTags[storage.EntityUUIDTag])
		} else if _, err := h.clone(p, of); !storage.IsNothingMade(err) {
			t.Errorf("repeated: %v", err)
		}
		h.mustDestroy(v.VolumeId)
		h.requireClean()
	}
}

// A snapshot whose ID cannot be used exists nevertheless.
func TestSnapshotWithoutID(t *testing.T) {
	h := newHarness(t)
	v := h.mustCreate(volume("0"))
	tags := ownerTags()
	h.driver.set(func() {
		h.driver.wrap = func(_ any, handle func(context.Context) (any, error)) (any, error) {
			answer, err := handle(t.Context())
			if made, ok := answer.(*csispec.CreateSnapshotResponse); ok {
				made.Snapshot.SnapshotId = ""
			}
			return answer, err
		}
	})
	if made, err := h.snapshot(v.VolumeId, tags); err == nil || storage.IsNothingMade(err) || !strings.Contains(err.Error(), "snapshot_id of 0 bytes") {
		t.Errorf("made %+v, %v", made, err)
	}
	h.driver.set(func() { h.driver.wrap = nil })
	for _, id := range h.snapshotsOf(tags) {
		if err := h.destroySnapshot(id); err != nil {
			t.Error(err)
		}
	}
	h.mustDestroy(v.VolumeId)
	h.requireClean()
}

// A refusal leaves nothing, unless an earlier call may have made something.
func TestRefusedSnapshot(t *testing.T) {
	h := newHarness(t)
	v := h.mustCreate(volume("0"))
	tags := ownerTags()
	refuse := func(code codes.Code) {
		h.driver.set(func() {
			h.driver.before = func(_ context.Context, method string) error {
				if method == "CreateSnapshot" {
					return status.Error(code, "refused")
				}
				return nil
			}
		})
	}
	refuse(codes.InvalidArgument)
	if _, err := h.snapshot(v.VolumeId, tags); !storage.IsNothingMade(err) || !storage.IsPermanent(err) {
		t.Errorf("refused: %v", err)
	}
	if listed := h.snapshotsOf(tags); len(listed) != 0 {
		t.Errorf("after the refusal: %q", listed)
	}
	refuse(codes.Unavailable)
	if _, err := h.snapshot(v.VolumeId, tags); err == nil || storage.IsNothingMade(err) {
		t.Errorf("not known: %v", err)
	}
	refuse(codes.InvalidArgument)
	if _, err := h.snapshot(v.VolumeId, tags); err == nil || storage.IsNothingMade(err) || storage.IsPermanent(err) {
		t.Errorf("refused later: %v", err)
	}
	if listed := h.snapshotsOf(tags); len(listed) != 1 {
		t.Errorf("after an attempt that may have made one: %q", listed)
	}
	h.driver.set(func() { h.driver.before = nil })
	for _, id := range h.snapshotsOf(tags) {
		if err := h.destroySnapshot(id); err != nil {
			t.Error(err)
		}
	}
	h.mustDestroy(v.VolumeId)
	h.requireClean()
}

// What a driver cannot do is refused before anything is made, and the error names the driver.
func TestDriverWithoutSnapshots(t *testing.T) {
	h := newHarness(t)
	h.driver.noSnapshots, h.driver.noClones = true, true
	v := h.mustCreate(volume("0"))
	_, err := h.snapshot(v.VolumeId, ownerTags())
	if !errors.Is(err, errors.NotSupported) || !storage.IsNothingMade(err) || !strings.Contains(err.Error(), driverName+" makes no snapshots") {
		t.Errorf("snapshot: %v", err)
	}
	if _, err := h.snapshot("volume-9", ownerTags()); !errors.Is(err, errors.NotSupported) {
		t.Errorf("snapshot of nothing: %v", err)
	}
	for _, of := range []storage.Origin{{SnapshotId: "snapshot-1"}, {Id: v.VolumeId}} {
		if _, err := h.clone(volume("1"), of); !errors.Is(err, errors.NotSupported) || !storage.IsNothingMade(err) {
			t.Errorf("clone of %+v: %v", of, err)
		}
	}
	h.mustDestroy(v.VolumeId)
	h.requireClean()
}

// A snapshot has what was written to attached storage before, although it is still in memory: to the
// device, or to a filesystem on it.
func TestSnapshotOfAttachedStorage(t *testing.T) {
	for _, mounted := range []bool{false, true} {
		h := newHarness(t)
		v := h.mustCreate(volume("0"))
		path := h.attachAt(v, mounted, true)
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt([]byte("precious"), 0); err != nil {
			t.Fatal(err)
		}
		s, err := h.snapshot(v.VolumeId, ownerTags())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt([]byte("changed!"), 0); err != nil {
			t.Fatal(err)
		}
		file.Close()
		clone, err := h.clone(volume("1"), storage.Origin{SnapshotId: s.SnapshotId})
		if err != nil {
			t.Fatal(err)
		}
		copied := h.attachAt(clone, mounted, false)
		got := make([]byte, 8)
		if f, err := os.Open(copied); err != nil {
			t.Error(err)
		} else if _, err := f.ReadAt(got, 0); err != nil || string(got) != "precious" {
			t.Errorf("mounted %v: the copy has %q, %v", mounted, got, err)
			f.Close()
		} else {
			f.Close()
		}
		for v, path := range map[*storage.Volume]string{v: path, clone: copied} {
			if mounted {
				if err := unix.Unmount(filepath.Dir(path), 0); err != nil {
					t.Error(err)
				}
			}
			if err := h.detach(v); err != nil {
				t.Error(err)
			}
			h.mustDestroy(v.VolumeId)
		}
		if err := h.destroySnapshot(s.SnapshotId); err != nil {
			t.Error(err)
		}
		h.requireClean()
	}
}

// attachAt attaches a volume, and returns the path of its device, or of a file on the ext4 that is mounted
// from it.
func (h *harness) attachAt(v *storage.Volume, mounted, format bool) string {
	h.Helper()
	at, err := h.attach(v)
	if err != nil {
		h.Fatal(err)
	}
	device := "/dev/" + at.DeviceName
	if !mounted {
		return device
	}
	if format {
		if out, err := exec.Command("mkfs.ext4", "-q", device).CombinedOutput(); err != nil {
			h.Fatalf("mkfs.ext4: %v: %s", err, out)
		}
	}
	dir := h.TempDir()
	if err := unix.Mount(device, dir, "ext4", 0, ""); err != nil {
		h.Fatal(err)
	}
	return filepath.Join(dir, "file")
}

// A filesystem that is larger than what it has the contents of grows when it is first attached.
func TestLargerCopyOfFilesystem(t *testing.T) {
	h := newHarness(t)
	source := h.filesystems()
	params := func(n string, size uint64) storage.FilesystemParams {
		return storage.FilesystemParams{Tag: names.NewFilesystemTag("0/" + n), Size: size, Provider: "fake", ResourceTags: ownerTags()}
	}
	made, err := source.CreateFilesystems(h.ctx, []storage.FilesystemParams{params("0", 8)})
	if err != nil || made[0].Error != nil {
		t.Fatal(err, made[0].Error)
	}
	of := storage.Origin{Id: made[0].Filesystem.FilesystemId}
	copies, err := source.(storage.FilesystemCloner).CloneFilesystems(h.ctx, []storage.FilesystemCloneParams{
		{FilesystemParams: params("1", 4), Origin: of}, {FilesystemParams: params("2", 8), Origin: of}, {FilesystemParams: params("3", 16), Origin: of},
	})
	if err != nil || !errors.Is(copies[0].Error, errors.NotValid) || copies[1].Error != nil || copies[2].Error != nil {
		t.Fatal(err, copies)
	}
	ids := []string{of.Id}
	for i, expansions := range []int{0, 1} {
		f := copies[i+1].Filesystem
		ids = append(ids, f.FilesystemId)
		// Growing it at the driver does not make that superfluous.
		h.driver.set(func() { h.driver.growsAlone = true })
		grown := []storage.FilesystemResizeParams{{Tag: f.Tag, FilesystemId: f.FilesystemId, Size: f.Size + 8}}
		if got, err := source.(storage.FilesystemResizer).ResizeFilesystems(h.ctx, grown); err != nil || got[0].Error != nil {
			t.Fatal(err, got)
		}
		at := []storage.FilesystemAttachmentParams{{
			AttachmentParams: storage.AttachmentParams{Provider: "fake", Machine: names.NewMachineTag("0")},
			Filesystem:       f.Tag, FilesystemId: f.FilesystemId, Path: filepath.Join(devicetest.Dir(t), "data"),
		}}
		for range 2 {
			if got, err := source.AttachFilesystems(h.ctx, at); err != nil || got[0].Error != nil {
				t.Fatal(err, got)
			}
		}
		if got := h.driver.count("NodeExpandVolume"); got != expansions {
			t.Errorf("copy of %d MiB: grown %d times, want %d", f.Size, got, expansions)
		}
		if got, err := source.DetachFilesystems(h.ctx, at); err != nil || got[0] != nil {
			t.Fatal(err, got)
		}
	}
	if errs, err := source.DestroyFilesystems(h.ctx, ids); err != nil || errs[0] != nil || errs[1] != nil || errs[2] != nil {
		t.Fatal(err, errs)
	}
	h.requireClean()
}
