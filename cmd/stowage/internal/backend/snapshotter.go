package backend

import (
	"context"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
)

const (
	// snapshotRetryMin and snapshotRetryMax bound the time between attempts for one snapshot.
	snapshotRetryMin = time.Second
	snapshotRetryMax = time.Minute
)

// snapshotter is a worker that makes and deletes snapshots as the state wants it: on each machine one at
// a time, and each until it is done, or until trying again has no use. All that it must remember is in the
// state. Of several servers with one state, one runs it.
type snapshotter struct {
	tomb    tomb.Tomb
	backend *Backend
	done    chan attempted

	// Only the loop uses these. running has the machines on which something is being done, and attempts
	// the snapshots, by UUID, that were attempted and are not done.
	running  map[names.MachineTag]bool
	attempts map[string]*attempt
}

// attempted is the end of an attempt for a snapshot.
type attempted struct {
	machine names.MachineTag
	uuid    string
	err     error
}

// attempt is when a snapshot may be attempted again, and how long after that it is.
type attempt struct {
	next time.Time
	wait time.Duration
	// deleting says what was attempted.
	deleting bool
}

// StartSnapshotter returns a worker that makes and deletes snapshots.
func (b *Backend) StartSnapshotter() (worker.Worker, error) {
	s := &snapshotter{
		backend: b, done: make(chan attempted), running: make(map[names.MachineTag]bool), attempts: make(map[string]*attempt),
	}
	s.tomb.Go(s.loop)
	return s, nil
}

// Kill implements worker.Worker.
func (s *snapshotter) Kill() { s.tomb.Kill(nil) }

// Wait implements worker.Worker. When it returns, nothing is being done here.
func (s *snapshotter) Wait() error { return s.tomb.Wait() }

func (s *snapshotter) loop() error {
	changes, err := s.backend.state.WatchSnapshots()
	if err != nil {
		return errors.Trace(err)
	}
	defer watcher.Stop(changes, &s.tomb)
	presence, err := s.backend.state.WatchPresence()
	if err != nil {
		return errors.Trace(err)
	}
	defer watcher.Stop(presence, &s.tomb)
	clock := s.backend.config.Clock
	for {
		next, err := s.begin(clock.Now())
		if err != nil {
			return errors.Trace(err)
		}
		var due <-chan time.Time
		stopTimer := func() {}
		if !next.IsZero() {
			timer := clock.NewTimer(next.Sub(clock.Now()))
			due, stopTimer = timer.Chan(), func() { timer.Stop() }
		}
		select {
		case <-s.tomb.Dying():
			stopTimer()
			return tomb.ErrDying
		case _, ok := <-changes.Changes():
			if !ok {
				return watcher.EnsureErr(changes)
			}
		case _, ok := <-presence.Changes():
			if !ok {
				return watcher.EnsureErr(presence)
			}
			for _, a := range s.attempts { // a machine may have come back
				a.next = time.Time{}
			}
		case end := <-s.done:
			delete(s.running, end.machine)
			s.end(end, clock.Now())
		case <-due:
		}
		stopTimer()
	}
}

// begin begins what can be begun, and returns when something else can be; zero for never.
func (s *snapshotter) begin(now time.Time) (next time.Time, err error) {
	all, err := s.backend.state.Snapshots()
	if err != nil {
		return next, errors.Trace(err)
	}
	wanted := make(map[string]bool)
	for _, snapshot := range all {
		if !snapshot.Deleting && (snapshot.IsMade() || snapshot.Failed) {
			continue
		}
		wanted[snapshot.UUID] = true
		last := s.attempts[snapshot.UUID]
		if last != nil && last.deleting != snapshot.Deleting {
			last = nil
			delete(s.attempts, snapshot.UUID)
		}
		switch {
		case s.running[snapshot.Machine]:
		case last != nil && now.Before(last.next):
			if next.IsZero() || last.next.Before(next) {
				next = last.next
			}
		default:
			s.running[snapshot.Machine] = true
			if last == nil {
				s.attempts[snapshot.UUID] = &attempt{deleting: snapshot.Deleting}
			}
			s.tomb.Go(func() error {
				err := s.backend.attemptSnapshot(s.tomb.Context(context.Background()), snapshot)
				select {
				case s.done <- attempted{snapshot.Machine, snapshot.UUID, err}:
				case <-s.tomb.Dying():
				}
				return nil
			})
		}
	}
	for id := range s.attempts {
		if !wanted[id] {
			delete(s.attempts, id)
		}
	}
	return next, nil
}

// end notes when what has failed is attempted again.
func (s *snapshotter) end(end attempted, now time.Time) {
	a := s.attempts[end.uuid]
	if a == nil || end.err == nil {
		return
	}
	a.wait = min(max(2*a.wait, snapshotRetryMin), snapshotRetryMax)
	a.next = now.Add(a.wait)
	s.backend.config.Logger.Warningf("snapshot %s: %v: will be retried in %s", end.uuid, end.err, a.wait)
}

// attemptSnapshot makes or deletes a snapshot, and records that. The error says why it is to be attempted
// again.
func (b *Backend) attemptSnapshot(ctx context.Context, s state.Snapshot) error {
	result, err := b.doSnapshot(ctx, s)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil && result.Failure == "" && s.Deleting:
		return errors.Trace(b.state.RemoveSnapshot(s.UUID))
	case err == nil && result.Failure == "":
		err := b.state.SetSnapshotMade(s.UUID, storage.SnapshotInfo{SnapshotId: result.ID, Size: result.SizeMiB, TakenAt: result.TakenAt})
		return errors.Trace(ignoreNotFound(err))
	case err == nil:
		err = errors.New(result.Failure)
	}
	final := result.Final && !s.Deleting
	if err.Error() != s.Failure || final {
		if err := b.state.SetSnapshotFailed(s.UUID, err.Error(), final); err != nil {
			return errors.Trace(ignoreNotFound(err))
		}
	}
	if final {
		return nil
	}
	return err
}

// ignoreNotFound returns nil for the error of a snapshot that is not recorded any more.
func ignoreNotFound(err error) error {
	if errors.Is(err, errors.NotFound) {
		return nil
	}
	return err
}

// doSnapshot has a snapshot made or deleted where its volume is.
func (b *Backend) doSnapshot(ctx context.Context, s state.Snapshot) (task.Snapshotted, error) {
	at := here
	if s.Machine != (names.MachineTag{}) {
		var err error
		at, err = b.placeOf(s.Machine)
		if errors.Is(err, errors.NotFound) { // it was removed, with all that it had
			if s.Deleting {
				return task.Snapshotted{}, nil
			}
			return task.Snapshotted{Failure: err.Error(), Final: true}, nil
		}
		if err != nil {
			return task.Snapshotted{}, errors.Trace(err)
		}
	}
	if s.Machine == (names.MachineTag{}) && !s.Deleting {
		if err := b.flush(ctx, s); err != nil {
			return task.Snapshotted{}, errors.Trace(err)
		}
	}
	result, err := b.do(ctx, at, task.Request{Snapshot: &task.Snapshot{
		Provider: string(s.Provider), VolumeID: s.VolumeID, FilesystemID: s.FilesystemID, SnapshotID: s.SnapshotID,
		Attributes: s.Attributes, ResourceTags: s.ResourceTags, Delete: s.Deleting,
	}})
	if err != nil {
		return task.Snapshotted{}, errors.Trace(err)
	}
	return *result.Snapshot, nil
}
