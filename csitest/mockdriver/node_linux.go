package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// node makes the devices and mounts of volumes: each is a file behind a loop device, or a directory.
type node struct {
	mu  sync.Mutex
	dir string
}

func (n *node) data(id string) string { return filepath.Join(n.dir, id) }

func (n *node) snapshotData(id string) string { return n.data("snapshot-" + id) }

// create makes the data of a volume, unless it exists.
func (n *node) create(v *csi.Volume, r *csi.CreateVolumeRequest) error {
	data := n.data(v.GetVolumeId())
	switch from := r.GetVolumeContentSource(); {
	case from.GetSnapshot() != nil:
		if err := copyData(n.snapshotData(from.GetSnapshot().GetSnapshotId()), data); err != nil {
			return err
		}
	case from.GetVolume() != nil:
		if err := copyData(n.data(from.GetVolume().GetVolumeId()), data); err != nil {
			return err
		}
	}
	if r.GetVolumeCapabilities()[0].GetBlock() == nil {
		return mkdir(data)
	}
	f, err := os.OpenFile(data, os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return n.grow(v.GetVolumeId(), v.GetCapacityBytes())
}

// snapshot makes the data of a snapshot, unless it exists.
func (n *node) snapshot(s *csi.Snapshot) error {
	return copyData(n.data(s.GetSourceVolumeId()), n.snapshotData(s.GetSnapshotId()))
}

// copyData copies a file or directory, unless the copy exists. The mock makes snapshots of volumes that
// do not exist, too; they have no data.
func copyData(from, to string) error {
	for _, path := range []string{from, to} {
		if _, err := os.Lstat(path); (path == to) == (err == nil) {
			return nil
		}
	}
	if out, err := exec.Command("cp", "-a", "--sparse=always", from, to).CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("cp: %w: %s", err, out), os.RemoveAll(to))
	}
	return nil
}

func mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// grow makes a volume in a file at least size bytes large.
func (n *node) grow(id string, size int64) error {
	info, err := os.Stat(n.data(id))
	if err != nil || info.IsDir() || info.Size() >= size {
		return err
	}
	return os.Truncate(n.data(id), size)
}

// publish shows a volume at a path, unless it is there.
func (n *node) publish(r *csi.NodePublishVolumeRequest) (err error) {
	at, from := r.GetTargetPath(), n.data(r.GetVolumeId())
	if mounted, err := mountinfo.Mounted(at); mounted || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if r.GetVolumeCapability().GetBlock() == nil {
		if err := mkdir(at); err != nil {
			return err
		}
		return unix.Mount(from, at, "", unix.MS_BIND, "")
	}
	device, err := attach(from)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // the caller may remove the path while it is made
			err = errors.Join(err, n.detach(r.GetVolumeId(), device))
		}
	}()
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		return err
	}
	return unix.Mount(device, at, "", unix.MS_BIND, "")
}

// unpublish undoes publish.
func (n *node) unpublish(r *csi.NodeUnpublishVolumeRequest) error {
	at := r.GetTargetPath()
	if mounted, err := mountinfo.Mounted(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	} else if mounted {
		if err := unix.Unmount(at, 0); err != nil {
			return err
		}
	}
	device, err := n.device(r.GetVolumeId())
	if err == nil && device != "" {
		err = n.detach(r.GetVolumeId(), device)
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(at)
}

// update lets the loop device of a volume, if it has one, show the size of its file.
func (n *node) update(id string) error {
	device, err := n.device(id)
	if err != nil || device == "" {
		return err
	}
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_CAPACITY, 0)
}

// device returns the loop device of a volume; empty if it has none.
func (n *node) device(id string) (string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, file := range files {
		// A device of another program may be gone.
		if backing, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(backing)) == n.data(id) {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(filepath.Dir(file)))), nil
		}
	}
	return "", nil
}

// attach attaches a loop device to a file. losetup fails if another program takes the free device that it
// has found, which means that the other program has made progress.
func attach(file string) (string, error) {
	var out []byte
	var err error
	for range 100 {
		if out, err = exec.Command("losetup", "--find", "--show", file).Output(); err == nil {
			return strings.TrimSpace(string(out)), nil
		}
	}
	return "", fmt.Errorf("losetup: %w", err)
}

// detach detaches the loop device of a volume, and waits until programs that look at all devices have let
// it go.
func (n *node) detach(id, device string) error {
	if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
		return fmt.Errorf("losetup: %w: %s", err, out)
	}
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); ; <-again.C {
		if used, err := n.device(id); err != nil || used != device {
			return err
		}
		if time.Since(begun) > 10*time.Second {
			return fmt.Errorf("%s is in use", device)
		}
	}
}
