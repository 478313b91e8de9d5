package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/e2e/internal/kernel"
	"github.com/stowage-io/stowage/internal/fsync"
)

// kernelHas describes the loop devices and mounts below a directory, except those of the driver, which
// goes on by itself.
func (s *soak) kernelHas(dir string) (string, error) {
	loops, err := kernel.Loops(dir)
	if err != nil {
		return "", err
	}
	mounts, err := kernel.Mounts(dir)
	if err != nil {
		return "", err
	}
	var lines []string
	ofDriver := func(path string) bool {
		return s.driver != nil && strings.HasPrefix(path, s.driver.stowage.DataDir+"/")
	}
	for _, l := range loops {
		if ofDriver(l.File) {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s of %s\n", l.Path, l.File))
	}
	for _, m := range mounts {
		if ofDriver(m.Mountpoint) {
			continue
		}
		lines = append(lines, fmt.Sprintf("mount %d of %s on %s\n", m.ID, m.Source, m.Mountpoint))
	}
	slices.Sort(lines)
	return strings.Join(lines, ""), nil
}

// copyDirectory copies the data directory with all storage, and runs a second agent in the
// copy beside the first.
func (s *soak) copyDirectory() error {
	s.figures.copies++
	if err := s.halt(); err != nil {
		return err
	}
	second := command.Stowage{Binary: s.binary, DataDir: filepath.Join(s.dataDisk.dir, "copy")}
	if err := s.frozen(func() error { return copyAll(s.stowage.DataDir, second.DataDir) }); err != nil {
		return err
	}
	if err := s.refusesToStart(second, "stowage adopt-dir"); err != nil {
		return err
	}
	if err := s.dropFromCopy(second.DataDir); err != nil {
		return err
	}
	if err := s.offline(second, "adopt-dir", "--copy", "--data-dir", second.DataDir); err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	if err := s.useCopy(second); err != nil {
		return fmt.Errorf("the copy of the directory: %w", err)
	}
	if err := removeForGood(second.DataDir); err != nil {
		return err
	}
	return s.converge(time.Now())
}

// copyAll copies a directory with everything below it, keeping holes in files.
func copyAll(from, to string) error {
	_, err := program("cp", "-a", "--reflink=auto", "--sparse=always", from, to)
	return err
}

// frozen calls do while the filesystems on loop devices are frozen, so that their backing
// files are complete.
func (s *soak) frozen(do func() error) (err error) {
	mounts, err := kernel.Mounts(s.mounts)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if !strings.HasPrefix(m.Source, "/dev/loop") || m.Source == s.dataDisk.device {
			continue
		}
		if _, err := program("fsfreeze", "--freeze", m.Mountpoint); err != nil {
			return err
		}
		defer func() {
			_, thaw := program("fsfreeze", "--unfreeze", m.Mountpoint)
			err = errors.Join(err, thaw)
		}()
	}
	return do()
}

