// Package mount makes and removes mounts on Linux, and reports what is mounted.
//
// A mount is made detached (New, Bind), examined, and then attached to its mount point in one
// step (Detached.Attach), so that nobody sees it half configured: a read-only mount was never
// writable. Every mount is nosuid and nodev.
//
// A mount point comes from outside and is never trusted: its path is absolute and clean, no
// part of it is a symbolic link, and it is an empty directory on which nothing is mounted.
// Unmounting is never lazy: a busy mount is an error that names its holders.
//
// The kernel must have fsopen, openat2, mount_setattr and the mount ID in statx (all since
// Linux 5.12), and the caller must have CAP_SYS_ADMIN. If one is missing, the error satisfies
// errors.IsNotSupported.
//
// The functions keep no state and may be called from any goroutine.
package mount
