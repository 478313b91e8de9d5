package backend_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// inCloud makes a volume of the environment, named by csi.
func (s *server) inCloud(name string) state.Storage {
	s.t.Helper()
	v := mustCreate(s, s.Asked("csi", ""), ask(name, func(r *asked.Request) { r.Pool, r.Machine = "cloud", "" }))
	found, err := s.state.AskedByUUID("csi", v.ID)
	s.must(err)
	return s.provisionInCloud(found)
}

// provisionInCloud makes a volume of the environment.
func (s *server) provisionInCloud(of state.Storage) state.Storage {
	s.t.Helper()
	tag := of.Volume.Tag.(names.VolumeTag)
	made, err := s.cloud.CreateVolumes(envcontext.New(s.t.Context()), []storage.VolumeParams{{
		Tag: tag, Size: 10, ResourceTags: map[string]string{storage.EntityUUIDTag: of.UUID(), storage.ModelUUIDTag: s.state.UUID()},
	}})
	s.must(err)
	s.must(made[0].Error)
	_, err = s.state.ForEnviron().SetVolumeInfo([]params.Volume{{VolumeTag: tag.String(), Info: params.VolumeInfo{VolumeId: made[0].Volume.VolumeId, Size: 10}}})
	s.must(err)
	all, err := s.state.Storage(of.Name)
	s.must(err)
	return all[0]
}

// snapshots runs the worker of snapshots until the test ends.
func (s *server) snapshots() {
	s.t.Helper()
	w, err := s.StartSnapshotter()
	s.must(err)
	s.t.Cleanup(func() {
		w.Kill()
		if err := w.Wait(); err != nil {
			s.t.Error(err)
		}
	})
}

// awaited returns a snapshot once nothing is being done for it; nil if it is gone.
func (s *server) awaited(name string) *user.Snapshot {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	s.must(s.AwaitSnapshot(ctx, name))
	s.must(ctx.Err())
	found, err := s.Snapshots(s.t.Context(), []string{name})
	if errors.Is(err, errors.NotFound) {
		return nil
	}
	s.must(err)
	return &found[0]
}

// awaitFailure waits until an attempt to make a snapshot has failed that is made again, and returns why.
func (s *server) awaitFailure(name string) string {
	s.t.Helper()
	changes, err := s.state.WatchSnapshots()
	s.must(err)
	defer func() {
		changes.Kill()
		s.must(changes.Wait())
	}()
	for {
		found, err := s.state.Snapshot(name)
		s.must(err)
		if found.Failed || found.SnapshotID != "" {
			s.t.Fatalf("it is made or given up: %+v", found)
		}
		if found.Failure != "" {
			return found.Failure
		}
		<-changes.Changes()
	}
}

func (s *server) listed() int {
	s.t.Helper()
	all, err := s.cloud.ListVolumeSnapshots(envcontext.New(s.t.Context()))
	s.must(err)
	return len(all)
}

// What is requested is made and deleted, with or without the volume, and what an interrupted process has left
// is found.
func TestSnapshotsAreMadeAndDeleted(t *testing.T) {
	s, other := newServers(t)
	volume := s.inCloud("data")
	s.must(s.CreateSnapshot(t.Context(), "monday", user.SnapshotRequest{Storage: volume.Name}))
	recorded, err := s.state.Snapshot("monday")
	s.must(err)
	// A process that was killed before it could record the snapshot has made it.
	before, err := s.cloud.CreateVolumeSnapshots(envcontext.New(t.Context()), []storage.VolumeSnapshotParams{{VolumeId: recorded.VolumeID, ResourceTags: recorded.ResourceTags}})
	s.must(err)
	s.must(before[0].Error)
	s.snapshots()
	made := s.awaited("monday")
	if made == nil || made.Status != user.SnapshotReady || made.TakenAt == nil || s.listed() != 1 {
		t.Errorf("made %+v, and there are %d", made, s.listed())
	}
	if now, err := other.state.Snapshot("monday"); err != nil || now.SnapshotID != before[0].Snapshot.SnapshotId {
		t.Errorf("another server has %+v, %v", now, err)
	}
	s.must(s.state.AddStorage(state.StorageParams{
		Name: "restored", Kind: storage.StorageKindBlock, Pool: "cloud", Size: made.SizeMiB, Detached: true, From: state.From{Snapshot: "monday"},
	}))
	if found, err := s.Storage(t.Context(), []string{"restored"}); err != nil || found[0].From == nil || *found[0].From != (user.Origin{Snapshot: "monday"}) {
		t.Errorf("restored %+v, %v", found, err)
	}
	s.must(other.DeleteSnapshot(t.Context(), "monday", false))
	if left := s.awaited("monday"); left != nil || s.listed() != 0 {
		t.Errorf("left %+v, and there are %d", left, s.listed())
	}
}

