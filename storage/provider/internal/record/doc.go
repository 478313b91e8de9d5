// Package record stores one small JSON record per object in a directory, so that work that was
// begun before a crash is known after it.
//
// A record's file holds two versions of the record, one page each, and the newer one counts. A
// new version overwrites the older one and is synced. That waits for the disk once and needs
// no space, and if it is interrupted, the other version is intact. A record that has no file
// yet, or is too large for a page, is written to a new file, which is synced and renamed to
// its place; then the directory is synced. So a reader sees the old record or the new one,
// never a part; after Save has returned, a power cut does not undo it. A directory whose sync
// failed is synced by the next caller that locks it or changes a record in it. A file that
// contains a single JSON text and nothing else, as a person would write it, is a valid record
// too.
//
// The package is for hundreds or thousands of records of a few hundred bytes each. It has no
// transactions over several records and no index.
//
// Saving and removing a record need the store's lock, which a bulk call takes once and holds
// to its end, or a lock of the caller's own on that record (see [Store.Sweep]). Records of
// different objects may be saved at once. Loading and listing need no lock, but only what is
// read under a lock stays true.
package record
