// Package safepath works on the entries of one private directory through a
// descriptor of it, so that a change to its path cannot lead the work elsewhere.
// Names are single path elements, and no symbolic link is followed.
//
// It is for flat directories that belong to us, and for the one directory of
// others that an entry is taken over from. For trees of others there is os.Root.
package safepath
