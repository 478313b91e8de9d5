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

// ManagedSourceType stands for the managed source where the type of a provider is asked
// for: see [StorageDirectory].
const ManagedSourceType storage.ProviderType = "managed"

// Relocation says how a directory came to be where it is.
type Relocation = object.Relocation

const (
	// Moved: what the directory was moved from is gone.
	Moved = object.Moved

	// Copied: the original may be in use. What is attached or mounted there, and its
	// mount points, are not the copy's.
	Copied = object.Copied
)

// StorageDirectory is a directory in which a provider of this package, or the managed
// source, keeps its objects and their records: the storage directory of a pool, or that
// of [NewManagedFilesystemSource]. Its methods do what an operator asks for, and what no
// worker does by itself. They take turns with the calls of sources.
type StorageDirectory struct {
	// Provider is LoopProviderType, TmpfsProviderType, RootfsProviderType or
	// ManagedSourceType.
	Provider storage.ProviderType

	// Path is absolute. Where there is nothing, there is nothing to do.
	Path string
}

// keeper is what a package of a provider does with a directory.
type keeper struct {
	reidentify func(ctx context.Context, storageDir string, how object.Relocation) error
	trash      func(ctx context.Context, storageDir, id string, owner storage.Owner, at time.Time) error
	purgeTrash func(ctx context.Context, storageDir string, olderThan time.Time) error
}

// keeper returns that of the directory, false where there is no directory.
func (d StorageDirectory) keeper() (keeper, bool, error) {
	k, ok := map[storage.ProviderType]keeper{
		LoopProviderType:   {loop.Reidentify, loop.Trash, loop.PurgeTrash},
		TmpfsProviderType:  {tmpfs.Reidentify, tmpfs.Trash, tmpfs.PurgeTrash},
		RootfsProviderType: {rootfs.Reidentify, rootfs.Trash, rootfs.PurgeTrash},
		ManagedSourceType:  {managed.Reidentify, managed.Trash, managed.PurgeTrash},
	}[d.Provider]
	if !ok {
		return k, false, errors.NewNotValid(nil, fmt.Sprintf("provider %q, which keeps no storage directory,", d.Provider))
	}
	_, err := os.Lstat(d.Path)
	if errors.Is(err, os.ErrNotExist) {
		return k, false, nil
	}
	return k, err == nil, errors.Trace(err)
}

// Reidentify makes the objects of a directory known again after the directory was moved
// to another disk: their files and directories have other inode numbers then, and are
// taken for others. What is found under the name of an object is held against its record:
// the size of a file, the UUID of a filesystem. The error lists the objects that are not
// as recorded, with what to do; all others are known then, and the call can be repeated.
//
// Nothing may be attached from where a directory was that was moved: that is an error as
// well. What is attached of the original of a copy is left alone.
func (d StorageDirectory) Reidentify(ctx context.Context, how Relocation) error {
	k, ok, err := d.keeper()
	if err == nil && ok {
		err = k.reidentify(ctx, d.Path, how)
	}
	return errors.Annotatef(err, "reading %s again", d.Path)
}

// Trash puts an object that is nobody's in the trash of its directory, with its record:
// .trash/ID-TIME, where TIME is at in seconds since 1970. owner is the one that a list of
// owners gave for the object. An object that has since got another owner is left alone: the
// error satisfies errors.IsNotValid. So is one that a loop device shows, or that is mounted
// in any mount namespace: the error says where. An object that is not there satisfies
// errors.IsNotFound. A call that was interrupted can be repeated.
func (d StorageDirectory) Trash(ctx context.Context, id string, owner storage.Owner, at time.Time) error {
	k, ok, err := d.keeper()
	if err == nil && !ok {
		err = errors.NotFoundf("directory %s", d.Path)
	}
	if err == nil {
		err = k.trash(ctx, d.Path, id, owner, at)
	}
	return errors.Annotatef(err, "deleting %s", id)
}

// Delete is Trash for what nobody wants back: it is removed at once. What a call that was
// interrupted leaves in the trash is removed by the next, whose object may be gone.
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

// deletedAtOnce is older than what anybody has put in the trash to be kept for a while.
func deletedAtOnce() time.Time { return time.Unix(0, 0) }

// PurgeTrash removes for good what was put in the trash before a time.
func (d StorageDirectory) PurgeTrash(ctx context.Context, olderThan time.Time) error {
	k, ok, err := d.keeper()
	if err == nil && ok {
		err = k.purgeTrash(ctx, d.Path, olderThan)
	}
	return errors.Annotatef(err, "emptying the trash of %s", d.Path)
}
