// Package loopdev attaches files to loop devices on Linux, finds the loop devices
// that a file is attached to, and detaches them.
//
// A loop device is known by its backing file's device and inode number, never by
// its own number or by a path: the kernel reuses numbers, and a path may name
// another file than when the device was attached.
//
// A process may die between attaching a device and noting that it has. Such a device
// is known by the label that Attach leaves on it.
//
// Device nodes are never removed: that takes the kernel 50 ms, and a free one is
// used again.
package loopdev
