package server

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/juju/errors"
)

const (
	// maxHandshakes is how many handshakes are computed at a time. They share the CPUs, so that of
	// thousands none would end within the time that clients wait.
	maxHandshakes = 16
	// handshakeWait is how long a client waits for its turn. It is shorter than the time after which
	// the client gives up, so that nothing is computed for clients that are gone.
	handshakeWait = 5 * time.Second
)

// handshakes bounds how many TLS handshakes the server computes at a time. After a restart, thousands of
// agents connect within a second. Those that would wait for too long are refused before anything is computed
// for them, and try again after a random delay.
//
// A handshake counts from the client's first message until the server waits for the next one. So a client
// that sends nothing more keeps no other out.
type handshakes struct{ slots chan struct{} }

func newHandshakes() *handshakes {
	return &handshakes{make(chan struct{}, maxHandshakes)}
}

// listen returns a listener whose connections count.
func (h *handshakes) listen(l net.Listener) net.Listener { return handshakeListener{l, h} }

// limit returns the TLS configuration for the connections of such a listener.
func (h *handshakes) limit(config *tls.Config) *tls.Config {
	config = config.Clone()
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		return nil, h.begin(hello.Context(), hello.Conn.(*handshakeConn))
	}
	return config
}

// begin waits for the connection's turn.
func (h *handshakes) begin(ctx context.Context, c *handshakeConn) error {
	timer := time.NewTimer(handshakeWait)
	defer timer.Stop()
	select {
	case h.slots <- struct{}{}:
		c.begin()
		return nil
	case <-timer.C:
		return errors.New("too many clients connect at the same time")
	case <-ctx.Done():
		return errors.Trace(context.Cause(ctx))
	}
}

type handshakeListener struct {
	net.Listener
	handshakes *handshakes
}

func (l handshakeListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &handshakeConn{Conn: conn, handshakes: l.handshakes}, nil
}

// handshakeConn is a connection that may have one of the slots for handshakes.
type handshakeConn struct {
	net.Conn
	handshakes *handshakes

	mu        sync.Mutex
	computing bool // has a slot
	closed    bool
}

func (c *handshakeConn) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.computing = true
	if c.closed {
		c.endLocked()
	}
}

func (c *handshakeConn) end(closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = c.closed || closed
	c.endLocked()
}

func (c *handshakeConn) endLocked() {
	if c.computing {
		c.computing = false
		<-c.handshakes.slots
	}
}

// Read implements net.Conn. During a handshake, TLS reads when it has sent its answer.
func (c *handshakeConn) Read(p []byte) (int, error) {
	c.end(false)
	return c.Conn.Read(p)
}

// Close implements net.Conn.
func (c *handshakeConn) Close() error {
	c.end(true)
	return c.Conn.Close()
}
