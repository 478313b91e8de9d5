package csi

import (
	"path/filepath"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

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

// ReleaseFilesystems implements [storage.FilesystemSource]. It is not supported.
func (s *filesystemSource) ReleaseFilesystems(_ envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.refuseRelease(ids), nil
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
			info, err = c.Attach(&filesystem{v, p.Path}, p.Path, p.ReadOnly)
			return errors.Trace(err)
		}
		if p.ReadOnly {
			return errors.NewNotSupported(nil, "it cannot be read-only at "+at+": choose another mount point")
		}
		info = storage.FilesystemAttachmentInfo{Path: at}
		return errors.Trace(c.AttachInPlace(&filesystem{v, at}))
	})
	return info, errors.Trace(err)
}

// DetachFilesystems implements [storage.FilesystemSource].
func (s *filesystemSource) DetachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]error, error) {
	return object.DoEach(ctx, s.onFilesystems("detaching"), s.begin, params, func(c *bulk, p storage.FilesystemAttachmentParams) error {
		return c.withExisting(p.FilesystemId, func(v *volume) error {
			if err := (&filesystem{volume: v}).unbind(); err != nil {
				return errors.Trace(err)
			}
			return v.unpublish()
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
			return errors.Trace(c.CheckAttached(&filesystem{volume: v}, object.Unmounted))
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

// filesystem is a filesystem that the driver has published, as it is bound at a mount point.
type filesystem struct {
	*volume
	// path is the mount point that is wanted; empty: only the recorded one matters.
	path string
}

var _ object.Mountable = (*filesystem)(nil)

// Placement implements [object.Mountable].
func (f *filesystem) Placement() *object.Placement { return &f.rec.Placement }

// MountSettings implements [object.Mountable]. The options of the pool are the driver's.
func (f *filesystem) MountSettings() (mount.Settings, error) { return mount.ParseOptions("rootfs", "") }

// Mount implements [object.Mountable].
func (f *filesystem) Mount(s mount.Settings) (*mount.Detached, error) {
	path, err := f.publishedPath()
	if err != nil {
		return nil, errors.Trace(err)
	}
	from, err := mount.OpenTarget(path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer from.Close()
	if !from.IsMount() {
		return nil, errors.Errorf("nothing is mounted at %s", path)
	}
	return from.BindDirectory(s)
}

// Mounts implements [object.Mountable]. The driver itself may mount the filesystem anywhere, so only
// the recorded and the wanted mount point matter.
func (f *filesystem) Mounts() ([]*mountinfo.Info, error) {
	is := f.rec.Shown
	if is.BootID != f.BootID {
		return nil, nil
	}
	table, err := f.Table()
	if err != nil {
		return nil, errors.Trace(err)
	}
	var own []*mountinfo.Info
	for _, path := range []string{f.rec.MountPoint, f.path} {
		if path == "" {
			continue
		}
		for _, m := range table.Under(path) {
			if m.Mountpoint == path && m.Major == is.Major && m.Minor == is.Minor && m.Root == is.Root {
				own = append(own, m)
			}
		}
	}
	return own, nil
}

// Finder implements [object.Mountable]. The driver may have the filesystem in a mount namespace of its
// own, so other namespaces are not searched: unstaging fails while they use it.
func (f *filesystem) Finder() (object.Finder, error) { return nil, nil }

// Check implements [object.Mountable].
func (f *filesystem) Check(*mount.Target) error { return nil }

// Proves implements [object.Mountable].
func (f *filesystem) Proves(*mount.Target) (bool, error) { return false, nil }

// unbind unmounts the filesystem from its mount point. It touches nothing else that is mounted there.
func (f *filesystem) unbind() error {
	path := f.rec.MountPoint
	if path == "" {
		if f.rec.InPlace {
			return errors.Trace(f.ClearPlacement(f))
		}
		return nil
	}
	at, err := f.Find(f, path)
	if err != nil {
		return errors.Trace(err)
	}
	if at != nil {
		at.Target.Close() // an open descriptor would keep the mount busy
		switch at.Relation {
		case object.Ours:
			err = mount.Unmount(path)
		case object.MountedByOthers:
			err = object.ErrMountedByOthers(path)
		default:
			err = f.CheckNotCovered(f, at)
		}
		if err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(f.ClearPlacement(f))
}
