// Package record keeps one small JSON record per object in a directory, so that
// what was begun before a crash is known after it.
//
// A record is replaced as a whole: written beside the old one, synced, renamed
// over it, and the directory synced. A reader sees the old record or the new
// one, never a part; after Save has returned, a power cut does not take it back.
//
// It is for hundreds or thousands of records that are each a few hundred bytes.
// It has no transactions over several records and no index.
//
// Saving and removing need the store's lock, which one bulk call takes once and
// holds to its end. Loading and listing need no lock, but only what is read
// under the lock stays true.
package record
