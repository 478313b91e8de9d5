package csi

import (
	"path/filepath"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

func newFilesystemSource(config Config, dir string) (storage.FilesystemSource, error) {
	return &filesystemSource{source{config, filepath.Join(dir, "filesystems")}}, nil
}

// filesystemSource is the source of filesystems that the driver makes.
type filesystemSource struct{ source }

// ValidateFilesystemParams implements [storage.FilesystemSource].
func (s *filesystemSource) ValidateFilesystemParams(p storage.FilesystemParams) error {
	return errors.Annotatef(s.validate(p.Size, p.Attributes, p.ResourceTags), "filesystem %s", p.Tag.Id())
}

// CreateFilesystems implements [storage.FilesystemSource].
func (s *filesystemSource) CreateFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	creating := object.CreatingFilesystems
	creating.Key, creating.AtOnce = func(p storage.FilesystemParams) string { return p.Tag.String() }, s.config.AtOnce
	return object.Do(ctx, creating, s.begin, params, func(c *bulk, p storage.FilesystemParams) (storage.FilesystemInfo, error) {
		v, err := c.create(wantedFilesystem(p))
		if err != nil {
			return storage.FilesystemInfo{}, errors.Trace(err)
		}
		return filesystemInfo(v), nil
	}, object.CreatedFilesystem)
}

func wantedFilesystem(p storage.FilesystemParams) wanted {
	return wanted{tag: p.Tag, size: p.Size, attributes: p.Attributes, resourceTags: p.ResourceTags}
}

func filesystemInfo(v *volume) storage.FilesystemInfo {
	return storage.FilesystemInfo{FilesystemId: v.id, Size: v.rec.Size >> 20}
}

// DestroyFilesystems implements [storage.FilesystemSource].
func (s *filesystemSource) DestroyFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return object.DoEach(ctx, s.bulkOf("destroying", "filesystems"), s.begin, ids, func(c *bulk, id string) error {
		return c.withExisting(id, (*volume).destroy)
	})
}

// ReleaseFilesystems implements [storage.FilesystemSource].
func (s *filesystemSource) ReleaseFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.releaseEach(ctx, "filesystems", ids)
}

// AttachFilesystems implements [storage.FilesystemSource].
func (s *filesystemSource) AttachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	paths := make([]string, len(params))
	for i, p := range params {
		if paths[i] = p.Path; p.Path == "" {
			paths[i] = filepath.Join(s.dir, p.FilesystemId)
		}
	}
	attaching := s.onFilesystems("attaching")
	if !mount.Disjoint(paths) {
		attaching.Key = nil // one after another
	}
	return object.Do(ctx, attaching, s.begin, params, (*bulk).attachFilesystem,
		func(p storage.FilesystemAttachmentParams, info storage.FilesystemAttachmentInfo, err error) storage.AttachFilesystemsResult {
			if err != nil {
				return storage.AttachFilesystemsResult{Error: err}
			}
			return storage.AttachFilesystemsResult{FilesystemAttachment: &storage.FilesystemAttachment{
				Filesystem: p.Filesystem, Machine: p.Machine, FilesystemAttachmentInfo: info,
			}}
		})
}

func (s *source) onFilesystems(verb string) object.Bulk[storage.FilesystemAttachmentParams] {
	return object.Bulk[storage.FilesystemAttachmentParams]{
		Verb: verb, Objects: "filesystems", Key: object.AttachedFilesystem, AtOnce: s.config.AtOnce,
		Name: func(p storage.FilesystemAttachmentParams) string { return "filesystem " + p.Filesystem.Id() },
	}
}

func (c *bulk) attachFilesystem(p storage.FilesystemAttachmentParams) (info storage.FilesystemAttachmentInfo, err error) {
	err = c.withMade(p.FilesystemId, func(v *volume) error {
		if _, err := v.publish(); err != nil {
			return errors.Trace(err)
		}
		at, err := v.publishedPath()
		if err != nil {
			return errors.Trace(err)
		}
		if p.Path != "" && p.Path != at {
			bind, err := v.bind(p.Path)
			if err != nil {
				return errors.Trace(err)
			}
			info, err = c.Attach(bind, p.Path, p.ReadOnly)
			return errors.Trace(err)
		}
		if p.ReadOnly {
			return errors.NewNotSupported(nil, "it cannot be read-only at "+at+": choose another mount point")
		}
		info = storage.FilesystemAttachmentInfo{Path: at}
		bind, err := v.bind(at)
		if err != nil {
			return errors.Trace(err)
		}
		return errors.Trace(c.AttachInPlace(bind))
	})
	return info, errors.Trace(err)
}

