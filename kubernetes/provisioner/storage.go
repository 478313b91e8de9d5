package provisioner

import (
	"context"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

// maxWatches bounds how many requests wait for storage at a time. A server lets one user have 16.
const maxWatches = 12

// storageClient looks at and waits for single storage instances.
type storageClient struct {
	stowage Stowage
	wait    time.Duration
	watches chan struct{}
}

func newStorageClient(stowage Stowage, wait time.Duration) *storageClient {
	return &storageClient{stowage: stowage, wait: wait, watches: make(chan struct{}, maxWatches)}
}

// find returns the storage with a name, or nil.
func (c *storageClient) find(ctx context.Context, name string) (*user.Storage, error) {
	found, err := c.stowage.Storage(ctx, []string{name})
	switch {
	case errors.Is(err, errors.NotFound), err == nil && len(found) == 0:
		return nil, nil
	case err != nil:
		return nil, errors.Annotatef(err, "looking for storage %s", name)
	}
	return &found[0], nil
}

// remove requests that storage be removed, and waits until it is gone. Removing storage that does not
// exist succeeds.
func (c *storageClient) remove(ctx context.Context, name string) (gone bool, err error) {
	err = c.stowage.RemoveStorage(ctx, user.RemoveArgs{Names: []string{name}, Way: way})
	switch {
	case errors.Is(err, errors.NotFound):
		return true, nil
	case err != nil:
		return false, errors.Trace(err)
	}
	return c.awaitGone(ctx, name)
}

// awaitGone waits until storage is gone, or the time is over.
func (c *storageClient) awaitGone(ctx context.Context, name string) (bool, error) {
	s, err := c.await(ctx, name, func(s *user.Storage) bool { return s == nil })
	return err == nil && s == nil, err
}

// awaitAttached waits until storage is attached or has failed, or the time is over, and returns it as
// it is then. It returns nil if the storage is gone.
func (c *storageClient) awaitAttached(ctx context.Context, name string) (*user.Storage, error) {
	return c.await(ctx, name, func(s *user.Storage) bool {
		return s == nil || isAttached(*s) || s.Status == status.Error || s.Life != life.Alive
	})
}

func isAttached(s user.Storage) bool {
	return s.Life == life.Alive && s.Status == status.Attached && s.Location != "" && len(s.Attachments) > 0 && s.SizeMiB >= s.WantedMiB
}

// errSatisfied ends a watch.
const errSatisfied = errors.ConstError("satisfied")

// await waits until the storage satisfies the condition, or the time is over. It returns the storage as
// it is then. Storage that does not exist is nil.
func (c *storageClient) await(ctx context.Context, name string, satisfied func(*user.Storage) bool) (*user.Storage, error) {
	limited, cancel := context.WithTimeout(ctx, c.wait)
	defer cancel()
	select {
	case c.watches <- struct{}{}:
		defer func() { <-c.watches }()
	case <-limited.Done():
		return nil, errors.New("too many requests wait for storage: it is tried again")
	}
	var last *user.Storage
	seen := false
	err := c.stowage.Watch(limited, []string{name}, func(event user.Event) error {
		seen = true
		for i := range event.Storage {
			if event.Storage[i].Name == name {
				last = &event.Storage[i]
			}
		}
		for _, gone := range event.Gone {
			if gone == name {
				last = nil
			}
		}
		if satisfied(last) {
			return errSatisfied
		}
		return nil
	})
	switch {
	case errors.Is(err, errSatisfied):
		return last, nil
	case seen && limited.Err() != nil && ctx.Err() == nil:
		return last, nil
	}
	return nil, errors.Trace(err)
}

// orNotGone returns the error, or one for storage that is not gone in time.
func orNotGone(err error, gone bool) error {
	if err == nil && !gone {
		return errors.New("it is not gone yet")
	}
	return err
}
