package csi

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/object"

	"golang.org/x/sys/unix"
)

func newVolumeSource(config Config, dir string) (storage.VolumeSource, error) {
	return &volumeSource{source{config, filepath.Join(dir, "volumes")}}, nil
}

// source is what the sources of volumes and of filesystems have in common.
type source struct {
	config Config
	// dir is the directory of this kind of storage, below the storage directory.
	dir string
}

func (s *source) begin(ctx context.Context) (*bulk, error) { return begin(ctx, s.config, s.dir) }

// MaxConcurrentCalls implements [storage.ConcurrentSource].
func (s *source) MaxConcurrentCalls() int { return s.config.AtOnce }

func (s *source) validate(size uint64, attrs map[string]any, resourceTags map[string]string) error {
	if _, err := object.SizeInBytes(size); err != nil {
		return errors.Trace(err)
	}
	if err := checkOwner(storage.OwnerOf(resourceTags)); err != nil {
		return errors.Trace(err)
	}
	_, err := s.config.parse(attrs)
	return errors.Trace(err)
}

// listOwners lists what was made, in any phase.
func (s *source) listOwners(ctx context.Context) ([]storage.OwnedObject, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer c.End()
	return c.ListOwned(func(id string) (storage.OwnedObject, error) {
		v, err := c.load(id)
		if err != nil {
			return storage.OwnedObject{}, errors.Trace(err)
		}
		return storage.OwnedObject{
			ID: id, Size: v.rec.Size >> 20, ResourceTags: v.rec.ResourceTags,
			Attached: v.rec.Staged, Incomplete: !v.rec.Phase.Exists() && v.rec.Phase != object.PhaseReleased,
			Released: v.rec.Phase == object.PhaseReleased,
		}, nil
	})
}

// volumeSource is the source of volumes.
type volumeSource struct{ source }

func volumeKey(p storage.VolumeParams) string              { return p.Tag.String() }
func attachedKey(p storage.VolumeAttachmentParams) string  { return p.VolumeId }
func attachedName(p storage.VolumeAttachmentParams) string { return "volume " + p.Volume.Id() }
func volumeInfo(v *volume) storage.VolumeInfo {
	return storage.VolumeInfo{VolumeId: v.id, Size: v.rec.Size >> 20}
}
func (s *source) onVolumes(verb string) object.Bulk[string] { return s.bulkOf(verb, "volumes") }
func (s *source) bulkOf(verb, objects string) object.Bulk[string] {
	return object.Bulk[string]{Verb: verb, Objects: objects, Name: object.ByID, Key: object.ByID, AtOnce: s.config.AtOnce}
}

func (s *source) onAttachments(verb string) object.Bulk[storage.VolumeAttachmentParams] {
	return object.Bulk[storage.VolumeAttachmentParams]{
		Verb: verb, Objects: "volumes", Name: attachedName, Key: attachedKey, AtOnce: s.config.AtOnce,
	}
}

// ValidateVolumeParams implements [storage.VolumeSource].
func (s *volumeSource) ValidateVolumeParams(p storage.VolumeParams) error {
	return errors.Annotatef(s.validate(p.Size, p.Attributes, p.ResourceTags), "volume %s", p.Tag.Id())
}

// CreateVolumes implements [storage.VolumeSource].
func (s *volumeSource) CreateVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	creating := object.Bulk[storage.VolumeParams]{
		Verb: "creating", Objects: "volumes", Key: volumeKey, AtOnce: s.config.AtOnce,
		Name: func(p storage.VolumeParams) string { return "volume " + p.Tag.Id() },
	}
	return object.Do(ctx, creating, s.begin, params, func(c *bulk, p storage.VolumeParams) (*volume, error) {
		return c.create(wantedVolume(p))
	}, createdVolume)
}

func wantedVolume(p storage.VolumeParams) wanted {
	return wanted{tag: p.Tag, size: p.Size, attributes: p.Attributes, resourceTags: p.ResourceTags, block: true}
}

func createdVolume(p storage.VolumeParams, v *volume, err error) storage.CreateVolumesResult {
	if err != nil {
		return storage.CreateVolumesResult{Error: err}
	}
	return storage.CreateVolumesResult{Volume: &storage.Volume{Tag: p.Tag, VolumeInfo: volumeInfo(v)}}
}

// ListVolumes implements [storage.VolumeSource].
func (s *volumeSource) ListVolumes(ctx envcontext.ProviderCallContext) ([]string, error) {
	all, err := s.listOwners(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "listing volumes")
	}
	ids := make([]string, 0, len(all))
	for _, o := range all {
		if !o.Incomplete && !o.Released {
			ids = append(ids, o.ID)
		}
	}
	return ids, nil
}

// ListVolumeOwners implements [storage.VolumeOwnerLister].
func (s *volumeSource) ListVolumeOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	all, err := s.listOwners(ctx)
	return all, errors.Annotate(err, "listing the owners of volumes")
}

// TagVolumes implements [storage.VolumeTagger].
func (s *volumeSource) TagVolumes(ctx envcontext.ProviderCallContext, tags []storage.ObjectTags) ([]error, error) {
	return object.DoEach(ctx, object.Tagging("volumes"), s.begin, tags, func(c *bulk, t storage.ObjectTags) error { return c.Tag(t) })
}

