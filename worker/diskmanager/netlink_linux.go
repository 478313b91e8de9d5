package diskmanager

import (
	"os"
	"syscall"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// KernelEvents subscribes to the block device events that the kernel sends over
// netlink. It needs no privilege but may be forbidden by a sandbox; in a network
// namespace other than the first it succeeds and stays silent.
func KernelEvents() (EventSource, error) {
	const receiveBuffer = 1 << 20
	events, err := openUevents(receiveBuffer)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return events, nil
}

func openUevents(receiveBuffer int) (*uevents, error) {
	const kernelGroup = 1
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, errors.Annotate(os.NewSyscallError("socket", err), "opening a kernel event socket")
	}
	socket := os.NewFile(uintptr(fd), "uevents")
	// SO_RCVBUFFORCE needs CAP_NET_ADMIN. A buffer that stays small overflows
	// sooner, which Next reports.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		socket.Close()
		return nil, errors.Annotate(os.NewSyscallError("bind", err), "subscribing to kernel events")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		socket.Close()
		return nil, errors.Annotate(err, "opening a kernel event socket")
	}
	// The kernel's messages hold at most 2 KiB of variables and a path.
	return &uevents{socket: socket, raw: raw, buf: make([]byte, 16<<10)}, nil
}

// uevents is an EventSource.
type uevents struct {
	socket *os.File
	raw    syscall.RawConn
	buf    []byte
}

// Next waits for a message about a block device. A full receive buffer, whose
// messages are lost, and a message that does not fit are reported as a change of
// everything.
func (u *uevents) Next() (Hint, error) {
	for {
		var (
			n, flags int
			from     unix.Sockaddr
			err      error
		)
		waitErr := u.raw.Read(func(fd uintptr) bool {
			n, _, flags, from, err = unix.Recvmsg(int(fd), u.buf, nil, 0)
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
		// Other processes can send to the socket; only the kernel has port 0.
		sender, ok := from.(*unix.SockaddrNetlink)
		if !ok || sender.Pid != 0 {
			continue
		}
		if flags&unix.MSG_TRUNC != 0 {
			return Hint{All: true}, nil
		}
		if hint, ok := parseUevent(u.buf[:n]); ok {
			return hint, nil
		}
	}
}

// Close implements EventSource.
func (u *uevents) Close() error { return u.socket.Close() }
