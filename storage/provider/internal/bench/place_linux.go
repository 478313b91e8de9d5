package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// place is the directory in which everything is made, and the loop nodes.
type place struct {
	dir string
	// nodes are the numbers of the loop nodes that makeNodes made.
	nodes []int
}

func makePlace(parent string) (*place, error) {
	dir, err := os.MkdirTemp(parent, "stowage-bench-")
	if err != nil {
		return nil, errors.Trace(err)
	}
	p := &place{}
	// A mount point's path must not contain a symbolic link.
	p.dir, err = filepath.EvalSymlinks(dir)
	return p, errors.Trace(err)
}

// path makes a directory in the place and returns its path.
func (p *place) path(name string) (string, error) {
	path := filepath.Join(p.dir, name)
	return path, errors.Trace(os.MkdirAll(path, 0o700))
}

// fit reduces the size of the volumes until they need at most half of the free space.
func (p *place) fit(s *settings) error {
	var st unix.Statfs_t
	if err := unix.Statfs(p.dir, &st); err != nil {
		return errors.Annotatef(err, "reading the free space of %s", p.dir)
	}
	free := st.Bavail * uint64(st.Bsize) >> 20
	s.size = min(s.size, free/2/uint64(s.volumes))
	if s.size < 8 || uint64(s.loops) > free/2 {
		return errors.Errorf("%d MiB free in %s: not enough", free, p.dir)
	}
	return nil
}

const loopControl = "/dev/loop-control"

// makeNodes makes loop nodes until there are n, so that no measured step has to make one.
func (p *place) makeNodes(n int) error {
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return errors.Trace(err)
	}
	defer control.Close()
	for number := range n {
		err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, number)
		if err == unix.EEXIST {
			continue
		} else if err != nil {
			return errors.Annotatef(err, "making loop%d", number)
		}
		p.nodes = append(p.nodes, number)
	}
	return nil
}

// remove removes everything that is left, and the loop nodes.
func (p *place) remove() error {
	if err := p.unmountAll(); err != nil {
		return errors.Trace(err)
	}
	if err := p.detachAll(); err != nil {
		return errors.Trace(err)
	}
	if err := os.RemoveAll(p.dir); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(p.removeNodes())
}

func (p *place) unmountAll() error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(p.dir))
	if err != nil {
		return errors.Trace(err)
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW); err != nil {
			return errors.Annotatef(err, "unmounting %s", m.Mountpoint)
		}
	}
	return nil
}

func (p *place) detachAll() error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return errors.Trace(err)
	}
	for _, file := range files {
		backing, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(backing), p.dir+"/") {
			continue
		}
		if err := clearLoop("/dev/" + filepath.Base(filepath.Dir(filepath.Dir(file)))); err != nil {
			return errors.Trace(err)
		}
	}
	return nil
}

// removeNodes removes the loop nodes that makeNodes made, except those that others use. The
// kernel takes 50 ms for each, most of it waiting.
func (p *place) removeNodes() error {
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return errors.Trace(err)
	}
	defer control.Close()
	// A process that takes this lock to get a free device must not get one of these.
	if err := unix.Flock(int(control.Fd()), unix.LOCK_EX); err != nil {
		return errors.Trace(err)
	}
	var removing sync.WaitGroup
	left := make(chan struct{}, 64)
	for _, number := range slices.Backward(p.nodes) {
		left <- struct{}{}
		removing.Go(func() {
			_ = unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, number)
			<-left
		})
	}
	removing.Wait()
	return nil
}

// describe returns one line about the machine that was measured.
func (p *place) describe() string {
	var name unix.Utsname
	_ = unix.Uname(&name)
	kernel := unix.ByteSliceToString(name.Release[:])
	filesystem := "unknown filesystem"
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(p.dir))
	if err == nil && len(mounts) > 0 {
		longest := slices.MaxFunc(mounts, func(a, b *mountinfo.Info) int { return len(a.Mountpoint) - len(b.Mountpoint) })
		filesystem = longest.FSType
	}
	return fmt.Sprintf("%d CPUs, kernel %s, %s", cpus(), kernel, filesystem)
}

func loopPath(number int) string { return "/dev/loop" + strconv.Itoa(number) }