// DetachFilesystems implements [storage.FilesystemSource].
func (s *filesystemSource) DetachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]error, error) {
	return object.DoEach(ctx, s.onFilesystems("detaching"), s.begin, params, func(c *bulk, p storage.FilesystemAttachmentParams) error {
		return c.withExisting(p.FilesystemId, func(v *volume) error {
			bind, err := v.bind("")
			if err != nil {
				return errors.Trace(err)
			}
			if err := bind.Unbind(); err != nil {
				return errors.Trace(err)
			}
			return v.unpublish()
		})
	})
}

// SetMountOptions implements [storage.MountOptionsSetter].
func (s *filesystemSource) SetMountOptions(ctx envcontext.ProviderCallContext, options []storage.FilesystemMountOptions) ([]error, error) {
	setting := object.SettingMountOptions
	setting.AtOnce = s.config.AtOnce
	return object.DoEach(ctx, setting, s.begin, options, func(c *bulk, o storage.FilesystemMountOptions) error {
		return c.withMade(o.FilesystemId, func(v *volume) error {
			if v.rec.Staged {
				return errAttached()
			}
			v.rec.Request.Flags = flagsOf(o.Options)
			return errors.Trace(v.Save())
		})
	})
}

// ResizeFilesystems implements [storage.FilesystemResizer].
func (s *filesystemSource) ResizeFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemResizeParams) ([]storage.ResizeFilesystemsResult, error) {
	resizing := object.ResizingFilesystems
	resizing.Key, resizing.AtOnce = func(p storage.FilesystemResizeParams) string { return p.FilesystemId }, s.config.AtOnce
	return object.Do(ctx, resizing, s.begin, params, func(c *bulk, p storage.FilesystemResizeParams) (storage.FilesystemInfo, error) {
		size, err := c.resize(p.FilesystemId, p.Size)
		return storage.FilesystemInfo{FilesystemId: p.FilesystemId, Size: size}, err
	}, object.ResizedFilesystem)
}

// CheckFilesystems implements [storage.FilesystemChecker].
func (s *filesystemSource) CheckFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return object.DoEach(ctx, object.CheckingFilesystems, s.begin, ids, func(c *bulk, id string) error {
		return c.withMade(id, func(v *volume) error {
			if err := v.checkPublished(); err != nil {
				return errors.Trace(err)
			}
			bind, err := v.bind("")
			if err != nil {
				return errors.Trace(err)
			}
			return errors.Trace(c.CheckAttached(bind, object.Unmounted))
		})
	})
}

// ListFilesystemOwners implements [storage.FilesystemOwnerLister].
func (s *filesystemSource) ListFilesystemOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	all, err := s.listOwners(ctx)
	return all, errors.Annotate(err, "listing the owners of filesystems")
}

// TagFilesystems implements [storage.FilesystemTagger].
func (s *filesystemSource) TagFilesystems(ctx envcontext.ProviderCallContext, tags []storage.ObjectTags) ([]error, error) {
	return object.DoEach(ctx, object.Tagging("filesystems"), s.begin, tags, func(c *bulk, t storage.ObjectTags) error { return c.Tag(t) })
}

// Placement implements [object.Bindable].
func (v *volume) Placement() *object.Placement { return &v.rec.Placement }

// bind returns the filesystem that the driver has published, as it is bound at its mount point, or is to
// be at a path.
func (v *volume) bind(path string) (*object.Bind, error) {
	from, err := v.publishedPath()
	return &object.Bind{Bindable: v, Call: v.MountCall, Source: from, Shown: v.rec.Shown, Path: path}, errors.Trace(err)
}
