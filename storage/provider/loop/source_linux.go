package loop

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

func newSource(dir string) (storage.VolumeSource, error) {
	return &source{dir: dir}, nil
}

type source struct {
	dir     string
	remarks object.Remarks // on attached volumes
}

// filesDir is the directory of the volumes' files within the source's directory.
const filesDir = "volumes"

// record is the stored record of a volume, under its ID.
type record struct {
	Size  uint64       `json:"size"` // bytes
	Phase object.Phase `json:"phase"`

	Allocation allocation `json:"allocation,omitempty"`

	// Growing is the size in bytes that a growing volume will get, or 0. The size of the file
	// is between Size and Growing, and no device shows more of the file than Size.
	Growing uint64 `json:"growing,omitempty"`

	// ImportedFrom is the path that the file had before it was taken over, or the path of the
	// file that it is a copy of.
	ImportedFrom string `json:"imported-from,omitempty"`

	// CopyOf is the identity of the file that this file is a copy of, or nil.
	CopyOf *object.Identity `json:"copy-of,omitempty"`

	// Identity is the identity of the backing file, once the file exists.
	object.Identity
	object.Ownership

	// Device, DiskSeq and ReadOnly describe the attachment, if any. The sequence number is
	// valid within the boot of the identity.
	Device   string `json:"device,omitempty"`
	DiskSeq  uint64 `json:"diskseq,omitempty"`
	ReadOnly bool   `json:"read-only,omitempty"`

	// SectorSize is the sector size of the volume's devices, in bytes, from the first
	// attachment on: filesystems and partition tables may not work with another.
	SectorSize uint32 `json:"sector-size,omitempty"`
}

func (r record) info(id string) storage.VolumeInfo {
	return storage.VolumeInfo{VolumeId: id, Size: r.Size >> 20}
}

// call is one bulk call on volumes. It may work on several volumes at once.
type call struct {
	*object.Call
	// scan returns the loop devices. It reads them once, when they are first needed.
	scan func() (*loopdev.Table, error)
	// attaching is held while a call takes a free loop device: only one can do so at a time.
	attaching sync.Mutex
	// space is the space that is left for volumes in creation.
	space   space
	remarks *object.Remarks
}

// space divides the free space of the filesystem among the volumes that are being made at
// once. Until they are complete, the filesystem's own figure for free space is misleading,
// because each volume has only a part of its blocks. Without reservations all volumes could
// fail where some would fit.
type space struct {
	mu        sync.Mutex
	making    int
	available uint64
}

// take reserves size bytes.
func (s *space) take(c *object.Call, size uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.making == 0 {
		available, err := c.Files.Available()
		if err != nil {
			return errors.Trace(err)
		}
		s.available = available
	}
	if s.available < size {
		return c.NoSpace(size, s.available)
	}
	s.available -= size
	s.making++
	return nil
}

// done ends a reservation of take. made reports that the space is used.
func (s *space) done(size uint64, made bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.making--
	if !made {
		s.available += size
	}
}

func (s *source) begin(ctx context.Context) (*call, error) {
	c, err := object.Begin(ctx, s.dir, filesDir, object.WholeDirectory)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return &call{Call: c, scan: sync.OnceValues(loopdev.Scan), remarks: &s.remarks}, nil
}

// VolumeFile implements [storage.FileVolumes].
func (s *source) VolumeFile(volumeId string) string {
	return filepath.Join(s.dir, filesDir, volumeId)
}

// ValidateVolumeParams implements [storage.VolumeSource].
func (s *source) ValidateVolumeParams(p storage.VolumeParams) error {
	_, err := object.SizeInBytes(p.Size)
	if err == nil {
		_, err = parseAllocation(p.Attributes)
	}
	return errors.Annotatef(err, "volume %s", p.Tag.Id())
}

// CreateVolumes implements [storage.VolumeSource].
func (s *source) CreateVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "creating volumes")
	}
	defer c.End()
	volumes, failures := object.CollectAtOnce(ctx, params, func(p storage.VolumeParams) string { return p.Tag.String() }, c.create)
	results := make([]storage.CreateVolumesResult, len(params))
	for i, p := range params {
		if failures[i] != nil {
			results[i].Error = errors.Annotatef(failures[i], "creating volume %s", p.Tag.Id())
			continue
		}
		results[i].Volume = &storage.Volume{Tag: p.Tag, VolumeInfo: volumes[i]}
	}
	return results, nil
}

