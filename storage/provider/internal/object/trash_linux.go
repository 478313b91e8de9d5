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

// trashDir is where in a storage directory objects are that were deleted as nobody's,
// with their records, until they are purged.
const trashDir = ".trash"

// recordSuffix ends the name of a record in the trash, beside its object.
const recordSuffix = ".json"

// trashName is the name of an object that was put in the trash at a time.
func trashName(id string, at time.Time) string {
	return fmt.Sprintf("%s-%d", id, at.Unix())
}

// trashedAt returns when what has a name in the trash was put there.
func trashedAt(name string) (time.Time, bool) {
	seconds, err := strconv.ParseInt(name[strings.LastIndexByte(name, '-')+1:], 10, 64)
	return time.Unix(seconds, 0), err == nil
}

// CheckOwner makes sure that an object is still whose it was when it was looked at.
func (o Ownership) CheckOwner(owner storage.Owner) error {
	if o.Owner() != owner {
		return errors.NewNotValid(nil, fmt.Sprintf("it belongs to %s, not to %s", describeOwner(o.Owner()), describeOwner(owner)))
	}
	return nil
}

func (c *Call) trashPath() string { return filepath.Join(c.dir, trashDir) }

// makeTrash makes the directory of the trash while there is space for it: deleting must
// be possible when the disk is full.
func (c *Call) makeTrash() error {
	trash, err := safepath.Make(c.trashPath())
	if err != nil {
		return errors.Trace(UnlessFull(err))
	}
	trash.Close()
	return nil
}

// Trash moves an object and its record to the trash. The object goes first: a call that
// was interrupted can be repeated. There may be no object, as of a filesystem in memory.
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

// PurgeTrash removes what was put in the trash before a time. beforehand, if not nil, is
// called for each object, with the records in the trash and its own among them. No trash
// is made: the disk may be full.
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

// Empty removes a file or a tree from a directory for what is to be removed. It goes
// through a mount of its own, which shows nothing of what may be mounted within the tree:
// that is never touched, and keeps the tree from going away.
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
