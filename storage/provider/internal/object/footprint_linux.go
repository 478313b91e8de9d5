package object

import (
	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// Footprint returns the footprint of an object, with no more than its record.
func (c *Call) Footprint(id string) *Footprint {
	return &Footprint{Record: c.Records.Path(id)}
}

// AddFile adds the file or directory of the object.
func (c *Call) AddFile(f *Footprint, id string) error {
	file := File{Path: c.Files.Entry(id)}
	var st unix.Stat_t
	err := unix.Fstatat(int(c.Files.File().Fd()), id, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == unix.ENOENT:
		file.Missing = true
	case err != nil:
		return errors.Annotatef(err, "reading %s", file.Path)
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		file.Directory = true
	default:
		file.Size, file.Allocated = uint64(st.Size), uint64(st.Blocks)*512
	}
	f.Files = append(f.Files, file)
	return nil
}

// AddMounts adds the mounts that find returns, the usage of the filesystem that the first of them
// shows, and who uses them or the block devices with the numbers.
func (c *MountCall) AddMounts(f *Footprint, find Finder, devices ...uint64) error {
	table, err := c.Table()
	if err != nil {
		return errors.Trace(err)
	}
	mounts := find(table)
	for _, m := range mounts {
		f.Mounts = append(f.Mounts, Mount{Path: m.Mountpoint, ReadOnly: mount.IsReadOnly(m)})
	}
	if len(mounts) > 0 {
		f.usage = func() (Usage, error) { return usageOf(mounts) }
	}
	f.holders = func() []Holder { return holders(mount.HoldersOf(find, devices)) }
	return nil
}

// AddDirectory is AddMounts for a directory with this path, whose size is limited to some bytes unless
// limit is 0.
func (c *MountCall) AddDirectory(f *Footprint, path string, dir mount.Directory, limit uint64) error {
	find := func(t *mount.Table) []*mountinfo.Info { return t.WithinDirectory(dir) }
	if err := c.AddMounts(f, find); err != nil {
		return errors.Trace(err)
	}
	f.usage = func() (Usage, error) {
		target, err := mount.OpenTarget(path)
		if err != nil {
			return Usage{}, errors.Trace(err)
		}
		defer target.Close()
		usage, err := statfs(target)
		usage.Shared = isShared(usage, limit)
		return usage, errors.Trace(err)
	}
	f.holders = func() []Holder {
		return holders(append(mount.HoldersWithin(dir), mount.Elsewhere(mount.ReadNamespaces(), find)...))
	}
	return nil
}

// usageOf returns the usage of the filesystem of mounts: that of the first that nothing is mounted
// over.
func usageOf(mounts []*mountinfo.Info) (Usage, error) {
	var first error
	for _, m := range mounts {
		target, err := mount.OpenMount(m)
		if err == nil {
			usage, err := statfs(target)
			target.Close()
			return usage, errors.Trace(err)
		}
		if first == nil {
			first = err
		}
	}
	return Usage{}, errors.Trace(first)
}

func statfs(target *mount.Target) (Usage, error) {
	st, err := target.Statfs()
	if err != nil {
		return Usage{}, errors.Trace(err)
	}
	unit := uint64(st.Frsize)
	return Usage{Size: st.Blocks * unit, Free: st.Bfree * unit, Available: st.Bavail * unit}, nil
}

func holders(found []mount.Holder) []Holder {
	all := make([]Holder, len(found))
	for i, h := range found {
		all[i] = Holder{PID: h.PID, Name: h.Name, Use: h.How}
	}
	return all
}
