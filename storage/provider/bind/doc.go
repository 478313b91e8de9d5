// Package bind shows storage that is attached to a machine at further paths: a mounted filesystem at
// directories, and a block device at files. Both are bind mounts, and the kernel's table of mounts is
// the only record of them, so they outlast the process that made them, and a restart of the machine
// removes them.
//
// It is for programs that pass storage on, such as drivers for container orchestrators. Storage that
// is to be in one place only is attached there in the first place. Look for binds before the storage is
// detached ([Source.Targets]): a filesystem cannot be detached while it has any, but a bind of a
// device node does not keep the device, whose number another device may get.
//
// A target comes from outside and is never trusted: its path is absolute and clean, and no part of it
// is a symbolic link. A bind of a filesystem is nosuid and nodev, as the filesystem is itself.
//
// The functions keep no state and may be called from any goroutine, for one target by one at a time.
package bind
