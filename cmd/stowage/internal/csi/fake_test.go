package csi_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

// store is storage in memory, on machine here. It does at once what is requested, unless it is held.
type store struct {
	mu      sync.Mutex
	volumes map[string]*asked.Volume
	// snapshots are made at once, unless the store is held. refusal is why they cannot be made.
	snapshots map[string]*asked.Snapshot
	refusal   string
	// changed is closed when a volume has changed.
	changed chan struct{}
	// held keeps what is requested from being done, and message is why; waiting is sent the ID of a
	// volume that is waited for.
	held    bool
	message string
	waiting chan string
	// freeMiB is the room for each volume on machine here; machine full has none.
	freeMiB uint64
	// panics makes calls panic.
	panics bool
	// retries counts the calls of Retry.
	retries int
	// overtaken makes another server make each volume first.
	overtaken bool
}

func newStore() *store {
	return &store{volumes: map[string]*asked.Volume{}, snapshots: map[string]*asked.Snapshot{}, changed: make(chan struct{}), waiting: make(chan string, 100), freeMiB: 10_000}
}

// change changes the volume with an ID, which exists, and wakes those that wait.
func (s *store) change(id string, f func(*asked.Volume)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.volumes[id]
	if !ok {
		return errors.NotFoundf("volume %s", id)
	}
	f(v)
	s.wake()
	return nil
}

func (s *store) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// do is change, unless the store is held.
func (s *store) do(id string, want, f func(*asked.Volume)) error {
	return s.change(id, func(v *asked.Volume) {
		want(v)
		v.Message = s.message
		if !s.held {
			v.Message = ""
			f(v)
		}
	})
}

func (s *store) Volume(id string) (asked.Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.panics {
		panic("secret")
	}
	v, ok := s.volumes[id]
	if !ok {
		return asked.Volume{}, errors.NotFoundf("volume %s", id)
	}
	return *v, nil
}

func (s *store) Named(name string) (asked.Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.volumes {
		if v.Name == name {
			return *v, nil
		}
	}
	return asked.Volume{}, errors.NotFoundf("volume %s", name)
}

func (s *store) IDs() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id := range s.volumes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

func (s *store) Create(_ context.Context, r asked.Request) (asked.Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.SizeMiB == 0 {
		r.SizeMiB = min(asked.DefaultSizeMiB, r.LimitMiB)
	}
	size := uint64(0)
	switch {
	case r.FromSnapshot != "" && s.snapshots[r.FromSnapshot] != nil:
		size = s.snapshots[r.FromSnapshot].SizeMiB
	case r.FromVolume != "" && s.volumes[r.FromVolume] != nil:
		size = s.volumes[r.FromVolume].SizeMiB
	case r.FromSnapshot != "" || r.FromVolume != "":
		return asked.Volume{}, errors.WithType(errors.New("it does not exist"), asked.ErrNoOrigin)
	}
	if size > r.LimitMiB {
		return asked.Volume{}, errors.WithType(errors.New("it is larger"), asked.ErrTooSmall)
	}
	r.SizeMiB = max(size, r.SizeMiB)
	fs := r.Filesystem
	if fs == "" {
		fs = "ext4"
	}
	switch {
	case s.overtaken:
		return asked.Volume{}, errors.AlreadyExistsf("volume %s", r.Name)
	case r.Pool != "loop":
		return asked.Volume{}, errors.NotFoundf("pool %q", r.Pool)
	case r.LimitMiB < 2:
		return asked.Volume{}, errors.WithType(errors.New("it needs 2 MiB"), asked.ErrTooSmall)
	case r.Machine == "full", r.SizeMiB > s.freeMiB:
		return asked.Volume{}, errors.WithType(errors.New("it does not fit"), asked.ErrNoSpace)
	case r.Machine != "" && r.Machine != "here":
		return asked.Volume{}, errors.WithType(errors.New("no such machine"), asked.ErrElsewhere)
	case fs != "ext4" && fs != "xfs":
		return asked.Volume{}, errors.NewNotValid(nil, "the types are ext4 and xfs")
	}
	v := &asked.Volume{
		ID: uuid.NewString(), Name: r.Name, Pool: r.Pool, Kind: r.Kind, Filesystem: fs, MkfsOptions: r.MkfsOptions, MountOptions: r.MountOptions,
		SizeMiB: max(2, r.SizeMiB), WantedMiB: max(2, r.SizeMiB), Machine: "here", Provisioned: !s.held, Message: s.message,
		Life: life.Alive, Status: status.Detached, FromSnapshot: r.FromSnapshot, FromVolume: r.FromVolume,
	}
	if s.held {
		v.Status = status.Pending
	}
	s.volumes[v.ID] = v
	return *v, nil
}

func (s *store) Attach(_ context.Context, id, machine string) error {
	return s.do(id, func(v *asked.Volume) {
		v.AttachedTo, v.Status = machine, status.Attaching
	}, func(v *asked.Volume) {
		v.Status, v.Location = status.Attached, "/dev/null" // no device
	})
}

