// Package mount makes and undoes mounts on Linux, and answers what is mounted.
//
// A mount is made detached (New, Bind), looked at, and then put at its place in
// one step (Detached.Attach), so that nobody ever sees it half configured: a
// read-only mount was never writable. Every mount is nosuid and nodev.
//
// A mount point comes from outside and is never trusted: it is absolute and
// clean, no part of it is a symbolic link, and what is mounted on is an empty
// directory that has nothing mounted on it. Unmounting is never lazy: a busy
// mount is an error that names who keeps it busy.
//
// The kernel must have fsopen, openat2, mount_setattr and the mount id in statx
// (all since Linux 5.12), and the caller CAP_SYS_ADMIN. Where one is missing, the
// error satisfies errors.IsNotSupported.
//
// The functions keep no state and may be called from any goroutine.
package mount
