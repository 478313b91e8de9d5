package managed

import (
	"fmt"
	"slices"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
	"github.com/stowage-io/stowage/storage/provider/internal/mkfs"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// adopt takes over the existing filesystem on the volume. It writes nothing to the device.
func (f *filesystem) adopt(choice fsattr.Choice) error {
	found, err := signature.ReadSuperblock(f.dev.File)
	if err != nil {
		return errors.Annotatef(err, "reading %s", f.dev.Path())
	}
	switch {
	case found.UUID != choice.UUID:
		return storage.Permanent(errors.Errorf("%s of %s holds %s, not a filesystem with UUID %s: nothing was written; use the UUID that blkid reports",
			f.dev.Path(), f.rec.Volume, found, choice.UUID))
	case !choice.AnyType && found.Type != choice.Type.Name:
		return storage.Permanent(errors.Errorf("%s holds %s, not %s: nothing was written; set attribute %q to %q",
			f.dev.Path(), found, choice.Type.Name, fsattr.Type, found.Type))
	}
	if err := fsattr.CheckMount(found.Type, choice.Mount); err != nil {
		return errors.Trace(err)
	}
	f.rec.MountOptions = choice.Mount
	return f.takeOver(found)
}

// takeOver records a filesystem that this source did not make.
func (f *filesystem) takeOver(found signature.Signature) error {
	if !slices.Contains(mkfs.Names(), found.Type) {
		return errors.NewNotValid(nil, fmt.Sprintf("%s holds %s: only %s can be taken over",
			f.dev.Path(), found, strings.Join(mkfs.Names(), ", ")))
	}
	known, owner, err := f.call.ownerOf(found.UUID)
	if err != nil {
		return errors.Trace(err)
	}
	own := storage.OwnerOf(f.rec.ResourceTags)
	returns := own.EntityUUID != "" && owner == own // it was on this machine before, and left while the machine was off
	if known != "" && !returns {
		return errors.NewNotValid(nil, fmt.Sprintf("%s with UUID %s is already in use as %s: remove that filesystem first", found.Type, found.UUID, known))
	}
	if err := checkFree(f.dev); err != nil {
		return errors.Annotate(err, "taking over the filesystem (unmount it first)")
	}
	if known != "" {
		// Not before: the record is what shows that a mount is ours.
		if err := f.call.Records.Remove(known); err != nil {
			return errors.Annotatef(err, "replacing the record of %s", known)
		}
	}
	f.rec.Type, f.rec.UUID, f.rec.Size = found.Type, found.UUID, f.dev.Size
	return f.ready()
}

// ownerOf returns the ID and the owner of the filesystem that has a UUID, or "".
func (c *call) ownerOf(uuid string) (id string, owner storage.Owner, err error) {
	ids, err := c.Records.List()
	if err != nil {
		return "", owner, errors.Trace(err)
	}
	for _, id := range ids {
		f, err := c.load(id)
		if errors.Is(err, errors.NotFound) {
			continue
		} else if err != nil {
			return "", owner, errors.Trace(err)
		}
		if f.rec.UUID == uuid {
			return id, storage.OwnerOf(f.rec.ResourceTags), nil
		}
	}
	return "", owner, nil
}

// ImportFilesystem implements [storage.FilesystemImporter]. It takes over the filesystem whose
// UUID is the ID. The device must not be in use. The filesystem then belongs to the owner that
// the resource tags name, and its new ID contains the owner's UUID. A filesystem that belongs
// to another owner is refused.
func (s *source) ImportFilesystem(ctx envcontext.ProviderCallContext, id string, resourceTags map[string]string) (storage.FilesystemInfo, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return storage.FilesystemInfo{}, errors.Annotatef(err, "importing filesystem %s", id)
	}
	defer c.End()
	info, err := c.importUUID(id, resourceTags)
	return info, errors.Annotatef(err, "importing filesystem %s", id)
}

func (c *call) importUUID(text string, resourceTags map[string]string) (storage.FilesystemInfo, error) {
	none := storage.FilesystemInfo{}
	uuid, err := fsattr.CanonicalUUID(text)
	if err != nil {
		return none, errors.Trace(err)
	}
	id, err := object.NewID(uuid, storage.OwnerOf(resourceTags))
	if err != nil {
		return none, errors.Trace(err)
	}
	known, _, err := c.ownerOf(uuid)
	if err != nil {
		return none, errors.Trace(err)
	}
	if known != "" {
		return c.importKnown(known, known == id, resourceTags)
	}
	devices, err := c.findAll(uuid)
	if err != nil {
		return none, errors.Trace(err)
	}
	unlock, err := c.LockObject(id)
	if err != nil {
		return none, errors.Trace(err)
	}
	defer unlock()
	f := &filesystem{id: id, call: c, rec: record{UUID: uuid, Ownership: object.Ownership{ResourceTags: resourceTags}}}
	defer f.close()
	if err := f.open(devices[uuid]); err != nil {
		return none, errors.Trace(err)
	}
	if err := f.dev.Lock(c); err != nil {
		return none, errors.Trace(err)
	}
	found, err := signature.ReadSuperblock(f.dev.File)
	if err != nil {
		return none, errors.Annotatef(err, "reading %s", f.dev.Path())
	}
	if found.UUID != uuid {
		return none, errors.Errorf("%s now holds %s", f.dev.Path(), found)
	}
	if err := f.takeOver(found); errors.Is(err, blockdev.ErrInUse) {
		return none, errors.WithType(err, errors.NotValid)
	} else if err != nil {
		return none, errors.Trace(err)
	}
	return f.info(), nil
}

// importKnown gives a filesystem that already has a record to the importer. Either the
// filesystem belongs to the importer already, or an older version imported or made it.
func (c *call) importKnown(id string, isImport bool, resourceTags map[string]string) (storage.FilesystemInfo, error) {
	none := storage.FilesystemInfo{}
	unlock, err := c.lock(id)
	if err != nil {
		return none, errors.Trace(err)
	}
	defer unlock()
	f, err := c.load(id)
	if err != nil {
		return none, errors.Trace(err)
	}
	if err := f.rec.CheckImport(id, f.rec.Phase, resourceTags); err != nil {
		return none, errors.Trace(err)
	}
	if !isImport && storage.OwnerOf(resourceTags).EntityUUID == "" {
		return none, errors.NewNotValid(nil, fmt.Sprintf("%s with UUID %s is already in use as %s: remove that filesystem first", f.rec.Type, f.rec.UUID, id))
	}
	if f.rec.Adopt(resourceTags) {
		if err := f.Save(); err != nil {
			return none, errors.Trace(err)
		}
	}
	return f.info(), nil
}
