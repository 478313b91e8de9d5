package object

import (
	"context"
	"path/filepath"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/record"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// Phase is how far an object has come in its life.
type Phase string

const (
	// PhaseCreating: the object is incomplete.
	PhaseCreating Phase = "creating"
	// PhaseImporting: the object is in its original place, or already in its place here, and
	// must not be destroyed by this provider.
	PhaseImporting Phase = "importing"
	// PhaseReady: the object is complete.
	PhaseReady Phase = "ready"
	// PhaseAttached, PhaseDetaching: a loop device shows the object, or may still show it. Only
	// older versions record the latter.
	PhaseAttached  Phase = "attached"
	PhaseDetaching Phase = "detaching"
	// PhaseDestroying: the object may exist in part. What is left is removed next.
	PhaseDestroying Phase = "destroying"
	// PhaseReleased: the object has no owner until it is imported again.
	PhaseReleased Phase = "released"
)

// Exists reports whether users can use the object.
func (p Phase) Exists() bool {
	return p != PhaseCreating && p != PhaseImporting && p != PhaseDestroying && p != PhaseReleased
}

// Call is one bulk call. It holds the lock on the provider's directory, or locks each object
// while it works on that object.
type Call struct {
	context.Context
	dir     string
	Records *record.Store
	// Files contains the objects themselves, each named by its ID.
	Files *safepath.Dir
	// Dev is the number of the device that contains the files.
	Dev    uint64
	BootID string
	// Mark identifies what was attached or mounted for this directory of records in this boot.
	// A copy of the directory has another mark.
	Mark   string
	unlock func() // nil if each object has its own lock
}

// Locking is what a bulk call locks.
type Locking int

const (
	// WholeDirectory is for short work on many objects.
	WholeDirectory Locking = iota
	// EachObject is for work that may take long for a single object: see [Call.LockObject].
	EachObject
)

// Begin begins a bulk call on the provider's directory dir, whose subdirectory files contains
// the objects. It makes both directories if they do not exist. The caller must call
// [Call.End].
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

// DefaultMountPoint returns the default mount point of a filesystem.
func (c *Call) DefaultMountPoint(id string) (string, error) {
	// The path of a storage directory may contain a symbolic link, that of a mount point must
	// not.
	dir, err := c.Files.RealPath()
	return filepath.Join(dir, id), errors.Trace(err)
}

// IgnoreNoSpace returns nil for the error of a record that could not be saved because there is
// no space, and any other error unchanged. It is for records of removals: removing things must
// continue when the space runs out, and a later call finds out what is left of them.
func IgnoreNoSpace(err error) error {
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
	if c.Records != nil {
		c.Records.Close()
	}
}

// Capacity returns how many MiB are free on the filesystem with the objects of a directory: see
// [Begin].
func Capacity(ctx context.Context, dir, files string) (uint64, error) {
	// The lock on the whole directory would wait for copies.
	c, err := Begin(ctx, dir, files, EachObject)
	if err != nil {
		return 0, errors.Annotate(err, "reading the capacity")
	}
	defer c.End()
	available, err := c.Files.Available()
	return available >> 20, errors.Annotate(err, "reading the capacity")
}

func (c *Call) NoSpace(size, available uint64) error {
	return errors.Annotatef(unix.ENOSPC, "%d MiB needed, %d MiB available in %s", size>>20, available>>20, c.Files.Path())
}

// CheckSize compares the sizes in bytes of an existing object and of the requested one. An
// object with an owner may be larger: it has grown since the backup of the state that requests
// it was made. An object without an owner must have the same size, since it may be another
// object.
func (o Ownership) CheckSize(have, want uint64) error {
	if have == want || have > want && o.Owner().EntityUUID != "" {
		return nil
	}
	return storage.Permanent(errors.Errorf("it already exists with %d MiB, not %d MiB", have>>20, want>>20))
}

func AccessName(readOnly bool) string {
	if readOnly {
		return "read-only"
	}
	return "read-write"
}
