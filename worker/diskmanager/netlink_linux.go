package diskmanager

import (
	"os"
	"syscall"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// Multicast groups of NETLINK_KOBJECT_UEVENT, as bits.
const (
	kernelGroup = 1 // what the kernel sends
	udevGroup   = 2 // what udev sends when its links and properties are there
)

// KernelEvents subscribes to the block device events that the kernel sends over netlink, and
// to those that udev sends after it has processed one of them. It needs no privilege, but a
// sandbox may forbid it. In a network namespace that belongs to a user namespace it succeeds,
// but no event arrives.
func KernelEvents() (EventSource, error) {
	const receiveBuffer = 1 << 20
	events, err := openUevents(receiveBuffer)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return events, nil
}

func openUevents(receiveBuffer int) (*uevents, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, errors.Annotate(os.NewSyscallError("socket", err), "opening a kernel event socket")
	}
	socket := os.NewFile(uintptr(fd), "uevents")
	// SO_RCVBUFFORCE needs CAP_NET_ADMIN. A buffer that stays small overflows
	// sooner, which Next reports.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		socket.Close()
		return nil, errors.Annotate(os.NewSyscallError("setsockopt", err), "requesting the credentials of event senders")
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup | udevGroup}); err != nil {
		socket.Close()
		return nil, errors.Annotate(os.NewSyscallError("bind", err), "subscribing to kernel events")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		socket.Close()
		return nil, errors.Annotate(err, "opening a kernel event socket")
	}
	return &uevents{
		socket: socket,
		raw:    raw,
		// The kernel's messages hold at most 2 KiB of variables and a path; udev's hold the
		// additions of its rules as well.
		buf:     make([]byte, 16<<10),
		control: make([]byte, unix.CmsgSpace(unix.SizeofUcred)),
	}, nil
}

// uevents implements EventSource.
type uevents struct {
	socket       *os.File
	raw          syscall.RawConn
	buf, control []byte
}

// Next waits for a message about a block device. It reports a change of everything if messages
// were lost because the receive buffer was full, or if a message does not fit in buf.
func (u *uevents) Next() (Hint, error) {
	for {
		var (
			n, controls, flags int
			from               unix.Sockaddr
			err                error
		)
		waitErr := u.raw.Read(func(fd uintptr) bool {
			n, controls, flags, from, err = unix.Recvmsg(int(fd), u.buf, u.control, 0)
			return err != unix.EAGAIN
		})
		switch {
		case waitErr != nil:
			return Hint{}, waitErr
		case err == unix.EINTR:
			continue
		case err == unix.ENOBUFS:
			return Hint{All: true}, nil
		case err != nil:
			return Hint{}, os.NewSyscallError("recvmsg", err)
		}
		parse := parserFor(from, u.control[:controls])
		if parse == nil {
			continue
		}
		if flags&unix.MSG_TRUNC != 0 {
			return Hint{All: true}, nil
		}
		if hint, ok := parse(u.buf[:n]); ok {
			return hint, nil
		}
	}
}

// parserFor returns the parser for a sender's messages, or nil if the sender is not trusted:
// other processes can send to the socket too. Only the kernel has port 0, and udev runs as
// root.
func parserFor(from unix.Sockaddr, controls []byte) func([]byte) (Hint, bool) {
	sender, ok := from.(*unix.SockaddrNetlink)
	switch {
	case !ok:
		return nil
	case sender.Pid == 0:
		return parseUevent
	case sender.Groups == udevGroup && isRoot(controls):
		return parseUdevEvent
	}
	return nil
}

// isRoot reports whether the kernel says that root sent the message.
func isRoot(controls []byte) bool {
	messages, err := unix.ParseSocketControlMessage(controls)
	if err != nil || len(messages) != 1 {
		return false
	}
	credentials, err := unix.ParseUnixCredentials(&messages[0])
	return err == nil && credentials.Uid == 0
}

// Close implements EventSource.
func (u *uevents) Close() error { return u.socket.Close() }
