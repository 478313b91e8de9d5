package run

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/osthread"
)

// systemDirs are what an isolated program sees of the machine, each with all that is
// mounted in it: programs, libraries, their settings, devices and the kernel's files.
func systemDirs() []string {
	return []string{"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr"}
}

// errFixedRoot means that the root directory is not that of a mount which can be
// exchanged: in an initramfs, or after a chroot to a directory that is no mount point.
const errFixedRoot = errors.ConstError("root directory cannot be exchanged")

// runIsolated runs a command in a mount namespace with the system's directories alone,
// or with all of the machine's mounts where the root directory cannot be exchanged.
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

// isolate gives the calling thread a mount namespace in which the root directory is a
// copy of the root filesystem's mount, without those on top of it except for systemDirs
// and what is in them, and /run without what is mounted in it. What it does takes the
// same number of steps however many mounts the machine has.
func isolate() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return errors.Annotate(err, "making a mount namespace")
	}
	// What is unmounted here stays mounted elsewhere. What is unmounted elsewhere, where
	// mounts are shared, goes here too, and is not kept alive until the copy is gone.
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
		// A link leads to a directory that is in the list.
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
	// The old one is on top of the new one.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return errors.Annotate(err, "leaving the machine's mounts")
	}
	if err := unix.Chdir("/"); err != nil {
		return errors.Annotate(err, "entering the root directory")
	}
	// What is mounted from now on is not to be seen here.
	return errors.Annotate(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), "separating a mount namespace")
}

// cloneMount returns a copy of the mount at a path, mounted nowhere yet.
func cloneMount(path string, flags uint) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|flags)
	return fd, errors.Annotatef(err, "copying the mount of %s", path)
}
