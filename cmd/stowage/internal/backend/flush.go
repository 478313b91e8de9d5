package backend

import (
	"context"
	"fmt"
	"slices"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/state"
)

// flush lets the machine that has the storage of a snapshot write out what it has in memory. What is
// attached nowhere, or gone, has been written out.
func (b *Backend) flush(ctx context.Context, s state.Snapshot) error {
	of, err := b.storageOf(s)
	if err != nil || of == nil || len(of.Attachments) == 0 {
		return errors.Trace(err)
	}
	at, err := b.placeOf(of.Attachments[0].Machine)
	if err != nil {
		return errors.Annotatef(err, "writing out what the machine has in memory of storage %q", of.Name)
	}
	if of.Location == "" || of.Attachments[0].Life != life.Alive {
		return errors.NewNotYetAvailable(nil, fmt.Sprintf("storage %q is being attached or detached: the snapshot is made when that is done", of.Name))
	}
	_, err = b.do(ctx, at, task.Request{Flush: &task.Flush{Path: of.Location}})
	return errors.Annotatef(err, "writing out what the machine has in memory of storage %q", of.Name)
}

// storageOf returns the storage of a snapshot, which may have another name now; nil if it is gone.
func (b *Backend) storageOf(s state.Snapshot) (*state.Storage, error) {
	same := func(of state.Storage) bool { return of.UUID() == s.StorageUUID }
	named, err := b.state.Storage(s.Storage)
	if err == nil && same(named[0]) {
		return &named[0], nil
	}
	if err != nil && !errors.Is(err, errors.NotFound) {
		return nil, errors.Trace(err)
	}
	all, err := b.state.AllStorage()
	if i := slices.IndexFunc(all, same); i >= 0 {
		return &all[i], errors.Trace(err)
	}
	return nil, errors.Trace(err)
}
