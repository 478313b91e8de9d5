package provider

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/loop"
	"github.com/stowage-io/stowage/storage/provider/managed"
	"github.com/stowage-io/stowage/storage/provider/rootfs"
	"github.com/stowage-io/stowage/storage/provider/tmpfs"
)

// ManagedSourceType names the managed source in places that take the type of a provider: see
// [StorageDirectory].
const ManagedSourceType storage.ProviderType = "managed"

// Relocation says how a directory came to its present place.
type Relocation = object.Relocation

const (
	// Moved: the directory was moved, and no longer exists at its former place.
	Moved = object.Moved

	// Copied: the directory is a copy, and the original may be in use. The original's
	// attachments and mounts, and its mount points, do not belong to the copy.
	Copied = object.Copied
)

// Footprint is what a machine has of an object: see [StorageDirectory.Look].
type Footprint = object.Footprint

// Usage is how much of a filesystem is used.
type Usage = object.Usage

// Holder is a process, or an object in the kernel, that uses an object of a provider.
type Holder = object.Holder

// StorageDirectory is a directory in which a provider of this package, or the managed source,
// keeps its objects and their records: the storage directory of a pool, or that of
// [NewManagedFilesystemSource]. Its methods carry out requests of an operator that no worker
// makes by itself. They are safe to call while sources are in use: they take the same locks as
// the calls of sources.
type StorageDirectory struct {
	// Provider is LoopProviderType, TmpfsProviderType, RootfsProviderType or
	// ManagedSourceType.
	Provider storage.ProviderType

	// Path is absolute. If nothing exists there, there is nothing to do.
	Path string
}

// directoryOps holds the functions of a provider's package that work on a directory.
type directoryOps struct {
	reidentify func(ctx context.Context, storageDir string, how object.Relocation) error
	trash      func(ctx context.Context, storageDir, id string, owner storage.Owner, at time.Time) error
	purgeTrash func(ctx context.Context, storageDir string, olderThan time.Time) error
	look       func(ctx context.Context, storageDir, id string) (*Footprint, error)
}

// operations returns the functions for the directory, and false if the directory does not
// exist.
func (d StorageDirectory) operations() (directoryOps, bool, error) {
	ops, ok := map[storage.ProviderType]directoryOps{
		LoopProviderType:   {loop.Reidentify, loop.Trash, loop.PurgeTrash, loop.Look},
		TmpfsProviderType:  {tmpfs.Reidentify, tmpfs.Trash, tmpfs.PurgeTrash, tmpfs.Look},
		RootfsProviderType: {rootfs.Reidentify, rootfs.Trash, rootfs.PurgeTrash, rootfs.Look},
		ManagedSourceType:  {managed.Reidentify, managed.Trash, managed.PurgeTrash, managed.Look},
	}[d.Provider]
	if !ok {
		return ops, false, errors.NewNotValid(nil, fmt.Sprintf("provider %q has no storage directory", d.Provider))
	}
	_, err := os.Lstat(d.Path)
	if errors.Is(err, os.ErrNotExist) {
		return ops, false, nil
	}
	return ops, err == nil, errors.Trace(err)
}

// Reidentify updates the records of a directory that was moved to another disk. The files and
// directories of its objects have other inode numbers there, so the sources no longer
// recognise them. Reidentify compares what it finds under the name of an object with the
// object's record: the size of a file, the UUID of a filesystem. The error lists the objects
// that do not match their records, and what to do. All other objects are recognised
// afterwards, and the call can be repeated.
//
// If the directory was moved, nothing may still be attached from its former place: that is an
// error too. If it was copied, Reidentify leaves alone what is attached from the original.
func (d StorageDirectory) Reidentify(ctx context.Context, how Relocation) error {
	ops, ok, err := d.operations()
	if err == nil && ok {
		err = ops.reidentify(ctx, d.Path, how)
	}
	return errors.Annotatef(err, "reading %s again", d.Path)
}

// Trash moves an object that no state needs, such as an orphan, with its record, to the trash
// of its directory: .trash/ID-TIME, where TIME is at in seconds since 1970. owner is the owner
// that the source listed for the object. If the object has another owner now, Trash leaves it
// alone, and the error satisfies errors.IsNotValid. Trash also leaves alone an object that a
// loop device shows, or that is mounted in any mount namespace; the error says where. If the
// object does not exist, the error satisfies errors.IsNotFound. An interrupted call can be
// repeated.
func (d StorageDirectory) Trash(ctx context.Context, id string, owner storage.Owner, at time.Time) error {
	ops, ok, err := d.operations()
	if err == nil && !ok {
		err = errors.NotFoundf("directory %s", d.Path)
	}
	if err == nil {
		err = ops.trash(ctx, d.Path, id, owner, at)
	}
	return errors.Annotatef(err, "deleting %s", id)
}

// Delete removes an object at once. Its contract is that of Trash, but the object cannot be
// recovered. If a call is interrupted, the next call removes what it left in the trash, even
// if its own object no longer exists.
func (d StorageDirectory) Delete(ctx context.Context, id string, owner storage.Owner) error {
	notFound := d.Trash(ctx, id, owner, deletedAtOnce())
	if notFound != nil && !errors.Is(notFound, errors.NotFound) {
		return errors.Trace(notFound)
	}
	if err := d.PurgeTrash(ctx, deletedAtOnce().Add(time.Second)); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(notFound)
}

// Look returns what the machine has of an object, in any phase. It changes nothing, and takes no lock:
// it shows an object that an operation works on at the same time as it finds it. If the object does
// not exist, the error satisfies errors.IsNotFound.
func (d StorageDirectory) Look(ctx context.Context, id string) (*Footprint, error) {
	ops, ok, err := d.operations()
	if err == nil && !ok {
		err = errors.NotFoundf("directory %s", d.Path)
	}
	if err != nil {
		return nil, errors.Trace(err)
	}
	found, err := ops.look(ctx, d.Path, id)
	return found, errors.Annotatef(err, "looking at %s", id)
}

// Usage returns how much of a filesystem is used, as [Footprint.Usage] does, at less cost. It is false for a
// volume, and for a filesystem that is not mounted as it was attached.
func (d StorageDirectory) Usage(ctx context.Context, id string) (_ Usage, ok bool, err error) {
	if d.Provider == LoopProviderType {
		return Usage{}, false, nil
	}
	if _, exists, err := d.operations(); err != nil || !exists {
		return Usage{}, false, errors.Trace(err)
	}
	usage, ok, err := usageOf(ctx, d, id)
	return usage, ok, errors.Annotatef(err, "measuring %s", id)
}

// deletedAtOnce is the time under which Delete moves objects to the trash. It is older than
// the time of any object that was put in the trash to be kept for a while.
func deletedAtOnce() time.Time { return time.Unix(0, 0) }

// PurgeTrash permanently removes what was put in the trash before olderThan.
func (d StorageDirectory) PurgeTrash(ctx context.Context, olderThan time.Time) error {
	ops, ok, err := d.operations()
	if err == nil && ok {
		err = ops.purgeTrash(ctx, d.Path, olderThan)
	}
	return errors.Annotatef(err, "emptying the trash of %s", d.Path)
}
