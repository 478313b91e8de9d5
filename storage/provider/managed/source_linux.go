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

// NewSource returns the source of filesystems that are made on volumes. The volumes may belong
// to any provider, but must be block devices of this machine.
//
// A filesystem's ID is its tag and the UUID of its owner, if the resource tags name an owner; the
// filesystem itself gets that UUID, too, so that the owner can find it on another machine.
// The attribute "fs" of a filesystem selects its type: "ext4", which is the default, "xfs" or
// "btrfs". The attributes "mkfs-options" and "mount-options" accept the options that
// docs/reference/filesystems.md lists. A filesystem is made only on a device that is provably
// blank, or that d, as a [storage.FormatConsents], allows to format. Afterwards it is
// identified by its UUID, whatever the device's name. To prove a device blank, the source
// reads it, for a minute at most, unless d is a [storage.BackingFiles] and knows the file
// behind the device.
//
// An existing filesystem can be taken over, and is never formatted. If the volume is known,
// the attribute "uuid" does that. Otherwise the source is a [storage.FilesystemImporter],
// which finds the filesystem by its UUID. The ID of an imported filesystem begins with the
// UUID, and its volume is the one that d names for it when it is attached.
//
// Releasing a filesystem removes its record, as destroying it does: its data belong to its
// volume.
//
// Filesystems grow while they are attached, as a [storage.FilesystemResizer]. The size of a
// filesystem is that of its device.
//
// The source keeps a record of each filesystem under storageDir, an absolute path. It creates
// that directory, which nothing else should use. It asks d for the block devices of volumes.
// Any number of sources for one directory, in one process or several, may be called at once:
// operations on one filesystem run one after another, and a device that hangs delays only the
// work on that device, and the call that includes it.
func NewSource(storageDir string, d storage.BackingDevices) storage.FilesystemSource {
	return &source{dir: storageDir, devices: d}
}

type source struct {
	dir        string
	devices    storage.BackingDevices
	formatting formatting
	// readLimit is how long a device is read to prove it blank; 0: [signature.DefaultLimit].
	readLimit time.Duration
	// reading makes the calls of the source read one device at a time.
	reading signature.Turn
}

// phaseFormatting means that mkfs may have begun, on a device that was blank or that may be
// overwritten. The device holds no data of this filesystem. A managed filesystem is either
// formatting or ready.
const phaseFormatting object.Phase = "formatting"

// record is the stored record of a filesystem, under its ID.
type record struct {
	// Volume is empty for an imported filesystem until it is attached.
	Volume string       `json:"volume,omitempty"`
	Type   string       `json:"type"`
	UUID   string       `json:"uuid"`
	Phase  object.Phase `json:"phase"`

	// MkfsOptions and MountOptions are the user's text, unchanged.
	MkfsOptions  string `json:"mkfs-options,omitempty"`
	MountOptions string `json:"mount-options,omitempty"`

	// Size, in bytes, is the size of the block device when the filesystem was made, taken over
	// or grown: a smaller device is another device. Device identifies the device on which the
	// filesystem was last formatted or mounted.
	Size   int64             `json:"size"`
	Device blockdev.Identity `json:"device"`
	// Backing identifies the file behind the device on which formatting began, if it is known. After a
	// restart of the machine, the file's filesystem may have another device number, and Device then
	// proves nothing.
	Backing object.Identity `json:"backing,omitzero"`

	// Shown identifies a filesystem of the volume's provider; see createMounted.
	Shown object.Shown `json:"shown,omitzero"`

	object.Ownership
	object.Placement
}

// formatting holds the numbers of the devices on which mkfs is running. A search skips them:
// they have no filesystem yet, and reading one that hangs would block.
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

// lock locks a filesystem for this call, under the ID of its record.
func (c *call) lock(id string) (unlock func(), err error) {
	if has, err := c.Records.Has(id); err == nil && !has {
		var old object.Ownership
		if kept, err := c.Call.Load(id, &old); err == nil {
			id = kept
		}
	}
	return c.LockObject(id)
}

// filesystem is a filesystem during one bulk call.
type filesystem struct {
	id   string
	call *call
	rec  record
	// entry describes the volume's device, when the filesystem is to be attached.
	entry storage.BlockDevice
	// dev is the filesystem's device, once it has been found.
	dev *blockdev.Device
	// consent says on what, beside a blank device, the filesystem may be made.
	consent storage.FormatConsent
	// formatted reports that this call has started to write to the device.
	formatted bool
	// orphan is the filesystem's mount if its device is gone.
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

// close closes the device, if the filesystem has one open.
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
	creating := object.CreatingFilesystems
	creating.Key = func(p storage.FilesystemParams) string { return p.Volume.String() }
	return object.Do(ctx, creating, s.begin, params, (*call).create, object.CreatedFilesystem)
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
	infos, failures := c.MountAll(params, func(p storage.FilesystemAttachmentParams) (storage.FilesystemAttachmentInfo, error) {
		return c.attach(p, devices)
	})
	return object.MountedResults(params, infos, failures), nil
}

// DetachFilesystems implements [storage.FilesystemSource].
func (s *source) DetachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]error, error) {
	detaching := object.Bulk[storage.FilesystemAttachmentParams]{
		Verb: "detaching", Objects: "filesystems",
		Name: func(p storage.FilesystemAttachmentParams) string { return "filesystem " + p.Filesystem.Id() },
		Key:  object.AttachedFilesystem,
	}
	return object.DoEach(ctx, detaching, s.begin, params, func(c *call, p storage.FilesystemAttachmentParams) error {
		return c.withExisting(p.FilesystemId, (*filesystem).detach)
	})
}

// SetMountOptions implements [storage.MountOptionsSetter].
func (s *source) SetMountOptions(ctx envcontext.ProviderCallContext, options []storage.FilesystemMountOptions) ([]error, error) {
	return object.DoEach(ctx, object.SettingMountOptions, s.begin, options, func(c *call, o storage.FilesystemMountOptions) error {
		unlock, err := c.lock(o.FilesystemId)
		if err != nil {
			return errors.Trace(err)
		}
		defer unlock()
		f, err := c.load(o.FilesystemId)
		if err != nil {
			return errors.Trace(err)
		}
		if f.isMounted() {
			return errors.NewNotSupported(nil, "its volume's provider mounts it")
		}
		return object.SetMountOptions(f, f.rec.Type, &f.rec.MountOptions, o.Options)
	})
}

// DestroyFilesystems implements [storage.FilesystemSource]. It removes the filesystems'
// records; the data stay on the volumes and are destroyed with them.
func (s *source) DestroyFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return object.DoEach(ctx, object.DestroyingFilesystems, s.begin, ids, (*call).removeRecord)
}

// ReleaseFilesystems implements [storage.FilesystemSource]. It does the same as
// DestroyFilesystems: a filesystem's data belong to its volume.
func (s *source) ReleaseFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return object.DoEach(ctx, object.ReleasingFilesystems, s.begin, ids, (*call).removeRecord)
}

func (c *call) removeRecord(id string) error {
	return c.withExisting(id, (*filesystem).removeRecord)
}

// withExisting calls do with a filesystem. It succeeds if the filesystem does not exist.
func (c *call) withExisting(id string, do func(*filesystem) error) error {
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
