// Package diskmanager holds the worker that sees the block devices of this
// machine come and go, and publishes them.
//
// The worker lists the devices and publishes the list when it differs from the
// last one published; the first is always published. It lists again when the
// kernel says that a device has changed, when [Worker.Rescan] asks, and at a slow
// poll, which catches what no event tells. Whatever happens while it lists is
// gathered and answered with one more listing: a burst of events costs a few. A disk
// that cannot be read, for want of a file descriptor for instance, is looked at again
// after 100 ms, and then after as long as that has gone on.
//
// Events are the kernel's, which tell that a device came, went, got a file or
// another size; and udev's, which tell that its links and properties are there.
// What no event tells, on a machine without udev: that a filesystem was made on a
// device, and that a device was mounted or unmounted. Call Rescan where that
// matters sooner than the next poll. The poll is the only source where the kernel's
// events do not arrive: in a network namespace that belongs to a user namespace, as
// in an unprivileged container, and where a sandbox forbids netlink sockets.
//
// Between two polls an idle worker waits for one timer and one socket. A process
// that does nothing but observe wakes up 0 times a second, as measured by
//
//	go test -run '^$' -bench Idle -benchtime 20x ./worker/diskmanager
//
// The lists are information about this machine. They never prove that a
// device is blank or free: code that is about to write to a device checks the device
// itself.
//
// The kernel's events and the listing of this machine's devices are Linux's; on
// other systems a Config has to bring its own.
package diskmanager
