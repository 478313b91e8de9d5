// Package link has a connection over TCP that a test can interrupt.
package link

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Link is a connection to an address that can be interrupted.
type Link struct {
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	target  string
	resumed *sync.Cond
	stalled bool
	closed  bool
	open    map[net.Conn]struct{}
}

// New returns a link to the address. It ends with the test.
func New(t testing.TB, target string) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{listener: listener, target: target, open: make(map[net.Conn]struct{})}
	l.resumed = sync.NewCond(&l.mu)
	l.running.Go(l.accept)
	t.Cleanup(l.close)
	return l
}

// Address returns the address of the near end.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Stall lets nothing come back from the far end until Resume. What is sent to it arrives.
func (l *Link) Stall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stalled = true
}

// Resume ends Stall: what was held back arrives.
func (l *Link) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stalled = false
	l.resumed.Broadcast()
}

// Redirect makes new connections lead to another address, and closes the existing ones.
func (l *Link) Redirect(target string) {
	l.mu.Lock()
	l.target = target
	l.mu.Unlock()
	l.Cut()
}

// Cut closes all connections. New ones can be made.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		c.Close()
	}
}

func (l *Link) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.listener.Close()
	l.Resume()
	l.Cut()
	l.running.Wait()
}

func (l *Link) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		target := l.target
		l.mu.Unlock()
		far, err := net.Dial("tcp", target)
		if err != nil || !l.add(near, far) {
			near.Close()
			if err == nil {
				far.Close()
			}
			continue
		}
		l.running.Go(func() { l.copy(far, near, func() {}) })
		l.running.Go(func() { l.copy(near, far, l.awaitResume) })
	}
}

// add keeps the connections for Cut, unless the link is closed.
func (l *Link) add(connections ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	for _, c := range connections {
		l.open[c] = struct{}{}
	}
	return true
}

func (l *Link) awaitResume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.stalled {
		l.resumed.Wait()
	}
}

// copy copies one direction, and calls before ahead of each write.
func (l *Link) copy(to, from net.Conn, before func()) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			before()
			if _, writeErr := to.Write(buffer[:n]); err == nil {
				err = writeErr
			}
		}
		if err != nil {
			if err == io.EOF {
				before()
			}
			break
		}
	}
	to.Close()
	from.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, to)
	delete(l.open, from)
}
