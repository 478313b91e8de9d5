// Package object contains what the sources of a machine's storage have in common: the records
// of their objects, the identity of an object's file or directory, the bulk calls, and the
// mounting of filesystems.
//
// Its users are the packages loop, tmpfs, rootfs, managed and csi. It is not for sources that keep no
// records on this machine.
//
// A [Call] either holds the lock on the provider's directory, so that calls for one directory
// take turns, or locks each object that it works on. Within a call, several objects may be
// worked on at once.
package object
