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

// ResizeFilesystems implements [storage.FilesystemResizer]. A filesystem is made
// as large as its device is, through its mount, while it is in use.
func (s *source) ResizeFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemResizeParams) ([]storage.ResizeFilesystemsResult, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "resizing filesystems")
	}
	defer c.End()
	infos, failures := object.CollectAtOnce(ctx, params, func(p storage.FilesystemResizeParams) string { return p.FilesystemId }, c.resize)
	results := make([]storage.ResizeFilesystemsResult, len(params))
	for i, p := range params {
		if failures[i] != nil {
			results[i].Error = errors.Annotatef(failures[i], "resizing filesystem %s", p.Tag.Id())
			continue
		}
		results[i].FilesystemInfo = &infos[i]
	}
	return results, nil
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
	dir, err := f.openMounted()
	if err != nil {
		return none, errors.Trace(err)
	}
	defer dir.Close()
	if size := uint64(f.dev.Size) >> 20; size < p.Size {
		return none, errors.Errorf("%d MiB are wanted, %s has %d MiB so far: its volume is to grow first", p.Size, f.dev.Path(), size)
	}
	if err := fsctl.Grow(dir, f.dev.File, f.rec.Type, uint64(f.dev.Size)); err != nil {
		return none, errors.Annotatef(err, "growing the %s on %s, which is mounted at %s", f.rec.Type, f.dev.Path(), f.rec.MountPoint)
	}
	crash.At("filesystem grown")
	// From now on a smaller device is not the filesystem's.
	if f.rec.Size != f.dev.Size {
		f.rec.Size = f.dev.Size
		if err := f.Save(); err != nil {
			return none, errors.Trace(err)
		}
	}
	return f.info(), nil
}

// openMounted opens the root directory of the filesystem where it is mounted, so
// that it can be written to.
func (f *filesystem) openMounted() (*os.File, error) {
	path := f.rec.MountPoint
	if path == "" {
		return nil, errors.New("it is not attached: a filesystem grows while it is")
	}
	if err := f.locate(); err != nil {
		return nil, errors.Trace(err)
	}
	at, err := f.call.Find(f, path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if at == nil {
		return nil, errors.Errorf("it is not mounted at %s any more: attach it again", path)
	}
	defer at.Target.Close()
	switch {
	case at.Whose == object.Stranger:
		return nil, object.ErrStranger(path)
	case at.Whose == object.Foreign:
		return nil, errors.Errorf("%s is mounted at %s, and it is not: unmount that, and attach it again", mount.Describe(at.Info), path)
	case f.orphan != nil:
		return nil, errors.Errorf("the device of what is mounted at %s is gone: detach it, and attach it when the device is back", path)
	case mount.IsReadOnly(at.Info):
		return nil, storage.Permanent(errors.Errorf("it is mounted read-only at %s, and grows only when it is mounted read-write", path))
	}
	return at.Target.OpenDir()
}
