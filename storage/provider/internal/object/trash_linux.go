package object

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/capability"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/record"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// trashDir is the directory, in a storage directory, of orphans that were deleted, with their
// records, until they are purged.
const trashDir = ".trash"

// recordSuffix ends the name of a record in the trash. The rest is the name of its object.
const recordSuffix = ".json"

// trashName returns the name in the trash of an object that was put there at the given time.
func trashName(id string, at time.Time) string {
	return fmt.Sprintf("%s-%d", id, at.Unix())
}

// trashedAt returns the time at which the object with the given name was put in the trash.
func trashedAt(name string) (time.Time, bool) {
	seconds, err := strconv.ParseInt(name[strings.LastIndexByte(name, '-')+1:], 10, 64)
	return time.Unix(seconds, 0), err == nil
}

// CheckOwner checks that an object still belongs to the owner that it had when it was
// examined.
func (o Ownership) CheckOwner(owner storage.Owner) error {
	if o.Owner() != owner {
		return errors.NewNotValid(nil, fmt.Sprintf("it belongs to %s, not to %s", describeOwner(o.Owner()), describeOwner(owner)))
	}
	return nil
}

func (c *Call) trashPath() string { return filepath.Join(c.dir, trashDir) }

// makeTrash makes the directory of the trash while there is space for it, because deleting
// must be possible when the disk is full.
func (c *Call) makeTrash() error {
	trash, err := safepath.Make(c.trashPath())
	if err != nil {
		return errors.Trace(IgnoreNoSpace(err))
	}
	trash.Close()
	return nil
}

// Trash moves an object and its record to the trash. It moves the object first, so that an
// interrupted call can be repeated. There need not be an object: a filesystem in memory has
// none.
func (c *Call) Trash(id string, at time.Time) error {
	name := trashName(id, at)
	trash, err := safepath.Make(c.trashPath())
	if err != nil {
		return errors.Trace(err)
	}
	defer trash.Close()
	crash.At("trash made")
	if err := c.Files.Move(id, trash, name); err != nil && !errors.Is(err, unix.ENOENT) {
		return errors.Trace(err)
	}
	crash.At("object moved to the trash")
	if err := safepath.SyncAll(trash, c.Files); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.Records.Move(id, trash, name+recordSuffix))
}

// PurgeTrash removes the objects that were put in the trash before olderThan. If beforehand is
// not nil, it is called before each object is removed, with the object's name and the records
// in the trash, which include its own. PurgeTrash does not make the directory of the trash:
// the disk may be full.
func (c *Call) PurgeTrash(olderThan time.Time, beforehand func(records *record.Store, name string) error) error {
	trash, err := safepath.Open(c.trashPath())
	if errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	defer trash.Close()
	records, err := record.Open(trash.Path())
	if err != nil {
		return errors.Trace(err)
	}
	defer records.Close()
	entries, err := trash.Names()
	if err != nil {
		return errors.Trace(err)
	}
	for _, entry := range entries {
		name := strings.TrimSuffix(entry, recordSuffix)
		at, ok := trashedAt(name)
		if !ok || !at.Before(olderThan) {
			continue
		}
		if err := c.Err(); err != nil {
			return errors.Trace(err)
		}
		if err := purge(trash, records, name, beforehand); err != nil {
			return errors.Annotatef(err, "purging %s", trash.Entry(name))
		}
	}
	return nil
}

func purge(trash *safepath.Dir, records *record.Store, name string, beforehand func(*record.Store, string) error) error {
	if beforehand != nil {
		if err := beforehand(records, name); err != nil && !errors.Is(err, errors.NotFound) {
			return errors.Trace(err)
		}
	}
	if err := Empty(trash, name); err != nil {
		return errors.Trace(err)
	}
	crash.At("object removed from the trash")
	return errors.Trace(records.Remove(name))
}

// Empty removes a file or a tree from a directory of things to remove. It works in a mount of
// its own, which does not show what is mounted within the tree: such a mount is never touched,
// and keeps the tree from being removed.
func Empty(trash *safepath.Dir, name string) error {
	view, err := mount.Clone(trash.File())
	if err != nil {
		return errors.Trace(err)
	}
	defer view.Close()
	if err := os.RemoveAll(filepath.Join(view.Path(), name)); err != nil {
		return errors.Trace(capability.Explain(err, capability.DACOverride, capability.FOwner))
	}
	return errors.Trace(trash.Sync())
}
