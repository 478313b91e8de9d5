package loop

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// ListVolumeOwners implements [storage.VolumeOwnerLister].
func (s *source) ListVolumeOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "listing the owners of volumes")
	}
	defer c.End()
	all, err := c.ListOwned(c.owned)
	return all, errors.Annotate(err, "listing the owners of volumes")
}

// TagVolumes implements [storage.VolumeTagger].
func (s *source) TagVolumes(ctx envcontext.ProviderCallContext, tags []storage.ObjectTags) ([]error, error) {
	return object.DoEach(ctx, object.Tagging("volumes"), s.begin, tags, func(c *call, t storage.ObjectTags) error { return c.Tag(t) })
}

// forgetReleased removes the record of a released volume whose file was taken away: the volume
// then belongs to the party that took the file. While the file is still there, the error
// satisfies errors.IsNotValid.
func (c *call) forgetReleased(id string) error {
	has, err := c.Files.Has(id)
	if err == nil && has {
		err = object.ErrReleased(id)
	}
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.Records.Remove(id))
}

// owned describes a volume in any phase.
func (c *call) owned(id string) (storage.OwnedObject, error) {
	none := storage.OwnedObject{}
	var rec record
	if err := c.Records.Load(id, &rec); err != nil {
		return none, errors.Trace(err)
	}
	if rec.Phase == object.PhaseReleased {
		err := c.forgetReleased(id)
		if err == nil {
			return none, errors.NotFoundf("volume %s", id)
		} else if !errors.Is(err, errors.NotValid) {
			return none, errors.Trace(err)
		}
	}
	devices, err := c.devices(id, rec)
	if err != nil {
		return none, errors.Trace(err)
	}
	return storage.OwnedObject{
		ID:           id,
		Size:         rec.Size >> 20,
		ResourceTags: rec.ResourceTags,
		Attached:     len(devices) > 0,
		Incomplete:   !rec.Phase.Exists() && rec.Phase != object.PhaseReleased,
		Released:     rec.Phase == object.PhaseReleased,
		Path:         c.Files.Entry(id),
	}, nil
}
