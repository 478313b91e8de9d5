package provider

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/record"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// phase says how far an object has come in its life.
type phase string

const (
	// phaseCreating: the object is not complete.
	phaseCreating phase = "creating"
	// phaseImporting: it is where it was before it was taken over, or in its own
	// place already, and is not ours to destroy.
	phaseImporting phase = "importing"
	// phaseReady: it is complete.
	phaseReady phase = "ready"
	// phaseAttached, phaseDetaching: a loop device shows it, or may still.
	phaseAttached  phase = "attached"
	phaseDetaching phase = "detaching"
	// phaseDestroying: it may be there in part. What is left goes away next.
	phaseDestroying phase = "destroying"
)

// exists reports whether the object is there for its users.
func (p phase) exists() bool {
	return p != phaseCreating && p != phaseImporting && p != phaseDestroying
}

// call is one bulk call. It holds the lock on the provider's directory.
type call struct {
	context.Context
	records *record.Store
	// files holds the objects themselves, each under its id.
	files *safepath.Dir
	// dev is the number of the device that the files are on.
	dev    uint64
	bootID string
	unlock func()
}

// begin begins a bulk call on a provider's directory, which it makes where it is
// missing.
func begin(ctx context.Context, dir, files string) (_ *call, err error) {
	c := &call{Context: ctx}
	defer func() {
		if err != nil {
			c.end()
		}
	}()
	if c.records, err = record.Open(filepath.Join(dir, "records")); err != nil {
		return nil, errors.Trace(err)
	}
	if c.unlock, err = c.records.Lock(ctx); err != nil {
		return nil, errors.Trace(err)
	}
	if c.files, err = safepath.Make(filepath.Join(dir, files)); err != nil {
		return nil, errors.Trace(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(c.files.File().Fd()), &st); err != nil {
		return nil, errors.Annotatef(err, "reading %s", c.files.Path())
	}
	c.dev = st.Dev
	if c.bootID, err = record.BootID(); err != nil {
		return nil, errors.Trace(err)
	}
	return c, nil
}

// ownPlace returns the mount point of a filesystem for which nobody chose one.
func (c *call) ownPlace(id string) (string, error) {
	// A storage directory may be reached through a symbolic link, a mount point
	// may not.
	dir, err := c.files.RealPath()
	return filepath.Join(dir, id), errors.Trace(err)
}

// unlessFull makes nothing of the error of saving a record for which there is no
// space. It is for records of what is taken away: removing things must go on
// where the space runs out, and a later call finds out what is left of them.
func unlessFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return nil
	}
	return err
}

func (c *call) end() {
	if c.files != nil {
		c.files.Close()
	}
	if c.unlock != nil {
		c.unlock()
	}
}

// collect carries out a bulk call: one item after another, each with a result or
// an error. Items that are not begun when ctx ends get its error.
func collect[T, R any](ctx context.Context, items []T, do func(T) (R, error)) ([]R, []error) {
	results, failures := make([]R, len(items)), make([]error, len(items))
	for i, item := range items {
		if failures[i] = ctx.Err(); failures[i] == nil {
			results[i], failures[i] = do(item)
		}
	}
	return results, failures
}

func onlyError[T any](do func(T) error) func(T) (struct{}, error) {
	return func(item T) (struct{}, error) { return struct{}{}, do(item) }
}

// maxAtOnce bounds how many objects a bulk call works on at once. Little of that
// work is done by a CPU: it waits for the disk to write, and for the kernel to
// quiesce a device.
const maxAtOnce = 16

// maxWaiting is that bound for work of which most is waiting for the kernel.
const maxWaiting = 4 * maxAtOnce

// collectAtOnce is collect with several objects at once. Items that key gives the
// same object are carried out one after another.
func collectAtOnce[T, R any](ctx context.Context, items []T, key func(T) string, do func(T) (R, error)) ([]R, []error) {
	return collectUpTo(ctx, maxAtOnce, items, key, do)
}

// collectUpTo is collectAtOnce with a bound.
func collectUpTo[T, R any](ctx context.Context, bound int, items []T, key func(T) string, do func(T) (R, error)) ([]R, []error) {
	results, failures := make([]R, len(items)), make([]error, len(items))
	byKey := make(map[string][]int)
	var keys []string
	for i, item := range items {
		k := key(item)
		if byKey[k] == nil {
			keys = append(keys, k)
		}
		byKey[k] = append(byKey[k], i)
	}
	next := make(chan string)
	var workers sync.WaitGroup
	for range min(bound, len(keys)) {
		workers.Go(func() {
			for k := range next {
				for _, i := range byKey[k] {
					if failures[i] = ctx.Err(); failures[i] == nil {
						results[i], failures[i] = do(items[i])
					}
				}
			}
		})
	}
	for _, k := range keys {
		next <- k
	}
	close(next)
	workers.Wait()
	return results, failures
}

// eachAtOnce is collectAtOnce for items that have no result but an error.
func eachAtOnce[T any](ctx context.Context, items []T, key func(T) string, do func(T) error) []error {
	_, failures := collectAtOnce(ctx, items, key, onlyError(do))
	return failures
}

// itself is the key of items that are ids.
func itself(id string) string { return id }

func (c *call) noSpace(size, available uint64) error {
	return errors.Annotatef(unix.ENOSPC, "%d MiB needed, %d MiB available in %s", size>>20, available>>20, c.files.Path())
}

// checkSameSize compares the sizes in bytes of what exists and what is asked for.
func checkSameSize(have, want uint64) error {
	if have != want {
		return storage.Permanent(errors.Errorf("it exists with %d MiB, not %d MiB", have>>20, want>>20))
	}
	return nil
}

func accessName(readOnly bool) string {
	if readOnly {
		return "read-only"
	}
	return "read-write"
}
