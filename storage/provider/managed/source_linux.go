package managed

import (
	"context"
	"sync"
	"time"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// NewSource returns the source of filesystems that are made on volumes. The
// volumes may be any provider's, but must be block devices of this machine.
//
// A filesystem's id is its tag and the UUID of its owner, where the resource tags name
// one. The attribute "fs" of a filesystem chooses its
// type: "ext4", which is the default, "xfs" or "btrfs". The attributes
// "mkfs-options" and "mount-options" choose among the options that
// docs/filesystems.md lists. A filesystem is made only on a device that is
// provably blank, and afterwards known by its UUID, whatever becomes of the
// device's name. To prove it the device is read, for a minute at most, unless d is a
// [storage.BackingFiles] and knows the file behind it.
//
// A filesystem that is there already is taken over, and never formatted: by the
// attribute "uuid", where the volume is known, or else as a
// [storage.FilesystemImporter], which finds it by its UUID. Its id begins with that,
// and its volume is the one that d names for it when it is attached.
//
// Releasing a filesystem forgets it, as destroying it does: its data are its volume's.
//
// Filesystems grow while they are attached, as a [storage.FilesystemResizer]. The
// size of a filesystem is that of its device.
//
// The source keeps a record of each filesystem under storageDir, an absolute
// path, which it makes and which should be nobody else's. It asks d for the
// block devices of volumes. Any number of sources for one directory, in one process or
// several, may be called at once: what is done to one filesystem is done one after another,
// and a device that hangs holds up nothing but what is on it, and the call that it is part of.
func NewSource(storageDir string, d storage.BackingDevices) storage.FilesystemSource {
	return &source{dir: storageDir, devices: d}
}

type source struct {
	dir        string
	devices    storage.BackingDevices
	formatting formatting
	// readLimit is how long a device is read to prove it blank; 0: as long as
	// [signature.DefaultLimit].
	readLimit time.Duration
	// reading has the calls of the source read one device at a time.
	reading signature.Turn
}

// phaseFormatting: the device was blank and mkfs may have begun. There are no
// data on it. A managed filesystem is formatting or ready.
const phaseFormatting object.Phase = "formatting"

// record is what is kept of a filesystem, by its id.
type record struct {
	// Volume is empty until a filesystem that was imported is attached.
	Volume string       `json:"volume,omitempty"`
	Type   string       `json:"type"`
	UUID   string       `json:"uuid"`
	Phase  object.Phase `json:"phase"`

	// MkfsOptions and MountOptions are as the user wrote them.
	MkfsOptions  string `json:"mkfs-options,omitempty"`
	MountOptions string `json:"mount-options,omitempty"`

	// Size, in bytes, is that of the block device when the filesystem was made,
	// taken over or made to grow: a device that is smaller is another. Device
	// tells which one it was when it was last formatted or mounted.
	Size   int64             `json:"size"`
	Device blockdev.Identity `json:"device"`

	object.Ownership
	object.Placement
}

// formatting are the numbers of the devices that mkfs is at work on. They have no filesystem
// yet, and who reads one that hangs waits with it.
type formatting struct {
	mu      sync.Mutex
	numbers map[uint64]bool
}

func (f *formatting) set(number uint64, on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !on {
		delete(f.numbers, number)
		return
	}
	if f.numbers == nil {
		f.numbers = make(map[uint64]bool)
	}
	f.numbers[number] = true
}

func (f *formatting) has(number uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.numbers[number]
}

// call is one bulk call.
type call struct {
	*object.MountCall
	source  *source
	devices storage.BackingDevices
	prober  signature.Prober
}

func (s *source) begin(ctx context.Context) (*call, error) {
	c, err := object.BeginMounts(ctx, s.dir, "mounts", object.EachObject)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return &call{MountCall: c, source: s, devices: s.devices, prober: signature.Prober{Limit: s.readLimit, Turn: &s.reading}}, nil
}

// MaxConcurrentCalls implements [storage.ConcurrentSource].
func (s *source) MaxConcurrentCalls() int { return object.MaxAtOnce }

func (c *call) isBeingFormatted(number uint64) bool { return c.source.formatting.has(number) }

// lock takes a filesystem for this call alone, under the ID that it is kept under.
func (c *call) lock(id string) (unlock func(), err error) {
	var rec object.Ownership
	if kept, err := c.Call.Load(id, &rec); err == nil {
		id = kept
	}
	return c.LockObject(id)
}

// filesystem is a filesystem during one bulk call.
type filesystem struct {
	id   string
	call *call
	rec  record
	// entry is what is known of the volume's device, when it is to be attached.
	entry storage.BlockDevice
	// dev is the device that the filesystem is on, once it has been found.
	dev *blockdev.Device
	// consent says on what the filesystem may be made beside a blank device.
	consent storage.FormatConsent
	// formatted says that mkfs has begun in this call.
	formatted bool
	// orphan is the filesystem's mount when its device is gone.
	orphan *mountinfo.Info
}

// load returns a filesystem that was made, completely or in part. The error satisfies
// errors.IsNotFound if the filesystem has no record.
func (c *call) load(id string) (*filesystem, error) {
	f := &filesystem{call: c}
	var err error
	if f.id, err = c.Call.Load(id, &f.rec); err != nil {
		return nil, errors.Trace(err)
	}
	return f, nil
}

func (f *filesystem) Save() error {
	return f.call.Records.Save(f.id, f.rec)
}

func (f *filesystem) Note() error {
	return f.call.Records.Note(f.id, f.rec)
}

// close gives back the device. The filesystem may have none.
func (f *filesystem) close() {
	if f.dev != nil {
		f.dev.Close()
	}
}

// ValidateFilesystemParams implements [storage.FilesystemSource].
func (s *source) ValidateFilesystemParams(p storage.FilesystemParams) error {
	_, err := choiceOf(p)
	return errors.Annotatef(err, "filesystem %s", p.Tag.Id())
}

// CreateFilesystems implements [storage.FilesystemSource].
func (s *source) CreateFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "creating filesystems")
	}
	defer c.End()
	infos, failures := object.CollectAtOnce(ctx, params, func(p storage.FilesystemParams) string { return p.Volume.String() }, c.create)
	return object.MadeResults(params, infos, failures), nil
}

