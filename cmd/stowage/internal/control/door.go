package control

import (
	"net"
	"sync"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// door is the listener of a server. It has the kernel tell who connects, and bounds how
// many are in: who may not use the socket takes nobody else's place.
type door struct {
	net.Listener
	authorize           func(uid uint32) bool
	visitors, strangers chan struct{}
	closed              chan struct{}
	close               func()
}

func newDoor(listener net.Listener, authorize func(uid uint32) bool) *door {
	closed := make(chan struct{})
	return &door{
		Listener:  listener,
		authorize: authorize,
		visitors:  make(chan struct{}, maxVisitors),
		strangers: make(chan struct{}, maxStrangers),
		closed:    closed,
		close:     sync.OnceFunc(func() { close(closed) }),
	}
}

// visitor is a connection, and whose it is.
type visitor struct {
	net.Conn
	uid uint32
	// err is why the uid is not known.
	err      error
	stranger bool
	leave    func()
}

// Accept is part of net.Listener.
func (d *door) Accept() (net.Conn, error) {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		v := &visitor{Conn: conn}
		v.uid, v.err = peer(conn)
		v.stranger = v.err != nil || !d.authorize(v.uid)
		if d.enter(v) {
			return v, nil
		}
		_ = conn.Close()
	}
}

// enter gives a visitor a place, for which one waits who may use the socket.
func (d *door) enter(v *visitor) bool {
	if v.stranger {
		select {
		case d.strangers <- struct{}{}:
			v.leave = sync.OnceFunc(func() { <-d.strangers })
			return true
		default:
			return false
		}
	}
	select {
	case d.visitors <- struct{}{}:
		v.leave = sync.OnceFunc(func() { <-d.visitors })
		return true
	case <-d.closed:
		return false
	}
}

// Close is part of net.Listener.
func (d *door) Close() error {
	d.close()
	return d.Listener.Close()
}

// Close is part of net.Conn.
func (v *visitor) Close() error {
	defer v.leave()
	return v.Conn.Close()
}

// peer returns who the kernel says is at the other end: who has connected, or who
// listens.
func peer(conn net.Conn) (uid uint32, err error) {
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

// isOurs tells whether a user is root or the one of this process.
func isOurs(uid uint32) bool { return uid == 0 || uid == uint32(unix.Geteuid()) }
