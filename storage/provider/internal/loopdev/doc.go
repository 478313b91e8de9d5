// Package loopdev attaches files to loop devices on Linux, finds the loop devices
// that a file is attached to, and detaches them.
//
// A loop device is known by its backing file's device and inode number, never by
// its own number or by a path: numbers are given out anew, and a path may name
// another file than it did when it was attached.
//
// An attached device lives only as long as the Handle that Attach returns, until
// Handle.Keep says otherwise. A process that dies between the two leaves nothing
// behind: the kernel detaches the device.
//
// Device nodes are never removed: that takes the kernel 50 ms, and a free one is
// used again.
package loopdev