// ListVolumes implements [storage.VolumeSource].
func (s *source) ListVolumes(ctx envcontext.ProviderCallContext) ([]string, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "listing volumes")
	}
	defer c.End()
	ids, err := c.Records.List()
	if err != nil {
		return nil, errors.Annotate(err, "listing volumes")
	}
	var existing []string
	_, failures := object.Collect(ctx, ids, c.describe)
	for i, err := range failures {
		switch {
		case err == nil:
			existing = append(existing, ids[i])
		case !errors.Is(err, errors.NotFound) && !storage.IsPermanent(err):
			return nil, errors.Annotate(err, "listing volumes")
		}
	}
	return existing, nil
}

// DescribeVolumes implements [storage.VolumeSource].
func (s *source) DescribeVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]storage.DescribeVolumesResult, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "describing volumes")
	}
	defer c.End()
	infos, failures := object.Collect(ctx, ids, c.describe)
	results := make([]storage.DescribeVolumesResult, len(ids))
	for i, id := range ids {
		if failures[i] != nil {
			results[i].Error = errors.Annotatef(failures[i], "describing %s", id)
			continue
		}
		results[i].VolumeInfo = &infos[i]
	}
	return results, nil
}

// DestroyVolumes implements [storage.VolumeSource].
func (s *source) DestroyVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "destroying volumes")
	}
	defer c.End()
	return object.EachAtOnce(ctx, ids, object.ByID, func(id string) error {
		return errors.Annotatef(c.destroy(id), "destroying %s", id)
	}), nil
}

// ReleaseVolumes implements [storage.VolumeSource]. It keeps the volumes' files, and their
// records, which say that the volumes were released.
func (s *source) ReleaseVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "releasing volumes")
	}
	defer c.End()
	return object.EachAtOnce(ctx, ids, object.ByID, func(id string) error {
		return errors.Annotatef(c.release(id), "releasing %s", id)
	}), nil
}

// AttachVolumes implements [storage.VolumeSource].
func (s *source) AttachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "attaching volumes")
	}
	defer c.End()
	// Changing a device makes the kernel wait until all CPUs have passed through a quiescent
	// state.
	devices, failures := object.CollectUpTo(ctx, object.MaxWaiting, params, attachedVolume, func(p storage.VolumeAttachmentParams) (loopdev.Device, error) {
		return c.attach(p.VolumeId, p.ReadOnly)
	})
	results := make([]storage.AttachVolumesResult, len(params))
	for i, p := range params {
		if failures[i] != nil {
			results[i].Error = errors.Annotatef(failures[i], "attaching volume %s", p.Volume.Id())
			continue
		}
		d := devices[i]
		results[i].VolumeAttachment = &storage.VolumeAttachment{
			Volume:  p.Volume,
			Machine: p.Machine,
			VolumeAttachmentInfo: storage.VolumeAttachmentInfo{
				DeviceName: d.Name(),
				BusAddress: storage.LoopBusAddress(d.File.Dev, d.File.Ino),
				ReadOnly:   d.ReadOnly,
			},
		}
	}
	return results, nil
}

func attachedVolume(p storage.VolumeAttachmentParams) string { return p.VolumeId }

// VolumeRemark implements [storage.VolumeRemarker].
func (s *source) VolumeRemark(id string) string {
	return s.remarks.Of(id)
}

// ResizeVolumes implements [storage.VolumeResizer].
func (s *source) ResizeVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeResizeParams) ([]storage.ResizeVolumesResult, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "resizing volumes")
	}
	defer c.End()
	infos, failures := object.CollectAtOnce(ctx, params, resizedVolume, func(p storage.VolumeResizeParams) (storage.VolumeInfo, error) {
		size, err := object.SizeInBytes(p.Size)
		if err != nil {
			return storage.VolumeInfo{}, errors.Trace(err)
		}
		return c.resize(p.VolumeId, size)
	})
	results := make([]storage.ResizeVolumesResult, len(params))
	for i, p := range params {
		if failures[i] != nil {
			results[i].Error = errors.Annotatef(failures[i], "resizing volume %s", p.Tag.Id())
			continue
		}
		results[i].VolumeInfo = &infos[i]
	}
	return results, nil
}

func resizedVolume(p storage.VolumeResizeParams) string { return p.VolumeId }

// DetachVolumes implements [storage.VolumeSource].
func (s *source) DetachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]error, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "detaching volumes")
	}
	defer c.End()
	// The kernel takes 40 ms to remove a device's number, and only waits in that time.
	return object.EachUpTo(ctx, object.MaxWaiting, params, attachedVolume, func(p storage.VolumeAttachmentParams) error {
		return errors.Annotatef(c.detach(p.VolumeId), "detaching volume %s", p.Volume.Id())
	}), nil
}
