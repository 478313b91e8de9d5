// Package loopdev attaches files to loop devices on Linux, finds the loop devices that a file
// is attached to, and detaches them.
//
// A loop device is identified by its backing file's device and inode number, never by its own
// number or by a path: the kernel reuses numbers, and a path may name another file than when
// the device was attached.
//
// A process may die after it has attached a device and before it has recorded that. Such a
// device is recognized by the label that Attach sets on it.
//
// Device nodes are never removed, except for devices that refuse discards: removing a node
// takes the kernel 50 ms, and a free one is used again.
package loopdev