func (s *store) Detach(_ context.Context, id string) error {
	return s.do(id, func(v *asked.Volume) {
		v.Detaching, v.Status = true, status.Detaching
	}, func(v *asked.Volume) {
		v.Detaching, v.AttachedTo, v.Location, v.Status = false, "", "", status.Detached
	})
}

func (s *store) Resize(_ context.Context, id string, size uint64) error {
	if size > s.freeMiB {
		return errors.WithType(errors.New("it does not fit"), asked.ErrNoSpace)
	}
	return s.do(id, func(v *asked.Volume) { v.WantedMiB = size }, func(v *asked.Volume) { v.SizeMiB = size })
}

func (s *store) Retry(_ context.Context, id string) error {
	s.retries++
	return s.do(id, func(*asked.Volume) {}, func(v *asked.Volume) { v.Provisioned = true })
}

func (s *store) Remove(_ context.Context, id string) error {
	err := s.do(id, func(v *asked.Volume) { v.Life, v.Status = life.Dying, status.Destroying }, func(*asked.Volume) {})
	if err == nil && !s.held {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.volumes, id)
		s.wake()
	}
	return err
}

func (s *store) Await(ctx context.Context, id string, done asked.Done) (asked.Volume, error) {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		v, err := s.Volume(id)
		if err != nil {
			return v, err
		}
		if ok, err := done(&v); ok || err != nil {
			return v, err
		}
		s.waiting <- id
		select {
		case <-changed:
		case <-ctx.Done():
			return v, context.Cause(ctx)
		}
	}
}

func (s *store) Inspect(ids ...string) (found []asked.Volume, err error) {
	for _, id := range ids {
		if v, err := s.Volume(id); err == nil {
			found = append(found, v)
		}
	}
	return found, nil
}

func (s *store) Remarks() ([]asked.Remark, error) {
	return []asked.Remark{{Reason: "NearlyFull", Message: "/data is nearly full"}}, nil
}

func (s *store) Capacity(r asked.Request) (asked.Capacity, error) {
	switch {
	case r.Pool != "loop":
		return asked.Capacity{}, errors.NotFoundf("pool %q", r.Pool)
	case r.Machine != "" && r.Machine != "here":
		return asked.Capacity{}, errors.WithType(errors.New("no such machine"), asked.ErrElsewhere)
	}
	return asked.Capacity{FreeMiB: s.freeMiB, MaxMiB: s.freeMiB, MinMiB: 2}, nil
}

func (s *store) Snapshot(id string) (asked.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.snapshots[id]; found != nil {
		return *found, nil
	}
	return asked.Snapshot{}, errors.NotFoundf("snapshot %s", id)
}

func (s *store) SnapshotNamed(name string) (asked.Snapshot, error) {
	all, _ := s.Snapshots()
	for _, found := range all {
		if found.Name == name {
			return found, nil
		}
	}
	return asked.Snapshot{}, errors.NotFoundf("snapshot %s", name)
}

func (s *store) Snapshots() (all []asked.Snapshot, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.snapshots)) {
		all = append(all, *s.snapshots[id])
	}
	return all, nil
}

func (s *store) CreateSnapshot(_ context.Context, name, volumeID string) (asked.Snapshot, error) {
	v, err := s.Volume(volumeID)
	if err != nil {
		return asked.Snapshot{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	made := &asked.Snapshot{ID: uuid.NewString(), Name: name, VolumeID: volumeID, SizeMiB: v.SizeMiB, TakenAt: time.Unix(1e9, 0), Machine: "here", Ready: !s.held, Message: s.message}
	for id, former := range s.snapshots {
		if former.Name == name {
			made.ID = id
		}
	}
	if s.refusal != "" {
		made.Ready, made.Failed, made.Message = false, true, s.refusal
	}
	s.snapshots[made.ID] = made
	s.wake()
	return *made, nil
}

func (s *store) DeleteSnapshot(_ context.Context, id string) error {
	if _, err := s.Snapshot(id); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshots[id].Deleting, s.snapshots[id].Ready, s.snapshots[id].Message = true, false, s.message
	if !s.held {
		delete(s.snapshots, id)
	}
	s.wake()
	return nil
}

func (s *store) AwaitSnapshot(ctx context.Context, id string, done func(*asked.Snapshot) (bool, error)) (asked.Snapshot, error) {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		found, err := s.Snapshot(id)
		if err != nil {
			return found, err
		}
		if ok, err := done(&found); ok || err != nil {
			return found, err
		}
		s.waiting <- id
		select {
		case <-changed:
		case <-ctx.Done():
			return found, context.Cause(ctx)
		}
	}
}

// hold keeps what is requested from being done, for a reason, or does it again.
func (s *store) hold(held bool, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.message = held, message
}

// logger keeps what is logged.
type logger struct {
	mu    sync.Mutex
	lines []string
}

func (l *logger) Debugf(format string, args ...any) { l.add("DEBUG "+format, args) }
func (l *logger) Errorf(format string, args ...any) { l.add("ERROR "+format, args) }

func (l *logger) add(format string, args []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *logger) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprint(l.lines)
}
