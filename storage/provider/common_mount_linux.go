package provider

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// placement says where a filesystem is, or may be, mounted. It is recorded
// before the filesystem is mounted and forgotten after it is unmounted, so that a
// crash in between loses nothing.
type placement struct {
	MountPoint string `json:"mount-point,omitempty"`

	// MadeDirs are the directories that were made for the mount point,
	// outermost first.
	MadeDirs []string `json:"made-dirs,omitempty"`
}

// mountable is a filesystem that is mounted at one place at a time.
type mountable interface {
	// placement is where it is mounted, for reading and for changing.
	placement() *placement
	// save records it, with its placement, and note does so until a power cut.
	save() error
	note() error
	// mount makes it, nowhere yet.
	mount(readOnly bool) (*mount.Detached, error)
	// mounts finds it in a table.
	mounts(*mount.Table) ([]*mountinfo.Info, error)
	// check makes sure that a mount of it is as it should be.
	check(*mount.Target) error
}

// mountCall is one bulk call on filesystems. It reads mountinfo once, unless it
// comes upon a mount that is younger.
type mountCall struct {
	*call
	// newest is the youngest table that has been read.
	newest atomic.Pointer[mount.Table]
	// allNamespaces returns what is mounted in all mount namespaces, as of when
	// it is called first.
	allNamespaces func() []mount.Namespace
}

func (c *mountCall) table() *mount.Table { return c.newest.Load() }

func beginMounts(ctx context.Context, dir, files string) (*mountCall, error) {
	c, err := begin(ctx, dir, files)
	if err != nil {
		return nil, errors.Trace(err)
	}
	table, err := mount.ReadTable()
	if err != nil {
		c.end()
		return nil, errors.Trace(err)
	}
	m := &mountCall{call: c, allNamespaces: sync.OnceValue(mount.ReadNamespaces)}
	m.newest.Store(table)
	return m, nil
}

// mountAll attaches filesystems, several at once unless one may be in the way of
// another.
func (c *mountCall) mountAll(params []storage.FilesystemAttachmentParams, do func(storage.FilesystemAttachmentParams) (string, error)) ([]string, []error) {
	paths := make([]string, len(params))
	for i, p := range params {
		if paths[i] = p.Path; p.Path == "" {
			paths[i] = c.files.Entry(p.FilesystemId)
		}
	}
	if !mount.Apart(paths) {
		return collect(c, params, do)
	}
	return collectAtOnce(c, params, attachedFilesystem, do)
}

// found is what is mounted at a path.
type found struct {
	*mountinfo.Info
	target *mount.Target
	ours   bool
}

