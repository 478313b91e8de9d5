package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/e2e/internal/kernel"
)

// interfere lets another program of the machine interfere with what is attached, and with the
// machine. Everything is as wanted before, and afterwards.
func (s *soak) interfere() error {
	s.figures.interfered++
	does := []func() error{s.unmountSome, s.coverSome, s.detachSome, s.discard, s.withOtherNamespace, s.withFullDisk}
	if err := does[s.rand.IntN(len(does))](); err != nil {
		return err
	}
	return s.converge(time.Now())
}

// settledOnes returns one to three attached instances of a sort that have no pending request.
func (s *soak) settledOnes(sort func(*instance) bool) []*instance {
	var some []*instance
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		if i := s.all[name]; i.settled != nil && i.want.attached && sort(i) {
			some = append(some, i)
		}
	}
	return s.some(some)
}

func isMounted(i *instance) bool { return !i.block() }

// unmountSome unmounts filesystems. The agent must show them as unmounted, and mount them on
// request; or the agent is killed first, and the next one mounts them.
func (s *soak) unmountSome() error {
	some := s.settledOnes(isMounted)
	if len(some) == 0 {
		return nil
	}
	for _, i := range some {
		s.note("somebody unmounts %s", i.mount)
		if i.volatile {
			i.data = map[string]datum{}
		}
		if err := unmount(i.mount); err != nil {
			return err
		}
	}
	if s.rand.IntN(3) == 0 {
		return s.restart()
	}
	for _, i := range some {
		if err := s.awaitShown(i, "error", "it was unmounted from "+i.mount); err != nil {
			return err
		}
	}
	return s.operate(change("attach", some, func(w want) *want { return &w }))
}

// coverSome mounts something over filesystems, and unmounts it once the agent has shown it.
func (s *soak) coverSome() error {
	for _, i := range s.settledOnes(isMounted) {
		s.note("somebody mounts over %s", i.mount)
		if err := unix.Mount("over", i.mount, "tmpfs", 0, "size=64k"); err != nil {
			return err
		}
		if err := s.awaitShown(i, "error", "tmpfs from over is mounted over it"); err != nil {
			return err
		}
		if err := unmount(i.mount); err != nil {
			return err
		}
		if err := s.awaitShown(i, "attached", ""); err != nil {
			return err
		}
	}
	return nil
}

// detachSome detaches loop devices of volumes. The next agent attaches them again.
func (s *soak) detachSome() error {
	// A driver that runs does not learn that its device is gone.
	blocks := func(i *instance) bool { return i.block() && i.onVolume() }
	for _, i := range s.settledOnes(blocks) {
		s.note("somebody detaches %s of %s", i.settled.Location, i.name)
		if err := kernel.Detach(i.settled.Location); err != nil {
			return err
		}
	}
	return s.restart()
}

// restart kills the agent and starts another.
func (s *soak) restart() error {
	s.figures.kills++
	if err := s.kill(); err != nil {
		return err
	}
	return s.start()
}

// discard discards the free space of filesystems, and all of block devices: thick volumes must
// keep their blocks, and block devices their data.
func (s *soak) discard() error {
	for _, i := range s.settledOnes((*instance).onVolume) {
		tool, at := "fstrim", i.mount
		if i.block() {
			tool, at = "blkdiscard", i.settled.Location
		}
		out, err := exec.Command(tool, at).CombinedOutput()
		s.note("%s %s: %v: %s", tool, at, err, out)
		if err == nil {
			return fmt.Errorf("%s %s was carried out", tool, at)
		}
		file := s.volumeFile(i)
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil {
			return err
		}
		if st.Blocks*512 < st.Size {
			return fmt.Errorf("%s has %d bytes, and blocks for %d, after %s", file, st.Size, st.Blocks*512, tool)
		}
	}
	return nil
}

// withOtherNamespace makes requests while a process in another mount namespace has copies of all
// mounts, as a container may.
func (s *soak) withOtherNamespace() (err error) {
	holder := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat")
	stdin, err := holder.StdinPipe()
	if err != nil {
		return err
	}
	ready, err := holder.StdoutPipe()
	if err != nil {
		return err
	}
	if err := holder.Start(); err != nil {
		return err
	}
	defer func() {
		stdin.Close()
		err = errors.Join(err, holder.Wait())
	}()
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	s.note("process %d has copies of all mounts", holder.Process.Pid)
	return s.operateWithoutWaiting(false)
}

// withFullDisk makes requests while the disk of the storage is full.
func (s *soak) withFullDisk() error {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dataDisk.dir, &st); err != nil {
		return err
	}
	filler := filepath.Join(s.dataDisk.dir, "filler")
	f, err := os.OpenFile(filler, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	filled := int64(0)
	for step := int64(st.Bavail) * st.Bsize; step >= 64<<10; {
		switch err := unix.Fallocate(int(f.Fd()), 0, filled, step); err {
		case nil:
			filled += step
		case unix.ENOSPC:
			step /= 2
		case unix.EINTR:
		default:
			return fmt.Errorf("filling %s: %w", s.dataDisk.dir, err)
		}
	}
	s.note("somebody fills the storage's disk with %d MiB", filled>>20)
	err = s.operateWithoutWaiting(true)
	return errors.Join(err, removeForGood(filler))
}

// operateWithoutWaiting carries out operations that may have no effect until later, or be
// refused.
func (s *soak) operateWithoutWaiting(mayBeRefused bool) error {
	for range 1 + s.rand.IntN(3) {
		o, err := s.nextOperation(nil)
		if o == nil || err != nil {
			return err
		}
		for at, arg := range o.args {
			if arg == "--wait" {
				o.args = o.args[:at]
				break
			}
		}
		o.mayBeRefused = o.mayBeRefused || mayBeRefused
		if err := s.operate(o); err != nil {
			return err
		}
	}
	return nil
}

// awaitShown waits until the agent shows an instance with a status and a message.
func (s *soak) awaitShown(i *instance, status, message string) error {
	return s.awaitStatus(func(all map[string]command.Storage) error {
		if row := all[i.name]; string(row.Status) != status || !strings.Contains(row.Message, message) {
			return fmt.Errorf("%s is not shown as %s, %q: %+v", i.name, status, message, row)
		}
		return nil
	})
}
