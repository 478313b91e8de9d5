package object

import (
	"context"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
)

// FilesystemKind contains the differences between tmpfs and rootfs.
type FilesystemKind interface {
	// Files returns the name of the directory that contains the filesystems, or what they
	// need.
	Files() string
	// Create makes a filesystem of size bytes with valid mount options for an owner, unless it
	// exists already.
	Create(c *MountCall, id string, size uint64, mountOptions string, owner Ownership) error
	// Load returns a filesystem that has been made, or whose creation has begun. The error
	// satisfies errors.IsNotFound if there is no such filesystem.
	Load(c *MountCall, id string) (Filesystem, error)
	// Owned describes a filesystem, in any phase.
	Owned(c *MountCall, id string) (storage.OwnedObject, error)
}

// Filesystem is a filesystem during one bulk call.
type Filesystem interface {
	Mountable
	// Attach makes the filesystem usable at a path, and says how. If path is empty, it chooses
	// one.
	Attach(path string, readOnly bool) (storage.FilesystemAttachmentInfo, error)
	// Unmounted returns the error of a filesystem that was attached at from and has been
	// unmounted by others.
	Unmounted(from string) error
	// Remark returns a note to the user about the filesystem after it was attached or resized.
	Remark() string
	// MountOptions returns the mount options in its record, for reading and for changing.
	MountOptions() *string
	// Resize makes the filesystem size bytes large, unless it is larger, and returns its new
	// size in bytes.
	Resize(size uint64) (uint64, error)
	// Destroy removes the filesystem and its record.
	Destroy() error
	// Release removes its record.
	Release() error
}

// FilesystemSource is the source of filesystems that have no backing volume.
type FilesystemSource struct {
	Dir  string
	Kind FilesystemKind
	// MountType is that of [Provider].
	MountType string

	remarks Remarks // of attached filesystems
}

func (s *FilesystemSource) Begin(ctx context.Context) (*MountCall, error) {
	return BeginMounts(ctx, s.Dir, s.Kind.Files(), WholeDirectory)
}

// ValidateFilesystemParams implements [storage.FilesystemSource].
func (s *FilesystemSource) ValidateFilesystemParams(p storage.FilesystemParams) error {
	_, err := SizeInBytes(p.Size)
	if err == nil {
		_, err = fsattr.ParseMount(s.MountType, p.Attributes)
	}
	return errors.Annotatef(err, "filesystem %s", p.Tag.Id())
}

// The bulk calls that sources of filesystems have in common.
var (
	CreatingFilesystems = Bulk[storage.FilesystemParams]{
		Verb: "creating", Objects: "filesystems",
		Name: func(p storage.FilesystemParams) string { return "filesystem " + p.Tag.Id() },
	}
	ResizingFilesystems = Bulk[storage.FilesystemResizeParams]{
		Verb: "resizing", Objects: "filesystems",
		Name: func(p storage.FilesystemResizeParams) string { return "filesystem " + p.Tag.Id() },
	}
	DestroyingFilesystems = Bulk[string]{Verb: "destroying", Objects: "filesystems", Name: ByID, Key: ByID}
	ReleasingFilesystems  = Bulk[string]{Verb: "releasing", Objects: "filesystems", Name: ByID, Key: ByID}
	CheckingFilesystems   = Bulk[string]{Verb: "checking", Objects: "filesystems", Key: ByID}
)

// CreateFilesystems implements [storage.FilesystemSource].
func (s *FilesystemSource) CreateFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	return Do(ctx, CreatingFilesystems, s.Begin, params, s.create, CreatedFilesystem)
}

func (s *FilesystemSource) create(c *MountCall, p storage.FilesystemParams) (storage.FilesystemInfo, error) {
	none := storage.FilesystemInfo{}
	size, err := SizeInBytes(p.Size)
	if err != nil {
		return none, errors.Trace(err)
	}
	mountOptions, err := fsattr.ParseMount(s.MountType, p.Attributes)
	if err != nil {
		return none, errors.Trace(err)
	}
	id, err := c.Resolve(p.Tag.String(), p.ResourceTags)
	if err != nil {
		return none, errors.Trace(err)
	}
	creation := c.BeginCreation(id)
	if err := s.Kind.Create(c, id, size, mountOptions, Ownership{ResourceTags: p.ResourceTags}); err != nil {
		return none, creation.Failed(err, func() error { return s.ifExists(c, id, Filesystem.Destroy) })
	}
	return storage.FilesystemInfo{FilesystemId: id, Size: p.Size}, nil
}