// useCopy runs an agent in the copy until all its storage is there, compares the data, and
// removes the storage, while the first agent keeps all of its own.
func (s *soak) useCopy(second command.Stowage) (err error) {
	agent, err := second.Start(filepath.Join(s.dir, "second.log"), s.agentArgs()...)
	if err != nil {
		return err
	}
	s.second = agent
	defer func() {
		s.second = nil
		if err != nil {
			said, _ := os.ReadFile(filepath.Join(s.dir, "second.log"))
			err = fmt.Errorf("%w\nlog of its agent:\n%s", err, said)
		}
		if agent.Signal(unix.SIGKILL) == nil {
			<-agent.Ended
		}
		err = errors.Join(err, clearBelow(second.DataDir))
	}()
	select {
	case <-agent.Listening:
	case <-agent.Ended:
		return fmt.Errorf("the agent ended at once: %w", agent.Err())
	case <-time.After(liveness):
		return errors.New("the agent does not listen")
	}
	ctx, cancel := limited()
	defer cancel()
	var status map[string]command.Storage
	err = eventually(liveness, func() error {
		if status, err = second.Poll(ctx); err != nil {
			return err
		}
		return s.copied(second, status)
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		i := s.all[name]
		if location := status[name].Location; location != "" && !i.volatile && i.provider != driverName {
			if err := s.checkData(i, location); err != nil {
				return err
			}
		}
	}
	if err := s.stillThere(); err != nil {
		return err
	}
	if names := slices.Sorted(maps.Keys(status)); len(names) > 0 {
		if err := s.must(second, append([]string{"remove", "--wait"}, names...)...); err != nil {
			return err
		}
	}
	if err := s.deleteCopiedSnapshots(second); err != nil {
		return err
	}
	if err := agent.Signal(unix.SIGTERM); err != nil {
		return err
	}
	<-agent.Ended
	if err := agent.Err(); err != nil {
		return err
	}
	if left, err := s.kernelHas(second.DataDir); left != "" || err != nil {
		return fmt.Errorf("left of it (%v):\n%s", err, left)
	}
	return s.stillThere()
}

// copied checks that the copy has the storage of the original, at its own mount points. A
// filesystem that cannot be mounted twice is not mounted if the original's is.
func (s *soak) copied(second command.Stowage, status map[string]command.Storage) error {
	if len(status) != len(s.all) {
		return fmt.Errorf("it has %d storage instances, the original has %d: %+v", len(status), len(s.all), status)
	}
	for name, i := range s.all {
		if i.provider == driverName {
			continue // the copy does not have it
		}
		row := status[name]
		attached := row.Status == "attached" && row.Location != ""
		once := i.filesystem == "xfs" || i.filesystem == "btrfs"
		switch {
		case !i.want.attached && len(row.Attachments) > 0, i.want.attached && !attached && !once:
			return fmt.Errorf("%s is not %s: %+v", name, i.want, row)
		case attached && !i.block() && !strings.HasPrefix(row.Location, second.DataDir+"/"):
			return fmt.Errorf("%s is not at a mount point of its own: %+v", name, row)
		}
	}
	return nil
}

// stillThere checks that the first agent has all its storage, with its data.
func (s *soak) stillThere() error {
	return s.converge(time.Now())
}

// removeForGood removes a file or directory with everything below it. A power cut does not
// bring it back.
func removeForGood(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return fsync.Dir(filepath.Dir(path))
}

// clearBelow removes what an agent has left below a directory.
func clearBelow(dir string) error {
	if err := unmountAll(dir); err != nil {
		return err
	}
	return kernel.Clear(dir)
}

// moveDirectory moves the data directory to other inodes, as to another disk.
func (s *soak) moveDirectory() error {
	s.figures.moves++
	if err := s.halt(); err != nil {
		return err
	}
	if err := s.unmountAllStorage(); err != nil {
		return err
	}
	if err := unmount(s.boundStorage()); err != nil {
		return err
	}
	for _, dir := range []string{s.storageOnDisk(), s.stowage.DataDir} {
		aside := dir + ".moved"
		if err := copyAll(dir, aside); err != nil {
			return err
		}
		if err := errors.Join(os.RemoveAll(dir), os.Rename(aside, dir), fsync.Dir(filepath.Dir(dir))); err != nil {
			return err
		}
	}
	// A disk may be shut down later, which loses copied data that was not synced.
	unix.Sync()
	if err := s.bind(); err != nil {
		return err
	}
	if err := s.adoptMoved(); err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	return s.converge(time.Now())
}

// adoptMoved runs the command that the agent asks for after its directory was moved.
func (s *soak) adoptMoved() error {
	if err := s.refusesToStart(s.stowage, "stowage adopt-dir"); err != nil {
		return err
	}
	return s.offline(s.stowage, "adopt-dir", "--moved", "--data-dir", s.stowage.DataDir)
}

// unmountAllStorage simulates switching the machine off: data in memory is lost too.
func (s *soak) unmountAllStorage() error {
	if err := s.unmountStorage(); err != nil {
		return err
	}
	for _, i := range s.all {
		if i.volatile {
			i.data = map[string]datum{}
		}
	}
	return unmountAll(s.mounts)
}
