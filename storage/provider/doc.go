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
// The id of a volume or filesystem is its tag and the UUID of its owner
// ("volume-0-1-6f1c…"), where the resource tags of its creation name one. An id is a
// name, and proves nothing: whose an object is tell the resource tags in its record,
// and creation adopts what has the same owner, and nothing else. An object without an
// owner is from an older version, or from a caller who names none; another such caller
// adopts it. What was released is nobody's until it is imported.
//
// A backing file or directory is known by device and inode number. What is attached
// carries the mark of the directory of records that it was attached for: a loop device
// beside its backing file, a tmpfs in an attribute, and any mount by its unique ID, which
// is recorded with the mark. A copy of the directory has another mark, and so it takes
// nothing of the original's for its own. Names of devices are never taken for identity.
//
// After a directory was moved to another disk, [StorageDirectory] makes its objects known
// again.
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