// What fails is tried again, unless that has no use: then the reason stays until somebody looks.
func TestSnapshotsThatFail(t *testing.T) {
	s, _ := newServers(t)
	volume := s.inCloud("data")
	request := user.SnapshotRequest{Storage: volume.Name}
	s.must(s.CreateSnapshot(t.Context(), "a", request))
	a, err := s.state.Snapshot("a")
	s.must(err)
	s.cloud.FailItem("CreateVolumeSnapshots", "snapshot-"+a.UUID, errors.New("busy"))
	s.must(s.CreateSnapshot(t.Context(), "b", request))
	b, err := s.state.Snapshot("b")
	s.must(err)
	s.cloud.FailItem("CreateVolumeSnapshots", "snapshot-"+b.UUID, storage.Permanent(errors.New("detach it")))
	s.snapshots()
	if made := s.awaited("a"); made.Status != user.SnapshotReady || made.Message != "" {
		t.Errorf("after a retry: %+v", made)
	}
	if failed := s.awaited("b"); failed.Status != user.SnapshotFailed || failed.Message != "detach it" {
		t.Errorf("failed for good: %+v", failed)
	}
	s.must(s.CreateSnapshot(t.Context(), "b", request))
	if made := s.awaited("b"); made.Status != user.SnapshotReady {
		t.Errorf("requested again: %+v", made)
	}
	s.cloud.FailItem("DestroyVolumeSnapshots", "snapshot-"+b.UUID, storage.Permanent(errors.New("busy")))
	s.must(s.DeleteSnapshot(t.Context(), "b", false))
	if left := s.awaited("b"); left != nil || s.listed() != 1 {
		t.Errorf("left %+v, and there are %d", left, s.listed())
	}
}

// A machine that is not connected is waited for, and one that was removed has nothing any more.
func TestSnapshotOfAbsentMachine(t *testing.T) {
	s, _ := newServers(t)
	v := mustCreate(s, s.Asked("csi", ""), ask("data", nil))
	s.made(v, 10)
	s.must(s.CreateSnapshot(t.Context(), "a", user.SnapshotRequest{Storage: v.Storage}))
	s.snapshots()
	s.awaitFailure("a")
	s.must(s.DeleteSnapshot(t.Context(), "a", false))
	s.must(s.state.RemoveMachine(machine, v.Storage))
	if left := s.awaited("a"); left != nil {
		t.Errorf("left %+v", left)
	}
}

// Before a volume of the environment is copied, the machine that has it writes out what is in memory. The
// snapshot waits for that, and not for a machine that has it no more.
func TestSnapshotWaitsForFlush(t *testing.T) {
	s, _ := newServers(t)
	s.must(s.state.AddStorage(state.StorageParams{Name: "data", Kind: storage.StorageKindBlock, Pool: "cloud", Size: 10, Machine: machine}))
	added, err := s.state.Storage("data")
	s.must(err)
	volume := s.provisionInCloud(added[0])
	s.must(s.CreateSnapshot(t.Context(), "monday", user.SnapshotRequest{Storage: volume.Name}))
	s.must(s.state.Apply(state.Changes{Rename: []state.Rename{{Name: volume.Name, To: "renamed"}}}))
	s.snapshots()
	if failure, want := s.awaitFailure("monday"), "writing out what the machine has in memory of storage \"renamed\": "; !strings.HasPrefix(failure, want) {
		t.Errorf("waits for %q, want %q", failure, want)
	}
	s.must(s.state.DetachStorage([]string{"renamed"}))
	_, err = s.state.ForEnviron().RemoveAttachments([]params.MachineStorageId{{MachineTag: machine.String(), AttachmentTag: volume.Volume.Tag.String()}})
	s.must(err)
	if made := s.awaited("monday"); made == nil || made.Status != user.SnapshotReady {
		t.Errorf("detached, and the snapshot is %+v", made)
	}
}

// A program that asks for a copy of a filesystem that is on no volume gets one that is as large, on its
// machine, and a snapshot of it by the ID of the filesystem.
func TestCopiesOfAskedFilesystem(t *testing.T) {
	s, _ := newServers(t)
	volumes := s.Asked("csi", "")
	directory := func(name string, change func(*asked.Request)) asked.Request {
		return ask(name, func(r *asked.Request) {
			r.Pool, r.Kind = "rootfs", storage.StorageKindFilesystem
			change(r)
		})
	}
	v := mustCreate(s, volumes, directory("data", func(*asked.Request) {}))
	found, err := s.state.AskedByUUID("csi", v.ID)
	s.must(err)
	tag := found.Filesystem.Tag.String()
	_, err = s.state.ForMachine(machine).SetFilesystemInfo([]params.Filesystem{{FilesystemTag: tag, Info: params.FilesystemInfo{FilesystemId: "dir-1", Size: 24}}})
	s.must(err)
	fromVolume := func(r *asked.Request) { r.FromVolume, r.SizeMiB, r.Machine = v.ID, 0, "" }
	_, err = volumes.Create(t.Context(), directory("small", func(r *asked.Request) { fromVolume(r); r.LimitMiB = 23 }))
	if !errors.Is(err, asked.ErrTooSmall) {
		t.Errorf("a smaller copy: %v", err)
	}
	if copied := mustCreate(s, volumes, directory("copy", fromVolume)); copied.WantedMiB != 24 || copied.Machine != "0" || copied.FromVolume != v.ID {
		t.Errorf("a copy: %+v", copied)
	}
	snapshot, err := volumes.CreateSnapshot(t.Context(), "snapshot-1", v.ID)
	s.must(err)
	recorded, err := s.state.SnapshotByUUID(snapshot.ID)
	s.must(err)
	if snapshot.VolumeID != v.ID || snapshot.SizeMiB != 24 || recorded.FilesystemID != "dir-1" {
		t.Errorf("a snapshot: %+v, recorded as %+v", snapshot, recorded)
	}
}