// find returns what is mounted at a path, and whether it is the filesystem; nil
// where nothing is mounted. Its target is to be closed.
func (c *mountCall) find(f mountable, path string) (*found, error) {
	target, err := mount.OpenTarget(path)
	if errors.Is(err, errors.NotFound) {
		return nil, nil
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	if !target.IsMount() {
		target.Close()
		return nil, nil
	}
	at, err := c.identify(f, target)
	if err != nil {
		target.Close()
		return nil, errors.Trace(err)
	}
	return at, nil
}

func (c *mountCall) identify(f mountable, target *mount.Target) (*found, error) {
	info := c.table().ByID(target.MountID())
	if info == nil || info.Mountpoint != target.Path {
		table, err := mount.ReadTable()
		if err != nil {
			return nil, errors.Trace(err)
		}
		c.newest.Store(table)
		if info = table.ByID(target.MountID()); info == nil {
			return nil, errors.Errorf("what is mounted at %s is changing", target.Path)
		}
	}
	ours, err := c.isMountedBy(f, info)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return &found{Info: info, target: target, ours: ours}, nil
}

// isMountedBy tells whether a mount is the filesystem.
func (c *mountCall) isMountedBy(f mountable, info *mountinfo.Info) (bool, error) {
	mounts, err := f.mounts(c.table())
	if err != nil {
		return false, errors.Trace(err)
	}
	for _, m := range mounts {
		if m.ID == info.ID {
			return true, nil
		}
	}
	return false, nil
}

// attach mounts a filesystem at a path, or finds it mounted there.
func (c *mountCall) attach(f mountable, path string, readOnly bool) error {
	place := f.placement()
	if place.MountPoint != "" && place.MountPoint != path {
		if err := c.leave(f); err != nil {
			return errors.Trace(err)
		}
	}
	at, err := c.find(f, path)
	if err != nil {
		return errors.Trace(err)
	}
	if at != nil {
		defer at.target.Close()
		return errors.Trace(c.adopt(f, at, readOnly))
	}

	missing, err := mount.Missing(path)
	if err != nil {
		return errors.Trace(err)
	}
	if place.MountPoint != path || len(missing) > len(place.MadeDirs) {
		if err := move(f, placement{MountPoint: path, MadeDirs: missing}); err != nil {
			return errors.Trace(err)
		}
	}
	mounted, err := f.mount(readOnly)
	if err != nil {
		return errors.Trace(err)
	}
	defer mounted.Close()
	crash.At("mounted nowhere yet")
	target, err := mount.MakeTarget(path)
	if err != nil {
		return errors.Trace(err)
	}
	defer target.Close()
	crash.At("mount point made")
	if err := mounted.Attach(target); err != nil {
		return errors.Trace(err)
	}
	crash.At("mounted")
	return nil
}

// adopt makes sure that what is mounted already is what is wanted.
func (c *mountCall) adopt(f mountable, at *found, readOnly bool) error {
	path := at.target.Path
	switch {
	case !at.ours:
		return storage.Permanent(errors.Errorf("%s is mounted at %s: unmount it or choose another mount point",
			mount.Describe(at.Info), path))
	case mount.IsReadOnly(at.Info) != readOnly:
		return storage.Permanent(errors.Errorf("it is mounted at %s %s, and wanted %s: detach it first",
			path, accessName(!readOnly), accessName(readOnly)))
	}
	if err := f.check(at.target); err != nil {
		return storage.Permanent(errors.Annotatef(err, "it is mounted at %s, but", path))
	}
	if place := f.placement(); place.MountPoint != path {
		return errors.Trace(move(f, placement{MountPoint: path}))
	}
	return nil
}

// leave gives up a mount point at which the filesystem is not mounted any more.
func (c *mountCall) leave(f mountable) error {
	place := f.placement()
	at, err := c.find(f, place.MountPoint)
	if err != nil {
		return errors.Trace(err)
	}
	if at != nil {
		at.target.Close()
		if at.ours {
			return storage.Permanent(errors.Errorf("it is mounted at %s: detach it first", place.MountPoint))
		}
		if err := c.checkNotBeneath(f, at); err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(c.forgetPlace(f))
}

// detach unmounts a filesystem. Of what else is mounted at its mount point
// nothing is touched.
func (c *mountCall) detach(f mountable) error {
	path := f.placement().MountPoint
	if path == "" {
		return nil
	}
	at, err := c.find(f, path)
	if err != nil {
		return errors.Trace(err)
	}
	if at != nil {
		at.target.Close()
		if at.ours {
			err = mount.Unmount(path)
		} else {
			err = c.checkNotBeneath(f, at)
		}
		if err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(c.forgetPlace(f))
}

// checkNotBeneath returns an error if the filesystem is covered by another mount.
func (c *mountCall) checkNotBeneath(f mountable, top *found) error {
	mounts, err := f.mounts(c.table())
	if err != nil {
		return errors.Trace(err)
	}
	for _, m := range mounts {
		if m.Mountpoint == top.Mountpoint {
			return errors.Errorf("%s is mounted over it at %s: unmount that first", mount.Describe(top.Info), top.Mountpoint)
		}
	}
	return nil
}

// forgetPlace removes what was made for a mount point and the record of it.
func (c *mountCall) forgetPlace(f mountable) error {
	crash.At("mounted no more")
	place := f.placement()
	if err := mount.RemoveDirs(place.MadeDirs); err != nil {
		return errors.Trace(err)
	}
	crash.At("mount point removed")
	return errors.Trace(unlessFull(move(f, placement{})))
}

// move records another placement of a filesystem. A power cut unmounts it, and may
// take back where it was mounted; but the directories that are made for that last.
func move(f mountable, to placement) error {
	place := f.placement()
	from := *place
	*place = to
	if len(from.MadeDirs) > 0 || len(to.MadeDirs) > 0 {
		return errors.Trace(f.save())
	}
	return errors.Trace(f.note())
}