func AttachedFilesystem(p storage.FilesystemAttachmentParams) string { return p.FilesystemId }

// CreatedFilesystem returns the result of creating a filesystem.
func CreatedFilesystem(p storage.FilesystemParams, info storage.FilesystemInfo, err error) storage.CreateFilesystemsResult {
	if err != nil {
		return storage.CreateFilesystemsResult{Error: err}
	}
	return storage.CreateFilesystemsResult{Filesystem: &storage.Filesystem{Tag: p.Tag, Volume: p.Volume, FilesystemInfo: info}}
}

// DestroyFilesystems implements [storage.FilesystemSource].
func (s *FilesystemSource) DestroyFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return DoEach(ctx, DestroyingFilesystems, s.Begin, ids, func(c *MountCall, id string) error {
		return s.ifExists(c, id, Filesystem.Destroy)
	})
}

// ReleaseFilesystems implements [storage.FilesystemSource].
func (s *FilesystemSource) ReleaseFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return DoEach(ctx, ReleasingFilesystems, s.Begin, ids, func(c *MountCall, id string) error {
		return s.ifExists(c, id, Filesystem.Release)
	})
}

// AttachFilesystems implements [storage.FilesystemSource].
func (s *FilesystemSource) AttachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	c, err := s.Begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "attaching filesystems")
	}
	defer c.End()
	infos, failures := c.MountAll(params, func(p storage.FilesystemAttachmentParams) (storage.FilesystemAttachmentInfo, error) {
		none := storage.FilesystemAttachmentInfo{}
		f, err := s.mustLoad(c, p.FilesystemId)
		if err != nil {
			return none, errors.Trace(err)
		}
		info, err := f.Attach(p.Path, p.ReadOnly)
		if err != nil {
			return none, errors.Trace(err)
		}
		s.remarks.Set(p.FilesystemId, f.Remark())
		return info, nil
	})
	return MountedResults(params, infos, failures), nil
}

// MountedResults returns the results of a bulk call that attaches filesystems.
func MountedResults(params []storage.FilesystemAttachmentParams, infos []storage.FilesystemAttachmentInfo, failures []error) []storage.AttachFilesystemsResult {
	results := make([]storage.AttachFilesystemsResult, len(params))
	for i, p := range params {
		if failures[i] != nil {
			results[i].Error = errors.Annotatef(failures[i], "attaching filesystem %s", p.Filesystem.Id())
			continue
		}
		results[i].FilesystemAttachment = &storage.FilesystemAttachment{
			Filesystem:               p.Filesystem,
			Machine:                  p.Machine,
			FilesystemAttachmentInfo: infos[i],
		}
	}
	return results
}

// DetachFilesystems implements [storage.FilesystemSource].
func (s *FilesystemSource) DetachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]error, error) {
	c, err := s.Begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "detaching filesystems")
	}
	defer c.End()
	failures := DetachAll(c, params, AttachedFilesystem, func(p storage.FilesystemAttachmentParams) (f Filesystem, err error) {
		err = s.ifExists(c, p.FilesystemId, func(there Filesystem) error { f = there; return nil })
		return f, errors.Trace(err)
	})
	for i, p := range params {
		if failures[i] == nil {
			s.remarks.Set(p.FilesystemId, "")
		}
		failures[i] = errors.Annotatef(failures[i], "detaching filesystem %s", p.Filesystem.Id())
	}
	return failures, nil
}

// ResizeFilesystems implements [storage.FilesystemResizer].
func (s *FilesystemSource) ResizeFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemResizeParams) ([]storage.ResizeFilesystemsResult, error) {
	return Do(ctx, ResizingFilesystems, s.Begin, params, s.resize, ResizedFilesystem)
}

func (s *FilesystemSource) resize(c *MountCall, p storage.FilesystemResizeParams) (storage.FilesystemInfo, error) {
	none := storage.FilesystemInfo{}
	size, err := SizeInBytes(p.Size)
	if err != nil {
		return none, errors.Trace(err)
	}
	f, err := s.mustLoad(c, p.FilesystemId)
	if err != nil {
		return none, errors.Trace(err)
	}
	if size, err = f.Resize(size); err != nil {
		return none, errors.Trace(err)
	}
	s.remarks.Set(p.FilesystemId, f.Remark())
	return storage.FilesystemInfo{FilesystemId: p.FilesystemId, Size: size >> 20}, nil
}

