package backend

import (
	"context"
	"slices"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/watcher"
)

// snapshot returns a snapshot as its asker sees it.
func (a *Asked) snapshot(s *state.Snapshot) asked.Snapshot {
	wire := asked.Snapshot{
		ID: s.UUID, Name: s.Asker.Name, VolumeID: s.StorageUUID, SizeMiB: s.SizeMiB, TakenAt: s.TakenAt,
		Ready: s.IsMade(), Failed: s.Failed, Deleting: s.Deleting, Message: s.Failure,
	}
	if s.Machine != (names.MachineTag{}) {
		wire.Machine = a.nameOf(s.Machine)
	}
	return wire
}

// findSnapshot returns a snapshot that was asked for by this way in.
func (a *Asked) findSnapshot(id string) (state.Snapshot, error) {
	s, err := a.backend.state.SnapshotByUUID(id)
	if err == nil && s.Asker.Way != a.way {
		err = errors.NotFoundf("snapshot %s", id)
	}
	return s, errors.Trace(err)
}

// Snapshot implements asked.Manager.
func (a *Asked) Snapshot(id string) (asked.Snapshot, error) {
	s, err := a.findSnapshot(id)
	return a.snapshot(&s), err
}

// SnapshotNamed implements asked.Manager.
func (a *Asked) SnapshotNamed(name string) (asked.Snapshot, error) {
	s, err := a.backend.state.AskedSnapshot(state.Asker{Way: a.way, Name: name})
	return a.snapshot(&s), errors.Trace(err)
}

// Snapshots implements asked.Manager.
func (a *Asked) Snapshots() ([]asked.Snapshot, error) {
	all, err := a.backend.state.Snapshots()
	if err != nil {
		return nil, errors.Trace(err)
	}
	var own []asked.Snapshot
	for i := range all {
		if all[i].Asker.Way == a.way {
			own = append(own, a.snapshot(&all[i]))
		}
	}
	slices.SortFunc(own, func(x, y asked.Snapshot) int { return strings.Compare(x.ID, y.ID) })
	return own, nil
}

// CreateSnapshot implements asked.Manager.
func (a *Asked) CreateSnapshot(_ context.Context, name, volumeID string) (asked.Snapshot, error) {
	volume, _, err := a.find(volumeID)
	if err != nil {
		return asked.Snapshot{}, err
	}
	by := state.Asker{Way: a.way, Name: name}
	s, err := a.backend.state.AddSnapshot(state.SnapshotParams{Asker: by, Storage: volume.Name, By: by.String()})
	return a.snapshot(&s), errors.Trace(err)
}

// DeleteSnapshot implements asked.Manager.
func (a *Asked) DeleteSnapshot(_ context.Context, id string) error {
	s, err := a.findSnapshot(id)
	if err != nil {
		return err
	}
	return errors.Trace(a.backend.state.DeleteSnapshot(s.Name, state.SnapshotDeletion{Way: a.way, By: a.way}))
}

// AwaitSnapshot implements asked.Manager.
func (a *Asked) AwaitSnapshot(ctx context.Context, id string, done func(*asked.Snapshot) (bool, error)) (last asked.Snapshot, err error) {
	changes, err := a.backend.state.WatchSnapshots()
	if err != nil {
		return last, errors.Trace(err)
	}
	defer stop(changes)
	for {
		if last, err = a.Snapshot(id); err != nil {
			return last, err
		}
		if ok, err := done(&last); ok || err != nil {
			return last, err
		}
		select {
		case <-ctx.Done():
			return last, context.Cause(ctx)
		case _, ok := <-changes.Changes():
			if !ok {
				return last, errors.Trace(watcher.EnsureErr(changes))
			}
		}
	}
}

// applyOrigin completes the request for a volume that gets the contents of others: it is made where those
// are, at least as large.
func (a *Asked) applyOrigin(request *asked.Request) (from state.From, err error) {
	var size uint64
	machine := ""
	switch {
	case request.FromSnapshot != "":
		s, err := a.findSnapshot(request.FromSnapshot)
		if err == nil && s.Deleting {
			err = errors.NotFoundf("snapshot %s", request.FromSnapshot)
		}
		if err != nil {
			return from, noOrigin(err)
		}
		from.Snapshot, size = s.Name, s.SizeMiB
		if s.Machine != (names.MachineTag{}) {
			machine = a.nameOf(s.Machine)
		}
	case request.FromVolume != "":
		s, _, err := a.find(request.FromVolume)
		if err != nil {
			return from, noOrigin(err)
		}
		from.Storage, size = s.Name, s.SizeMiB
		if s.Volume != nil {
			if size, err = a.volumeSize(&s); err != nil {
				return from, errors.Trace(err)
			}
		}
		if bound, ok := converge.BoundMachine(&s); ok {
			machine = a.nameOf(bound)
		}
	default:
		return from, nil
	}
	switch {
	case size > request.LimitMiB:
		return from, errors.WithType(errors.Errorf("%s has %d MiB, and the limit is %d MiB: raise the limit", from, size, request.LimitMiB), asked.ErrTooSmall)
	case machine != "" && request.Machine != "" && request.Machine != machine:
		return from, errors.WithType(errors.Errorf("%s is on machine %q", from, machine), asked.ErrElsewhere)
	}
	request.SizeMiB, request.Machine = max(size, request.SizeMiB), machine
	return from, nil
}

func noOrigin(err error) error {
	if errors.Is(err, errors.NotFound) {
		return errors.WithType(err, asked.ErrNoOrigin)
	}
	return err
}
