package loop

import (
	"context"
	"path/filepath"
	"sync"
	"time"

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

	// TakenAt is when a snapshot was begun.
	TakenAt time.Time `json:"taken-at,omitzero"`

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
	// probe checks once whether loop devices can be attached.
	probe func() error
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
	return &call{Call: c, scan: sync.OnceValues(loopdev.Scan), probe: sync.OnceValue(loopdev.Probe), remarks: &s.remarks}, nil
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
	creating := object.Bulk[storage.VolumeParams]{
		Verb: "creating", Objects: "volumes",
		Name: func(p storage.VolumeParams) string { return "volume " + p.Tag.Id() },
		Key:  func(p storage.VolumeParams) string { return p.Tag.String() },
	}
	return object.Do(ctx, creating, s.begin, params, (*call).create, func(p storage.VolumeParams, info storage.VolumeInfo, err error) storage.CreateVolumesResult {
		if err != nil {
			return storage.CreateVolumesResult{Error: err}
		}
		return storage.CreateVolumesResult{Volume: &storage.Volume{Tag: p.Tag, VolumeInfo: info}}
	})
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
	describing := object.Bulk[string]{Verb: "describing", Objects: "volumes", Name: object.ByID}
	return object.Do(ctx, describing, s.begin, ids, (*call).describe, func(_ string, info storage.VolumeInfo, err error) storage.DescribeVolumesResult {
		if err != nil {
			return storage.DescribeVolumesResult{Error: err}
		}
		return storage.DescribeVolumesResult{VolumeInfo: &info}
	})
}

// DestroyVolumes implements [storage.VolumeSource].
func (s *source) DestroyVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	destroying := object.Bulk[string]{Verb: "destroying", Objects: "volumes", Name: object.ByID, Key: object.ByID}
	return object.DoEach(ctx, destroying, s.begin, ids, (*call).destroy)
}

// ReleaseVolumes implements [storage.VolumeSource]. It keeps the volumes' files, and their
// records, which say that the volumes were released.
func (s *source) ReleaseVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	releasing := object.Bulk[string]{Verb: "releasing", Objects: "volumes", Name: object.ByID, Key: object.ByID}
	return object.DoEach(ctx, releasing, s.begin, ids, (*call).release)
}

// onAttachments describes a bulk call on attachments. Changing a device makes the kernel wait
// until all CPUs have passed through a quiescent state, and removing its number takes 40 ms.
func onAttachments(verb string) object.Bulk[storage.VolumeAttachmentParams] {
	return object.Bulk[storage.VolumeAttachmentParams]{
		Verb: verb, Objects: "volumes",
		Name:   func(p storage.VolumeAttachmentParams) string { return "volume " + p.Volume.Id() },
		Key:    func(p storage.VolumeAttachmentParams) string { return p.VolumeId },
		AtOnce: object.MaxWaiting,
	}
}

// AttachVolumes implements [storage.VolumeSource].
func (s *source) AttachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	return object.Do(ctx, onAttachments("attaching"), s.begin, params,
		func(c *call, p storage.VolumeAttachmentParams) (loopdev.Device, error) {
			return c.attach(p.VolumeId, p.ReadOnly)
		},
		func(p storage.VolumeAttachmentParams, d loopdev.Device, err error) storage.AttachVolumesResult {
			if err != nil {
				return storage.AttachVolumesResult{Error: err}
			}
			return storage.AttachVolumesResult{VolumeAttachment: &storage.VolumeAttachment{
				Volume:  p.Volume,
				Machine: p.Machine,
				VolumeAttachmentInfo: storage.VolumeAttachmentInfo{
					DeviceName: d.Name(),
					BusAddress: storage.LoopBusAddress(d.File.Dev, d.File.Ino),
					ReadOnly:   d.ReadOnly,
				},
			}}
		})
}

// DetachVolumes implements [storage.VolumeSource].
func (s *source) DetachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]error, error) {
	return object.DoEach(ctx, onAttachments("detaching"), s.begin, params, func(c *call, p storage.VolumeAttachmentParams) error {
		return c.detach(p.VolumeId)
	})
}

// VolumeRemark implements [storage.VolumeRemarker].
func (s *source) VolumeRemark(id string) string {
	return s.remarks.Of(id)
}

// ResizeVolumes implements [storage.VolumeResizer].
func (s *source) ResizeVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeResizeParams) ([]storage.ResizeVolumesResult, error) {
	resizing := object.Bulk[storage.VolumeResizeParams]{
		Verb: "resizing", Objects: "volumes",
		Name: func(p storage.VolumeResizeParams) string { return "volume " + p.Tag.Id() },
		Key:  func(p storage.VolumeResizeParams) string { return p.VolumeId },
	}
	return object.Do(ctx, resizing, s.begin, params,
		func(c *call, p storage.VolumeResizeParams) (storage.VolumeInfo, error) {
			size, err := object.SizeInBytes(p.Size)
			if err != nil {
				return storage.VolumeInfo{}, errors.Trace(err)
			}
			return c.resize(p.VolumeId, size)
		},
		func(_ storage.VolumeResizeParams, info storage.VolumeInfo, err error) storage.ResizeVolumesResult {
			if err != nil {
				return storage.ResizeVolumesResult{Error: err}
			}
			return storage.ResizeVolumesResult{VolumeInfo: &info}
		})
}
