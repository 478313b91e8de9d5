package managed

import (
	"fmt"
	"slices"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/superblock"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
	"github.com/stowage-io/stowage/storage/provider/internal/fsuuid"
	"github.com/stowage-io/stowage/storage/provider/internal/mkfs"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// adoptCopy takes over the copy of a filesystem that a new volume has, and gives it the UUID of its
// entity in place of that of the original. If it was interrupted, it is called again: there is no
// record before the filesystem has its UUID. If the original had no filesystem yet, one is made.
func (f *filesystem) adoptCopy(choice fsattr.Choice) error {
	own := storage.OwnerOf(f.rec.ResourceTags).EntityUUID
	if own == "" {
		return errors.NewNotValid(nil, "resource tag "+storage.EntityUUIDTag+" is missing: a copy of a filesystem needs a UUID")
	}
	found, err := signature.ReadSuperblock(f.dev.File)
	if err != nil {
		return errors.Annotatef(err, "reading %s", f.dev.Path())
	}
	switch {
	case found.Type == "":
		choice.Copied = false
		return f.makeNew(choice) // only if the device is blank
	case !slices.Contains(mkfs.Names(), found.Type):
		return storage.Permanent(errors.NewNotValid(nil, fmt.Sprintf("%s holds a copy of %s: only %s can be used",
			f.dev.Path(), found, strings.Join(mkfs.Names(), ", "))))
	case !choice.AnyType && found.Type != choice.Type.Name:
		return storage.Permanent(errors.Errorf("%s holds a copy of %s, not of %s: set attribute %q to %q",
			f.dev.Path(), found, choice.Type.Name, fsattr.Type, found.Type))
	}
	if err := fsattr.CheckMount(found.Type, choice.Mount); err != nil {
		return errors.Trace(err)
	}
	if err := checkFree(f.dev); err != nil {
		return errors.Annotate(err, "giving the copied filesystem a UUID of its own")
	}
	f.formatted = true
	if err := fsuuid.Set(f.call, f.dev.File, found.Type, own); err != nil {
		return errors.Trace(err)
	}
	crash.At("UUID changed")
	size, err := superblock.FilesystemSize(f.dev.File)
	if err != nil {
		return errors.Trace(err)
	}
	f.rec.Type, f.rec.UUID, f.rec.MountOptions = found.Type, own, choice.Mount
	f.rec.Size = min(size, f.dev.Size) // the volume may be larger than the original
	return f.finish()
}
