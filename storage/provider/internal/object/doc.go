// Package object is what the sources of a machine's storage have in common: the
// records that they keep of their objects, by which file or directory an object is
// known, the bulk calls that work on several of them, and how filesystems are mounted.
//
// A source is one of the packages loop, tmpfs, rootfs and managed. The package is not
// for sources that keep their objects elsewhere than on this machine.
//
// A [Call] holds the lock on the directory of the records: calls for one directory take
// turns. Within a call, several objects may be worked on at once.
package object