// AttachFilesystems implements [storage.FilesystemSource].
func (s *source) AttachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "attaching filesystems")
	}
	defer c.End()
	devices, err := c.findDevices(params)
	if err != nil {
		return nil, errors.Annotate(err, "attaching filesystems")
	}
	paths, failures := c.MountAll(params, func(p storage.FilesystemAttachmentParams) (string, error) {
		return c.attach(p, devices)
	})
	return object.MountedResults(params, paths, failures), nil
}

// DetachFilesystems implements [storage.FilesystemSource].
func (s *source) DetachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]error, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "detaching filesystems")
	}
	defer c.End()
	return object.EachAtOnce(ctx, params, object.AttachedFilesystem, func(p storage.FilesystemAttachmentParams) error {
		err := c.ifThere(p.FilesystemId, (*filesystem).detach)
		return errors.Annotatef(err, "detaching filesystem %s", p.Filesystem.Id())
	}), nil
}

// DestroyFilesystems implements [storage.FilesystemSource]. It forgets the
// filesystems; the data stay on the volumes and go with them.
func (s *source) DestroyFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.forget(ctx, "destroying", ids)
}

// ReleaseFilesystems implements [storage.FilesystemSource]. It does what
// DestroyFilesystems does: a filesystem's data are its volume's.
func (s *source) ReleaseFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.forget(ctx, "releasing", ids)
}

func (s *source) forget(ctx context.Context, doing string, ids []string) ([]error, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotatef(err, "%s filesystems", doing)
	}
	defer c.End()
	return object.EachAtOnce(ctx, ids, object.Itself, func(id string) error {
		return errors.Annotatef(c.ifThere(id, (*filesystem).forget), "%s %s", doing, id)
	}), nil
}

// ifThere does something with a filesystem. There being none is a success.
func (c *call) ifThere(id string, do func(*filesystem) error) error {
	unlock, err := c.lock(id)
	if err != nil {
		return errors.Trace(err)
	}
	defer unlock()
	f, err := c.load(id)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	defer f.close()
	return do(f)
}
