package server

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/internal/leaktest"
)

// tlsWorld is a server and its clients, on connections in memory.
type tlsWorld struct {
	*testing.T
	handshakes *handshakes
	server     *tls.Config
	client     *tls.Config
}

func newTLSWorld(t *testing.T) *tlsWorld {
	ca, err := trust.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, encoded, err := trust.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := ca.Issue(key.Public(), trust.Identity{Role: role.Server, ID: "s"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	config, err := trust.ServerConfig(func() trust.Credentials {
		return trust.Credentials{Certificate: certificate, Key: encoded, CA: ca.Certificate()}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := newHandshakes()
	return &tlsWorld{t, h, h.limit(config), trust.Token{CAHash: ca.Hash()}.ClientConfig(nil)}
}

// serve returns the client's end of a connection, and a channel that has the error of the server's
// handshake. The server closes its end if the handshake has failed.
func (w *tlsWorld) serve() (net.Conn, <-chan error) {
	ours, theirs := net.Pipe()
	conn := tls.Server(&handshakeConn{Conn: theirs, handshakes: w.handshakes}, w.server)
	w.Cleanup(func() { ours.Close(); conn.Close() })
	served := make(chan error, 1)
	go func() {
		err := conn.Handshake()
		if err != nil {
			theirs.Close()
		}
		served <- err
	}()
	return ours, served
}

// connect returns the errors of both sides of a handshake.
func (w *tlsWorld) connect() (client, server error) {
	conn, served := w.serve()
	client = tls.Client(conn, w.client).Handshake()
	return client, <-served
}

// silentConn is a client's end on which nothing is sent after the first message.
type silentConn struct {
	net.Conn
	sent bool
}

func (c *silentConn) Write(p []byte) (int, error) {
	if c.sent {
		return len(p), nil
	}
	c.sent = true
	return c.Conn.Write(p)
}

func TestHandshakesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTLSWorld(t)
		for range maxHandshakes {
			w.handshakes.slots <- struct{}{}
		}
		begun := time.Now()
		if _, err := w.connect(); err == nil || err.Error() != "too many clients connect at the same time" {
			t.Errorf("with as many handshakes as there may be: %v", err)
		}
		if waited := time.Since(begun); waited != handshakeWait {
			t.Errorf("refused after %s", waited)
		}
		go func() {
			<-time.After(handshakeWait / 2)
			<-w.handshakes.slots
		}()
		if client, server := w.connect(); client != nil || server != nil {
			t.Errorf("when one has ended: %v, %v", client, server)
		}
		if n := len(w.handshakes.slots); n != maxHandshakes-1 {
			t.Errorf("%d handshakes at the end", n)
		}
	})
}

// Clients that stop in the middle of a handshake keep no other one out.
func TestSilentClientsHaveNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTLSWorld(t)
		var servers []<-chan error
		var silent []net.Conn
		for range 2 * maxHandshakes {
			conn, served := w.serve()
			go func() { _ = tls.Client(&silentConn{Conn: conn}, w.client).Handshake() }()
			servers, silent = append(servers, served), append(silent, conn)
		}
		synctest.Wait()
		begun := time.Now()
		if client, server := w.connect(); client != nil || server != nil {
			t.Errorf("beside silent clients: %v, %v", client, server)
		}
		if waited := time.Since(begun); waited != 0 {
			t.Errorf("connected after %s", waited)
		}
		for i, served := range servers {
			silent[i].Close()
			if err := <-served; err != io.EOF {
				t.Errorf("handshake of a silent client: %v", err)
			}
		}
		if n := len(w.handshakes.slots); n != 0 {
			t.Errorf("%d handshakes at the end", n)
		}
	})
}

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }
