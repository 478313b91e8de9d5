package backend

import (
	"context"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/userapi"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/watcher"
)

// Snapshots implements userapi.Backend.
func (b *Backend) Snapshots(_ context.Context, names []string) ([]user.Snapshot, error) {
	var all []state.Snapshot
	var err error
	if len(names) == 0 {
		all, err = b.state.Snapshots()
	}
	for _, name := range names {
		if err == nil {
			var s state.Snapshot
			s, err = b.state.Snapshot(name)
			all = append(all, s)
		}
	}
	if err != nil {
		return nil, errors.Trace(err)
	}
	wire := make([]user.Snapshot, len(all))
	for i := range all {
		wire[i] = b.wireSnapshot(&all[i])
	}
	return wire, nil
}

func (b *Backend) wireSnapshot(s *state.Snapshot) user.Snapshot {
	wire := user.Snapshot{
		Name: s.Name, UUID: s.UUID, StorageName: s.Storage, StorageUUID: s.StorageUUID, Kind: s.Kind.String(), Pool: s.Pool,
		SizeMiB: s.SizeMiB, Status: snapshotStatus(s), Message: s.Failure,
	}
	if s.Machine != (names.MachineTag{}) {
		wire.Machine = b.machineName(s.Machine)
	}
	if s.Asker != (state.Asker{}) {
		wire.Asker = s.Asker.Way + "/" + s.Asker.Name
	}
	if !s.TakenAt.IsZero() {
		wire.TakenAt = &s.TakenAt
	}
	return wire
}

func snapshotStatus(s *state.Snapshot) user.SnapshotStatus {
	switch {
	case s.Deleting:
		return user.SnapshotDeleting
	case s.IsMade():
		return user.SnapshotReady
	case s.Failed:
		return user.SnapshotFailed
	}
	return user.SnapshotCreating
}

// CreateSnapshot implements userapi.Backend.
func (b *Backend) CreateSnapshot(ctx context.Context, name string, request user.SnapshotRequest) error {
	_, err := b.state.AddSnapshot(state.SnapshotParams{Name: name, Storage: request.Storage, By: userapi.CallerOf(ctx)})
	return errors.Trace(err)
}

// DeleteSnapshot implements userapi.Backend.
func (b *Backend) DeleteSnapshot(ctx context.Context, name string, force bool) error {
	return errors.Trace(b.state.DeleteSnapshot(name, state.SnapshotDeletion{Force: force, By: userapi.CallerOf(ctx)}))
}

// AwaitSnapshot implements userapi.Backend.
func (b *Backend) AwaitSnapshot(ctx context.Context, name string) error {
	changes, err := b.state.WatchSnapshots()
	if err != nil {
		return errors.Trace(err)
	}
	defer stop(changes)
	for {
		s, err := b.state.Snapshot(name)
		if errors.Is(err, errors.NotFound) {
			return nil
		}
		if err != nil || !s.Deleting && (s.IsMade() || s.Failed) {
			return errors.Trace(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-changes.Changes():
			if !ok {
				return errors.Trace(watcher.EnsureErr(changes))
			}
		}
	}
}
