// Package record keeps one small JSON record per object in a directory, so that
// what was begun before a crash is known after it.
//
// A record's file has room for two versions of it, a page each, and the younger
// one counts. A new version is written where the older one is, and synced: that
// waits for the disk once, needs no space, and if it is cut short the other
// version is there. A record that has no file yet, or is too large for a page,
// is written to a new file, which is synced and renamed to its place; then the
// directory is synced. So a reader sees the old record or the new one, never a part;
// after Save has returned, a power cut does not take it back. A directory whose sync
// failed is synced by the next who locks it, or changes a record in it. A file that holds
// one JSON text and nothing else, as a person would write it, is a record as well.
//
// It is for hundreds or thousands of records that are each a few hundred bytes.
// It has no transactions over several records and no index.
//
// Saving and removing need the store's lock, which one bulk call takes once and
// holds to its end; within it records of different objects may be saved at once.
// Loading and listing need no lock, but only what is read under the lock stays
// true.
package record
