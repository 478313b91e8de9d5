package managed

import (
	"os"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/fsctl"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// ResizeFilesystems implements [storage.FilesystemResizer]. It grows a filesystem to the size
// of its device, through the mount, while the filesystem is in use.
func (s *source) ResizeFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemResizeParams) ([]storage.ResizeFilesystemsResult, error) {
	resizing := object.ResizingFilesystems
	resizing.Key = func(p storage.FilesystemResizeParams) string { return p.FilesystemId }
	return object.Do(ctx, resizing, s.begin, params, (*call).resize, object.ResizedFilesystem)
}

func (c *call) resize(p storage.FilesystemResizeParams) (storage.FilesystemInfo, error) {
	none := storage.FilesystemInfo{}
	unlock, err := c.lock(p.FilesystemId)
	if err != nil {
		return none, errors.Trace(err)
	}
	defer unlock()
	f, err := c.loadMade(p.FilesystemId)
	if err != nil {
		return none, errors.Trace(err)
	}
	defer f.close()
	if f.isMounted() {
		return f.resizeMounted(p.Size)
	}
	dir, err := f.openMounted()
	if err != nil {
		return none, errors.Trace(err)
	}
	defer dir.Close()
	if size := uint64(f.dev.Size) >> 20; size < p.Size {
		return none, errors.Errorf("%s has %d MiB, and %d MiB are needed: its volume must grow first", f.dev.Path(), size, p.Size)
	}
	if err := fsctl.Grow(dir, f.dev.File, f.rec.Type, uint64(f.dev.Size)); err != nil {
		return none, errors.Annotatef(err, "growing the %s on %s, which is mounted at %s", f.rec.Type, f.dev.Path(), f.rec.MountPoint)
	}
	crash.At("filesystem grown")
	// From here on a smaller device cannot be the filesystem's.
	if f.rec.Size != f.dev.Size {
		f.rec.Size = f.dev.Size
		if err := f.Save(); err != nil {
			return none, errors.Trace(err)
		}
	}
	return f.info(), nil
}

// openMounted opens the root directory of the mounted filesystem. It returns an error if the
// filesystem is not mounted for writing.
func (f *filesystem) openMounted() (*os.File, error) {
	path := f.rec.MountPoint
	if path == "" {
		return nil, errors.New("not attached: attach the filesystem before resizing it")
	}
	settings, err := f.MountSettings()
	if err != nil {
		return nil, errors.Trace(err)
	}
	if err := f.locate(); err != nil {
		return nil, errors.Trace(err)
	}
	at, err := f.call.Find(f, path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if at == nil {
		return nil, errors.Errorf("it is no longer mounted at %s: attach it again", path)
	}
	defer at.Target.Close()
	switch {
	case at.Relation == object.MountedByOthers:
		return nil, object.ErrMountedByOthers(path)
	case at.Relation == object.OtherFilesystem:
		return nil, errors.Errorf("another filesystem, %s, is mounted at %s: unmount it, and attach this filesystem again", mount.Describe(at.Info), path)
	case f.orphan != nil:
		return nil, errors.Errorf("the device of the filesystem mounted at %s is gone: detach the filesystem, and attach it again when the device is back", path)
	case settings.ReadOnly:
		return nil, storage.Permanent(errors.Errorf("it is mounted read-only at %s, by its mount option ro: it cannot grow", path))
	case mount.IsReadOnly(at.Info):
		return nil, storage.Permanent(errors.Errorf("it is mounted read-only at %s: attach it read-write before resizing it", path))
	}
	return at.Target.OpenDir()
}
