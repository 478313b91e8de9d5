package executor

import (
	"fmt"
	"os"
	"time"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/internal/patience"
)

// flushLimit is how long a flush may take. A disk that does not answer must not hold up the agent.
const flushLimit = 5 * time.Minute

// flush writes out what this machine has in memory of storage: of the filesystem that is mounted at the path,
// or of the block device and the filesystems on it.
func (x *Executor) flush(f task.Flush) error {
	failed, err := patience.Ask(x.flushing, f.Path, func() error { return flush(f.Path) })
	if err != nil {
		return errors.Annotatef(err, "writing out what is in memory of %s", f.Path)
	}
	return errors.Trace(failed)
}

func flush(path string) error {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return errors.Trace(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return errors.Trace(err)
	}
	switch info.Mode().Type() {
	case os.ModeDir:
		mounted, err := mountinfo.Mounted(path)
		if err == nil && !mounted {
			err = errors.NotFoundf("mount")
		}
		if err != nil {
			return errors.Annotatef(err, "%s", path)
		}
		return errors.Annotatef(unix.Syncfs(int(file.Fd())), "syncing %s", path)
	case os.ModeDevice:
	default:
		return errors.NewNotValid(nil, fmt.Sprintf("%s is neither a mount point nor a block device", path))
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return errors.Annotatef(err, "%s", path)
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return uint32(m.Major) != unix.Major(st.Rdev) || uint32(m.Minor) != unix.Minor(st.Rdev), false
	})
	if err != nil {
		return errors.Trace(err)
	}
	for _, m := range mounts {
		if err := syncMount(m, st.Rdev); err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(file.Sync())
}

// syncMount syncs the filesystem on a device through one of its mounts, unless something else is mounted
// over that.
func syncMount(m *mountinfo.Info, device uint64) error {
	root, err := os.OpenFile(m.Mountpoint, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it is not mounted any more
	} else if err != nil {
		return errors.Trace(err)
	}
	defer root.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil || st.Dev != device {
		return errors.Annotatef(err, "%s", m.Mountpoint)
	}
	return errors.Annotatef(unix.Syncfs(int(root.Fd())), "syncing %s", m.Mountpoint)
}
