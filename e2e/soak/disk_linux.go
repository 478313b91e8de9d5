package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/kernel"
	"github.com/stowage-io/stowage/internal/looptest"
)

// disk is the soak's own filesystem on its own loop device, which can be shut down while it is
// used.
type disk struct {
	kind   string // kind of the filesystem
	image  string
	device string
	dir    string // where it is mounted
}

// newDisk makes and mounts a disk of size MiB. name is the name of its file and directory
// below dir.
func newDisk(dir, name, kind string, size int64) (*disk, error) {
	d := &disk{kind: kind, image: filepath.Join(dir, name+".img"), dir: filepath.Join(dir, name)}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		return d, err
	}
	if err := os.Truncate(d.image, size<<20); err != nil {
		return d, err
	}
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		return d, err
	}
	if _, err := program("mkfs."+kind, "-q", d.image); err != nil {
		return d, err
	}
	var err error
	if d.device, err = looptest.Attach(d.image); err != nil {
		return d, err
	}
	return d, d.mount()
}

func (d *disk) mount() error {
	_, err := program("mount", "-t", d.kind, d.device, d.dir)
	return err
}

// remount unmounts the disk, once its last users have closed it, and mounts it again. The
// kernel may release the former filesystem a moment later, and would mount that one, which has
// failed.
func (d *disk) remount() error {
	if err := unmount(d.dir); err != nil {
		return err
	}
	err := eventually(patience, func() error {
		device, err := os.OpenFile(d.device, os.O_RDONLY|unix.O_EXCL, 0) // fails while it is mounted
		if err != nil {
			return err
		}
		return device.Close()
	})
	if err != nil {
		return err
	}
	return d.mount()
}

// shutDown calls EXT4_IOC_SHUTDOWN, which has the same number as XFS_IOC_GOINGDOWN: the
// filesystem fails from now on. how is one of unix.FS_SHUTDOWN_FLAGS_….
func (d *disk) shutDown(how int) error {
	const iocShutdown = 0x8004587d // _IOR('X', 125, __u32)
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), iocShutdown, how); err != nil {
		return fmt.Errorf("shutting down %s: %w", d.dir, err)
	}
	return nil
}

// check checks the filesystem with its own program.
func (d *disk) check() error { return checkFilesystem(d.kind, d.image) }

// checkFilesystem reports damage in an unmounted filesystem, and repairs nothing.
func checkFilesystem(kind, device string) error {
	var err error
	switch kind {
	case "ext4":
		_, err = program("fsck.ext4", "-f", "-n", device)
	case "xfs":
		_, err = program("xfs_repair", "-n", device)
	case "btrfs":
		// Without --force, it looks at all loop devices of the host, whose disks may have failed.
		_, err = program("btrfs", "check", "--readonly", "--force", device)
	}
	return err
}

// detach detaches the loop device.
func (d *disk) detach() error {
	if d.device == "" {
		return nil
	}
	if err := kernel.Detach(d.device); err != nil {
		return err
	}
	d.device = ""
	return nil
}

// unmount unmounts a filesystem that may still be in use for a moment.
func unmount(path string) error {
	return eventually(patience, func() error {
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmounting %s: %w", path, err)
		}
		return nil
	})
}

// patience bounds the wait for anything that the agent does not do.
const patience = 30 * time.Second

// eventually calls try until it returns no error, or until the limit has passed.
func eventually(limit time.Duration, try func() error) error {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(limit); ; <-again.C {
		err := try()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s: %w", limit, err)
		}
	}
}

// program runs a system program, and returns its output.
func program(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s %q: %w: %s%s", name, args, err, out, exit.Stderr)
	}
	return string(out), err
}
