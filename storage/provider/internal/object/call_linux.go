package object

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

// Phase says how far an object has come in its life.
type Phase string

const (
	// PhaseCreating: the object is not complete.
	PhaseCreating Phase = "creating"
	// PhaseImporting: it is where it was before it was taken over, or in its own
	// place already, and is not ours to destroy.
	PhaseImporting Phase = "importing"
	// PhaseReady: it is complete.
	PhaseReady Phase = "ready"
	// PhaseAttached, PhaseDetaching: a loop device shows it, or may still.
	PhaseAttached  Phase = "attached"
	PhaseDetaching Phase = "detaching"
	// PhaseDestroying: it may be there in part. What is left goes away next.
	PhaseDestroying Phase = "destroying"
	// PhaseReleased: it is nobody's, until it is imported again.
	PhaseReleased Phase = "released"
)

// Exists reports whether the object is there for its users.
func (p Phase) Exists() bool {
	return p != PhaseCreating && p != PhaseImporting && p != PhaseDestroying && p != PhaseReleased
}

// Call is one bulk call. It holds the lock on the provider's directory, or else on each
// object while it works on that.
type Call struct {
	context.Context
	dir     string
	Records *record.Store
	// Files holds the objects themselves, each under its id.
	Files *safepath.Dir
	// Dev is the number of the device that the files are on.
	Dev    uint64
	BootID string
	// Mark tells what was attached or mounted for this directory of records, in this
	// boot, from all else. A copy of the directory has another.
	Mark   string
	unlock func() // nil where each object has a lock of its own
}

// Locking says what a bulk call locks.
type Locking int

const (
	// WholeDirectory is for work that is short, and on many objects.
	WholeDirectory Locking = iota
	// EachObject is for work that may take long on a single object: see [Call.LockObject].
	EachObject
)

// Begin begins a bulk call on a provider's directory, which it makes where it is
// missing.
func Begin(ctx context.Context, dir, files string, locking Locking) (_ *Call, err error) {
	c := &Call{Context: ctx, dir: dir}
	defer func() {
		if err != nil {
			c.End()
		}
	}()
	if c.Records, err = record.Open(filepath.Join(dir, "records")); err != nil {
		return nil, errors.Trace(err)
	}
	if locking == WholeDirectory {
		if c.unlock, err = c.Records.Lock(ctx); err != nil {
			return nil, errors.Trace(err)
		}
	}
	if c.Files, err = safepath.Make(filepath.Join(dir, files)); err != nil {
		return nil, errors.Trace(err)
	}
	if err := c.Files.Settle(); err != nil {
		return nil, errors.Trace(err)
	}
	if err := c.makeTrash(); err != nil {
		return nil, errors.Trace(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(c.Files.File().Fd()), &st); err != nil {
		return nil, errors.Annotatef(err, "reading %s", c.Files.Path())
	}
	c.Dev = st.Dev
	if c.BootID, err = record.BootID(); err != nil {
		return nil, errors.Trace(err)
	}
	if c.Mark, err = newMark(c.BootID, c.Records.Dir()); err != nil {
		return nil, errors.Trace(err)
	}
	return c, nil
}

// OwnPlace returns the mount point of a filesystem for which nobody chose one.
func (c *Call) OwnPlace(id string) (string, error) {
	// A storage directory may be reached through a symbolic link, a mount point
	// may not.
	dir, err := c.Files.RealPath()
	return filepath.Join(dir, id), errors.Trace(err)
}

// UnlessFull makes nothing of the error of saving a record for which there is no
// space. It is for records of what is taken away: removing things must go on
// where the space runs out, and a later call finds out what is left of them.
func UnlessFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return nil
	}
	return err
}

func (c *Call) End() {
	if c.Files != nil {
		c.Files.Close()
	}
	if c.unlock != nil {
		c.unlock()
	}
}

// Collect carries out a bulk call: one item after another, each with a result or
// an error. Items that are not begun when ctx ends get its error.
func Collect[T, R any](ctx context.Context, items []T, do func(T) (R, error)) ([]R, []error) {
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

// MaxAtOnce bounds how many objects a bulk call works on at once. Little of that
// work is done by a CPU: it waits for the disk to write, and for the kernel to
// quiesce a device.
const MaxAtOnce = 16

// MaxWaiting replaces MaxAtOnce for work that mostly waits for the kernel.
const MaxWaiting = 4 * MaxAtOnce

// CollectAtOnce is collect with several objects at once. Items that key gives the
// same object are carried out one after another.
func CollectAtOnce[T, R any](ctx context.Context, items []T, key func(T) string, do func(T) (R, error)) ([]R, []error) {
	return CollectUpTo(ctx, MaxAtOnce, items, key, do)
}

// CollectUpTo is CollectAtOnce with a bound.
func CollectUpTo[T, R any](ctx context.Context, bound int, items []T, key func(T) string, do func(T) (R, error)) ([]R, []error) {
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

// EachAtOnce is CollectAtOnce for items that have no result but an error.
func EachAtOnce[T any](ctx context.Context, items []T, key func(T) string, do func(T) error) []error {
	return EachUpTo(ctx, MaxAtOnce, items, key, do)
}

// EachUpTo is EachAtOnce with a bound.
func EachUpTo[T any](ctx context.Context, bound int, items []T, key func(T) string, do func(T) error) []error {
	_, failures := CollectUpTo(ctx, bound, items, key, onlyError(do))
	return failures
}

// Itself is the key of items that are ids.
func Itself(id string) string { return id }

func (c *Call) NoSpace(size, available uint64) error {
	return errors.Annotatef(unix.ENOSPC, "%d MiB needed, %d MiB available in %s", size>>20, available>>20, c.Files.Path())
}

// CheckSize compares the sizes in bytes of what exists and what is asked for. What has an
// owner and is larger has grown since the state that asks for it was backed up. What has
// none may be something else.
func (o Ownership) CheckSize(have, want uint64) error {
	if have == want || have > want && o.Owner().EntityUUID != "" {
		return nil
	}
	return storage.Permanent(errors.Errorf("it exists with %d MiB, not %d MiB", have>>20, want>>20))
}

func AccessName(readOnly bool) string {
	if readOnly {
		return "read-only"
	}
	return "read-write"
}
