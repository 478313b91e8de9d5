// Package provider makes storage on the machine that it runs on: volumes that are files
// attached to loop devices, filesystems in memory (tmpfs), directories of the machine's own
// filesystem (rootfs), and filesystems on volumes of any provider (the managed source).
//
// CommonStorageProviders is the registry of the first three. A source keeps the storage that
// it makes, and a record of each object, in its storage directory, which the pool's
// configuration names in storage.ConfigStorageDir. Sources of one provider may share a storage
// directory; sources of different providers must not. Records survive a crash at any moment:
// repeating the interrupted call completes it, and makes nothing twice.
//
// # Identity
//
// The ID of a volume or filesystem is its tag and the UUID of its owner ("volume-0-1-6f1c…"),
// if the resource tags of its creation name an owner. An ID is a name, and proves nothing: the
// resource tags in an object's record name its owner. A creation adopts an object of the same
// owner, and no other. An object without an owner is from an older version, or from a caller
// that names no owner; another such caller adopts it. A released object has no owner until it
// is imported.
//
// A backing file or directory is identified by device and inode number. Everything that is
// attached carries the mark of the directory of records that it was attached for: a loop
// device beside its backing file, a tmpfs in an attribute, and any mount by its unique ID,
// which is recorded with the mark. A copy of the directory has another mark, so it does not
// mistake the original's attachments for its own. Names of devices never serve as identity.
//
// After a directory was moved to another disk, [StorageDirectory] updates the identities of
// its objects.
//
// # What is refused
//
// The package changes only what is known to belong to it. A mount point must be absolute,
// reached through no symbolic link, empty, and free of other mounts. Attaching a filesystem
// makes missing directories; detaching it removes those that are empty. Nothing in use is
// detached or destroyed: the error says what uses it. No failure deletes data.
//
// # Concurrency
//
// Bulk calls of loop, tmpfs and rootfs sources that concern one directory run one after
// another, across all sources and processes. Calls of managed sources run concurrently; their
// work on one object is serialized. Within a call, several items may be carried out at once;
// items that concern one object are carried out in order. When the context is cancelled, the
// call starts no further items, and each of these gets the context's error.
//
// The package works on Linux, as root. It compiles on other systems, but its sources do not
// work there: the errors satisfy errors.IsNotSupported.
package provider
