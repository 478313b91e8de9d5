package run

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/osthread"
)

// systemDirs returns the directories that an isolated program sees, each with all mounts in
// it: programs, libraries, their settings, devices and the kernel's files.
func systemDirs() []string {
	return []string{"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr"}
}

// errFixedRoot means that the root directory is not the root of a mount that can be exchanged:
// in an initramfs, or after a chroot to a directory that is not a mount point.
const errFixedRoot = errors.ConstError("root directory cannot be exchanged")

// runIsolated runs a command in a mount namespace that has only the system's directories. If
// the root directory cannot be exchanged, the command sees all of the machine's mounts.
func runIsolated(cmd *exec.Cmd) error {
	var err error
	osthread.Do(func() {
		if err = isolate(); err == nil {
			err = cmd.Run()
		}
	})
	if errors.Is(err, errFixedRoot) {
		return cmd.Run()
	}
	return err
}

// isolate moves the calling thread to a new mount namespace. Its root directory is a copy of
// the root filesystem's mount, without the mounts on top of it except systemDirs with the
// mounts in them, and /run without the mounts in it. The number of steps does not depend on
// the number of mounts.
func isolate() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return errors.Annotate(err, "making a mount namespace")
	}
	// Unmounting here does not affect other namespaces. If the mounts are shared, an unmount
	// elsewhere also takes effect here, and this copy does not keep the filesystem alive.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err == unix.EINVAL {
		return errFixedRoot
	} else if err != nil {
		return errors.Annotate(err, "separating a mount namespace")
	}
	root, err := cloneMount("/", 0)
	if err != nil {
		return errors.Trace(err)
	}
	defer unix.Close(root)
	inRoot := map[string]int{}
	defer func() {
		for _, tree := range inRoot {
			unix.Close(tree)
		}
	}()
	for _, dir := range append(systemDirs(), "run") {
		// A symbolic link leads to another directory of the list.
		if info, err := os.Lstat("/" + dir); err != nil || !info.IsDir() {
			continue
		}
		flags := uint(unix.AT_RECURSIVE)
		if dir == "run" {
			flags = 0
		}
		if inRoot[dir], err = cloneMount("/"+dir, flags); err != nil {
			delete(inRoot, dir)
			return errors.Trace(err)
		}
	}
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return errors.Annotate(err, "mounting a root directory")
	}
	for dir, tree := range inRoot {
		if err := unix.MoveMount(tree, "", root, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return errors.Annotatef(err, "mounting %s", filepath.Join("/", dir))
		}
	}
	if err := unix.Fchdir(root); err != nil {
		return errors.Annotate(err, "entering a root directory")
	}
	if err := unix.PivotRoot(".", "."); err == unix.EINVAL {
		return errFixedRoot
	} else if err != nil {
		return errors.Annotate(err, "exchanging the root directory")
	}
	// The old root is mounted on top of the new one.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return errors.Annotate(err, "leaving the machine's mounts")
	}
	if err := unix.Chdir("/"); err != nil {
		return errors.Annotate(err, "entering the root directory")
	}
	// Later mounts must not appear here.
	return errors.Annotate(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), "separating a mount namespace")
}

// cloneMount returns a copy of the mount at a path. The copy is not mounted anywhere yet.
func cloneMount(path string, flags uint) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|flags)
	return fd, errors.Annotatef(err, "copying the mount of %s", path)
}