// DescribeVolumes implements [storage.VolumeSource].
func (s *volumeSource) DescribeVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]storage.DescribeVolumesResult, error) {
	describing := object.Bulk[string]{Verb: "describing", Objects: "volumes", Name: object.ByID}
	return object.Do(ctx, describing, s.begin, ids, func(c *bulk, id string) (*volume, error) {
		v, err := c.load(id)
		if err == nil && !v.rec.Phase.Exists() {
			err = errors.NotFoundf("volume %s", id)
		}
		return v, errors.Trace(err)
	}, func(_ string, v *volume, err error) storage.DescribeVolumesResult {
		if err != nil {
			return storage.DescribeVolumesResult{Error: err}
		}
		info := volumeInfo(v)
		return storage.DescribeVolumesResult{VolumeInfo: &info}
	})
}

// DestroyVolumes implements [storage.VolumeSource].
func (s *volumeSource) DestroyVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return object.DoEach(ctx, s.onVolumes("destroying"), s.begin, ids, func(c *bulk, id string) error {
		return c.withExisting(id, (*volume).destroy)
	})
}

// ReleaseVolumes implements [storage.VolumeSource].
func (s *volumeSource) ReleaseVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.releaseEach(ctx, "volumes", ids)
}

// AttachVolumes implements [storage.VolumeSource].
func (s *volumeSource) AttachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	return object.Do(ctx, s.onAttachments("attaching"), s.begin, params, (*bulk).attachVolume,
		func(p storage.VolumeAttachmentParams, info storage.VolumeAttachmentInfo, err error) storage.AttachVolumesResult {
			if err != nil {
				return storage.AttachVolumesResult{Error: err}
			}
			return storage.AttachVolumesResult{VolumeAttachment: &storage.VolumeAttachment{
				Volume: p.Volume, Machine: p.Machine, VolumeAttachmentInfo: info,
			}}
		})
}

func (c *bulk) attachVolume(p storage.VolumeAttachmentParams) (info storage.VolumeAttachmentInfo, err error) {
	if p.ReadOnly {
		return info, errNotReadOnly()
	}
	err = c.withMade(p.VolumeId, func(v *volume) error {
		found, err := v.publish()
		if err != nil {
			return errors.Trace(err)
		}
		info, err = describeDevice(found.device)
		return errors.Trace(err)
	})
	return info, errors.Trace(err)
}

func errNotReadOnly() error {
	return errors.NewNotSupported(nil, "a CSI driver does not keep a block device from being written: attach it for reading and writing")
}

// describeDevice says how to find the block device with a number.
func describeDevice(number uint64) (storage.VolumeAttachmentInfo, error) {
	device, err := openDevice(number)
	if err != nil {
		return storage.VolumeAttachmentInfo{}, errors.Trace(err)
	}
	defer device.Close()
	info := storage.VolumeAttachmentInfo{DeviceName: strings.TrimPrefix(device.Path(), "/dev/")}
	if id := device.Identity; id.BackingIno != 0 {
		info.BusAddress = storage.LoopBusAddress(id.BackingDev, id.BackingIno)
	}
	return info, nil
}

// openDevice opens the block device with a number, which the driver has published.
func openDevice(number uint64) (*blockdev.Device, error) {
	device, err := blockdev.OpenNumber(unix.Major(number), unix.Minor(number))
	return device, errors.Annotate(err, "the device that the driver has published")
}

// DetachVolumes implements [storage.VolumeSource].
func (s *volumeSource) DetachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]error, error) {
	return object.DoEach(ctx, s.onAttachments("detaching"), s.begin, params, func(c *bulk, p storage.VolumeAttachmentParams) error {
		return c.withExisting(p.VolumeId, (*volume).unpublish)
	})
}

// ResizeVolumes implements [storage.VolumeResizer].
func (s *volumeSource) ResizeVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeResizeParams) ([]storage.ResizeVolumesResult, error) {
	return object.Do(ctx, s.config.resizing(), s.begin, params, func(c *bulk, p storage.VolumeResizeParams) (uint64, error) {
		return c.resize(p.VolumeId, p.Size)
	}, resizedVolume)
}

// resizing is the bulk call that makes volumes larger.
func (c Config) resizing() object.Bulk[storage.VolumeResizeParams] {
	return object.Bulk[storage.VolumeResizeParams]{
		Verb: "resizing", Objects: "volumes", AtOnce: c.AtOnce,
		Name: func(p storage.VolumeResizeParams) string { return "volume " + p.Tag.Id() },
		Key:  func(p storage.VolumeResizeParams) string { return p.VolumeId },
	}
}

func resizedVolume(p storage.VolumeResizeParams, size uint64, err error) storage.ResizeVolumesResult {
	if err != nil {
		return storage.ResizeVolumesResult{Error: err}
	}
	return storage.ResizeVolumesResult{VolumeInfo: &storage.VolumeInfo{VolumeId: p.VolumeId, Size: size}}
}

// resize makes a volume at least size MiB large, and returns its size in MiB.
func (c *bulk) resize(id string, size uint64) (got uint64, err error) {
	wanted, err := object.SizeInBytes(size)
	if err != nil {
		return 0, errors.Trace(err)
	}
	err = c.withMade(id, func(v *volume) error {
		err := v.resize(wanted)
		got = v.rec.Size >> 20
		return errors.Trace(err)
	})
	return got, errors.Trace(err)
}

// CheckVolumes implements [storage.VolumeChecker].
func (s *volumeSource) CheckVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	checking := s.onVolumes("checking")
	checking.Name = nil
	return object.DoEach(ctx, checking, s.begin, ids, func(c *bulk, id string) error {
		return c.withMade(id, (*volume).checkPublished)
	})
}
