// Package safepath works on the entries of one private directory through a descriptor of it,
// so that a change to its path cannot redirect the work. Names are single path elements, and
// no symbolic link is followed.
//
// It is for flat directories that belong to this program, and for the directories of others
// from which an entry is taken over. For trees of others use os.Root.
package safepath
