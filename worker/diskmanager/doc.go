// Package diskmanager provides the worker that tracks the block devices of this machine and
// publishes them.
//
// The worker lists the devices and publishes the list if it differs from the last one
// published; it always publishes the first. It lists the devices again when an event reports
// that a device has changed, when [Worker.Rescan] asks for it, and at a slow poll, which finds
// changes that have no event. Changes that occur during a listing are collected and cause one
// more listing, so a burst of events costs few listings. A disk that cannot be read, for
// instance for lack of a file descriptor, is read again after 100 ms, and then after delays as
// long as the failure has lasted.
//
// Events come from the kernel, which reports that a device has come, gone, or has another
// backing file or size, and from udev, which reports that a device's links and properties are
// complete. On a machine without udev, there is no event when a filesystem is made on a
// device, or when a device is mounted or unmounted. Call Rescan where such a change matters
// sooner than the next poll. The poll is the only source of changes where the kernel's events
// do not arrive: in a network namespace that belongs to a user namespace, as in an
// unprivileged container, and where a sandbox forbids netlink sockets.
//
// Between two polls an idle worker waits for one timer and one socket. A process that does
// nothing but observe wakes up 0 times a second, as measured by
//
//	go test -run '^$' -bench Idle -benchtime 20x ./worker/diskmanager
//
// The lists are information about this machine. They never prove that a device is blank or
// free: code that is about to write to a device must check the device itself.
//
// The kernel's events and the listing of this machine's devices are available on Linux only.
// On other systems, set Events and Lister in [Config].
package diskmanager
