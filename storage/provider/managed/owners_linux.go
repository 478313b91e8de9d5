package managed

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// ListFilesystemOwners implements [storage.FilesystemOwnerLister]. It omits released
// filesystems: releasing one removes its record and leaves only the data on its volume.
func (s *source) ListFilesystemOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "listing the owners of filesystems")
	}
	defer c.End()
	all, err := c.ListOwned(c.owned)
	return all, errors.Annotate(err, "listing the owners of filesystems")
}

// TagFilesystems implements [storage.FilesystemTagger].
func (s *source) TagFilesystems(ctx envcontext.ProviderCallContext, tags []storage.ObjectTags) ([]error, error) {
	return object.DoEach(ctx, object.Tagging("filesystems"), s.begin, tags, func(c *call, t storage.ObjectTags) error { return c.Tag(t) })
}

// owned describes a filesystem in any phase. It does not look at the device.
func (c *call) owned(id string) (storage.OwnedObject, error) {
	var rec record
	if err := c.Records.Load(id, &rec); err != nil {
		return storage.OwnedObject{}, errors.Trace(err)
	}
	table, err := c.Table()
	if err != nil {
		return storage.OwnedObject{}, errors.Trace(err)
	}
	at := table.At(rec.MountPoint)
	return storage.OwnedObject{
		ID:           id,
		Size:         uint64(rec.Size) >> 20,
		ResourceTags: rec.ResourceTags,
		Attached:     at != nil && rec.shows(at, c.BootID),
		Incomplete:   rec.Phase != object.PhaseReady,
	}, nil
}
