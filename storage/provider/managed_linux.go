package provider

import (
	"context"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// NewManagedFilesystemSource returns the source of filesystems that are made on
// volumes: any volume that is a block device of this machine, whoever made it.
//
// A filesystem's id is its tag. The attribute "fs" of a filesystem chooses its
// type: "ext4", which is the default, "xfs" or "btrfs". The attributes
// "mkfs-options" and "mount-options" choose among the options that
// docs/filesystems.md lists. A filesystem is made only on a device that is
// provably blank, and afterwards known by its UUID, whatever becomes of the
// device's name.
//
// A filesystem that is there already is taken over, and never formatted: by the
// attribute "uuid", where the volume is known, or else as a
// [storage.FilesystemImporter], which finds it by its UUID. That is then its id
// too, and its volume is the one that d names for it when it is attached. The
// resource tags of an import have no place to go to.
//
// Filesystems grow while they are attached, as a [storage.FilesystemResizer]. The
// size of a filesystem is that of its device.
//
// The source keeps a record of each filesystem under storageDir, an absolute
// path, which it makes and which should be nobody else's. It asks d for the
// block devices of volumes. Bulk calls of any number of sources for one
// directory, in one process or several, are carried out one after another.
func NewManagedFilesystemSource(storageDir string, d storage.BackingDevices) storage.FilesystemSource {
	return &managedSource{dir: storageDir, devices: d}
}

type managedSource struct {
	dir     string
	devices storage.BackingDevices
}

// phaseFormatting: the device was blank and mkfs may have begun. There are no
// data on it. A managed filesystem is formatting or ready.
const phaseFormatting phase = "formatting"

// managedRecord is what is kept of a filesystem, by its id.
type managedRecord struct {
	// Volume is empty until a filesystem that was imported is attached.
	Volume string `json:"volume,omitempty"`
	Type   string `json:"type"`
	UUID   string `json:"uuid"`
	Phase  phase  `json:"phase"`

	// MkfsOptions and MountOptions are as the user wrote them.
	MkfsOptions  string `json:"mkfs-options,omitempty"`
	MountOptions string `json:"mount-options,omitempty"`

	// Size, in bytes, is that of the block device when the filesystem was made,
	// taken over or made to grow: a device that is smaller is another. Device
	// tells which one it was when it was last formatted or mounted.
	Size   int64             `json:"size"`
	Device blockdev.Identity `json:"device"`

	placement
}

// managedCall is one bulk call.
type managedCall struct {
	*mountCall
	devices storage.BackingDevices
	prober  signature.Prober
}

func (s *managedSource) begin(ctx context.Context) (*managedCall, error) {
	c, err := beginMounts(ctx, s.dir, "mounts")
	if err != nil {
		return nil, errors.Trace(err)
	}
	return &managedCall{mountCall: c, devices: s.devices}, nil
}

// managedFilesystem is a filesystem during one bulk call.
type managedFilesystem struct {
	id   string
	call *managedCall
	rec  managedRecord
	// entry is what is known of the volume's device, when it is to be attached.
	entry storage.BlockDevice
	// dev is the device that the filesystem is on, once it has been found.
	dev *blockdev.Device
	// orphan is the filesystem's mount when its device is gone.
	orphan *mountinfo.Info
}

// load returns a filesystem that was made, or begun; errors.IsNotFound where
// there is none.
func (c *managedCall) load(id string) (*managedFilesystem, error) {
	f := &managedFilesystem{id: id, call: c}
	if err := c.records.Load(id, &f.rec); err != nil {
		return nil, errors.Trace(err)
	}
	return f, nil
}

func (f *managedFilesystem) save() error {
	return f.call.records.Save(f.id, f.rec)
}

func (f *managedFilesystem) note() error {
	return f.call.records.Note(f.id, f.rec)
}

// close gives back the device. The filesystem may have none.
func (f *managedFilesystem) close() {
	if f.dev != nil {
		f.dev.Close()
	}
}

// ValidateFilesystemParams implements [storage.FilesystemSource].
func (s *managedSource) ValidateFilesystemParams(p storage.FilesystemParams) error {
	_, err := managedChoice(p)
	return errors.Annotatef(err, "filesystem %s", p.Tag.Id())
}

// CreateFilesystems implements [storage.FilesystemSource].
func (s *managedSource) CreateFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "creating filesystems")
	}
	defer c.end()
	infos, failures := collectAtOnce(ctx, params, func(p storage.FilesystemParams) string { return p.Volume.String() }, c.create)
	return madeResults(params, infos, failures), nil
}

// AttachFilesystems implements [storage.FilesystemSource].
func (s *managedSource) AttachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "attaching filesystems")
	}
	defer c.end()
	devices, err := c.findDevices(params)
	if err != nil {
		return nil, errors.Annotate(err, "attaching filesystems")
	}
	paths, failures := c.mountAll(params, func(p storage.FilesystemAttachmentParams) (string, error) {
		return c.attach(p, devices)
	})
	return mountedResults(params, paths, failures), nil
}

// DetachFilesystems implements [storage.FilesystemSource].
func (s *managedSource) DetachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]error, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "detaching filesystems")
	}
	defer c.end()
	return eachAtOnce(ctx, params, attachedFilesystem, func(p storage.FilesystemAttachmentParams) error {
		err := c.ifThere(p.FilesystemId, (*managedFilesystem).detach)
		return errors.Annotatef(err, "detaching filesystem %s", p.Filesystem.Id())
	}), nil
}

// DestroyFilesystems implements [storage.FilesystemSource]. It forgets the
// filesystems; the data stay on the volumes and go with them.
func (s *managedSource) DestroyFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.forget(ctx, "destroying", ids)
}

// ReleaseFilesystems implements [storage.FilesystemSource]. It does what
// DestroyFilesystems does: a filesystem's data are its volume's.
func (s *managedSource) ReleaseFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.forget(ctx, "releasing", ids)
}

func (s *managedSource) forget(ctx context.Context, doing string, ids []string) ([]error, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotatef(err, "%s filesystems", doing)
	}
	defer c.end()
	return eachAtOnce(ctx, ids, itself, func(id string) error {
		return errors.Annotatef(c.ifThere(id, (*managedFilesystem).forget), "%s %s", doing, id)
	}), nil
}

// ifThere does something with a filesystem. There being none is a success.
func (c *managedCall) ifThere(id string, do func(*managedFilesystem) error) error {
	f, err := c.load(id)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	defer f.close()
	return do(f)
}
