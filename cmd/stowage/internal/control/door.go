package control

import (
	"net"
	"sync"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// peerListener is the listener of a server. It asks the kernel for the user of each
// connection, and bounds the number of connections. Users who may not use the socket have
// separate slots, so they cannot use up those of the others.
type peerListener struct {
	net.Listener
	authorize                func(uid uint32) bool
	slots, unauthorizedSlots chan struct{}
	closed                   chan struct{}
	close                    func()
}

func newPeerListener(listener net.Listener, authorize func(uid uint32) bool) *peerListener {
	closed := make(chan struct{})
	return &peerListener{
		Listener:          listener,
		authorize:         authorize,
		slots:             make(chan struct{}, maxConns),
		unauthorizedSlots: make(chan struct{}, maxUnauthorizedConns),
		closed:            closed,
		close:             sync.OnceFunc(func() { close(closed) }),
	}
}

// peerConn is a connection with its peer's user.
type peerConn struct {
	net.Conn
	uid uint32
	// err says why the uid is not known.
	err          error
	unauthorized bool
	release      func()
}

// Accept implements net.Listener.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &peerConn{Conn: conn}
		c.uid, c.err = peerUID(conn)
		c.unauthorized = c.err != nil || !l.authorize(c.uid)
		if l.acquire(c) {
			return c, nil
		}
		_ = conn.Close()
	}
}

// acquire takes a slot for a connection, and reports whether there is one. An
// authorized user waits for a free slot.
func (l *peerListener) acquire(c *peerConn) bool {
	if c.unauthorized {
		select {
		case l.unauthorizedSlots <- struct{}{}:
			c.release = sync.OnceFunc(func() { <-l.unauthorizedSlots })
			return true
		default:
			return false
		}
	}
	select {
	case l.slots <- struct{}{}:
		c.release = sync.OnceFunc(func() { <-l.slots })
		return true
	case <-l.closed:
		return false
	}
}

// Close implements net.Listener.
func (l *peerListener) Close() error {
	l.close()
	return l.Listener.Close()
}

// Close implements net.Conn.
func (c *peerConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// peerUID returns the peer's user of a connection as the kernel reports it: the user who
// connected, or the user who listens.
func peerUID(conn net.Conn) (uid uint32, err error) {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, errors.Errorf("%T is not a unix socket", conn)
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var (
		cred    *unix.Ucred
		credErr error
	)
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return cred.Uid, nil
}

// isRootOrSelf reports whether a user is root or the user of this process.
func isRootOrSelf(uid uint32) bool { return uid == 0 || uid == uint32(unix.Geteuid()) }