// SetMountOptions implements [storage.MountOptionsSetter].
func (s *FilesystemSource) SetMountOptions(ctx envcontext.ProviderCallContext, options []storage.FilesystemMountOptions) ([]error, error) {
	return DoEach(ctx, SettingMountOptions, s.Begin, options, func(c *MountCall, o storage.FilesystemMountOptions) error {
		f, err := s.mustLoad(c, o.FilesystemId)
		if err != nil {
			return errors.Trace(err)
		}
		return SetMountOptions(f, s.MountType, f.MountOptions(), o.Options)
	})
}

// SettingMountOptions is the bulk call that replaces mount options.
var SettingMountOptions = Bulk[storage.FilesystemMountOptions]{
	Verb: "setting the mount options of", Objects: "filesystems",
	Name: func(o storage.FilesystemMountOptions) string { return "filesystem " + o.FilesystemId },
	Key:  func(o storage.FilesystemMountOptions) string { return o.FilesystemId },
}

// SetMountOptions replaces the mount options in the record of a filesystem of a type that [mount.Options] knows.
func SetMountOptions(f Bindable, fsType string, recorded *string, options string) error {
	if err := fsattr.CheckMount(fsType, options); err != nil {
		return errors.Trace(err)
	}
	if place := f.Placement(); place.MountPoint != "" || place.InPlace {
		return errors.New("it is attached: detach it first")
	}
	if *recorded == options {
		return nil
	}
	*recorded = options
	return errors.Trace(f.Save())
}

// ResizedFilesystem returns the result of resizing a filesystem.
func ResizedFilesystem(_ storage.FilesystemResizeParams, info storage.FilesystemInfo, err error) storage.ResizeFilesystemsResult {
	if err != nil {
		return storage.ResizeFilesystemsResult{Error: err}
	}
	return storage.ResizeFilesystemsResult{FilesystemInfo: &info}
}

// CheckFilesystems implements [storage.FilesystemChecker].
func (s *FilesystemSource) CheckFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return DoEach(ctx, CheckingFilesystems, s.Begin, ids, func(c *MountCall, id string) error {
		f, err := s.mustLoad(c, id)
		if err != nil {
			return errors.Trace(err)
		}
		return errors.Trace(c.CheckAttached(f, f.Unmounted))
	})
}

// ListFilesystemOwners implements [storage.FilesystemOwnerLister].
func (s *FilesystemSource) ListFilesystemOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	c, err := s.Begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "listing the owners of filesystems")
	}
	defer c.End()
	all, err := c.ListOwned(func(id string) (storage.OwnedObject, error) { return s.Kind.Owned(c, id) })
	return all, errors.Annotate(err, "listing the owners of filesystems")
}

// TagFilesystems implements [storage.FilesystemTagger].
func (s *FilesystemSource) TagFilesystems(ctx envcontext.ProviderCallContext, tags []storage.ObjectTags) ([]error, error) {
	return DoEach(ctx, Tagging("filesystems"), s.Begin, tags, func(c *MountCall, t storage.ObjectTags) error { return c.Tag(t) })
}

// FilesystemRemark implements [storage.FilesystemRemarker].
func (s *FilesystemSource) FilesystemRemark(id string) string {
	return s.remarks.Of(id)
}

// mustLoad returns a filesystem that must exist.
func (s *FilesystemSource) mustLoad(c *MountCall, id string) (Filesystem, error) {
	f, err := s.Kind.Load(c, id)
	if errors.Is(err, errors.NotFound) {
		return nil, storage.Permanent(errors.Annotate(err, "it was not made here"))
	}
	return f, errors.Trace(err)
}

// ifExists calls do with a filesystem. It succeeds if the filesystem does not exist.
func (s *FilesystemSource) ifExists(c *MountCall, id string, do func(Filesystem) error) error {
	f, err := s.Kind.Load(c, id)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	return do(f)
}

// GrowTo makes an existing filesystem as large as a repeated creation requests: that may be
// more than the first request, whose result was lost.
func GrowTo(f Filesystem, o Ownership, have, want uint64) error {
	if want < have {
		return errors.Trace(o.CheckSize(have, want))
	}
	_, err := f.Resize(want)
	return errors.Trace(err)
}
