// Package provider makes storage on the machine that it runs on: volumes that are
// files attached to loop devices, filesystems in memory (tmpfs), directories of
// the machine's own filesystem (rootfs), and filesystems on volumes that any
// provider made (the managed source).
//
// CommonStorageProviders is the registry of the first three. A source keeps what
// it makes, and a record of each object, in its storage directory, which the
// pool's configuration gives as storage.ConfigStorageDir. Sources of one provider
// may share a storage directory; those of different providers must not. Records
// survive a crash at any moment: repeating the call that was interrupted finishes
// it, and nothing is made twice.
//
// # Identity
//
// The id of a volume or filesystem is its tag ("volume-0-1"). A backing file or
// directory is known by device and inode number, an attached loop device by its
// backing file, and a mount by what is mounted. Names of devices are never taken
// for identity.
//
// # What is refused
//
// What is not known to be ours is not touched. A mount point must be absolute,
// reached through no symbolic link, empty, and free of other mounts; missing
// directories are made, and taken away again when the filesystem is detached,
// as far as they are empty then. Nothing in use is detached or destroyed: the
// error names who uses it. No failure deletes data.
//
// # Concurrency
//
// Bulk calls that concern one directory take turns, over all sources and
// processes. Within a call, several items may be carried out at once, those that
// concern one object in order; a cancelled context ends it between two items, and
// each item not begun gets the context's error.
//
// The package works on Linux, as root. Elsewhere it compiles, and the sources are
// not supported.
package provider
