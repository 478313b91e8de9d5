package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/userapi"
	"github.com/stowage-io/stowage/core/role"
)

// Logger receives messages for the operator.
type Logger interface {
	Warningf(format string, args ...any)
}

// ServerConfig is the configuration of a server.
type ServerConfig struct {
	SocketPath string
	// Backend carries out the requests of users. Handler, instead of it, serves another protocol.
	Backend userapi.Backend
	Handler http.Handler
	Logger  Logger
	// Authorize reports whether a user may use the socket. Nil means root and the user of this
	// process.
	Authorize func(uid uint32) bool
	// RequestTimeout bounds the time for receiving a request. Zero means 10 seconds.
	RequestTimeout time.Duration
}

// Validate returns an error that names the field that is not valid.
func (c ServerConfig) Validate() error {
	switch {
	case c.SocketPath == "":
		return errors.NotValidf("empty SocketPath")
	case c.Backend == nil && c.Handler == nil:
		return errors.NotValidf("nil Backend and Handler")
	case c.Backend != nil && c.Handler != nil:
		return errors.NotValidf("Backend with Handler")
	case c.Logger == nil:
		return errors.NotValidf("nil Logger")
	case c.RequestTimeout < 0:
		return errors.NotValidf("negative RequestTimeout")
	}
	return nil
}

const (
	// maxConns bounds how many authorized clients are connected; more have to wait.
	// maxUnauthorizedConns bounds the connections of users who may not use the socket; more are
	// closed.
	maxConns             = 128
	maxUnauthorizedConns = 8
	// headerTimeout bounds the time for receiving the header of a request if ServerConfig does not,
	// idleTimeout how long a connection may be idle, and shutdownTimeout how long responses in
	// flight may take once the server is killed.
	headerTimeout   = 10 * time.Second
	idleTimeout     = 30 * time.Second
	shutdownTimeout = 2 * time.Second
)

// Server is a worker that serves requests on a socket.
type Server struct {
	config   ServerConfig
	tomb     tomb.Tomb
	listener net.Listener
	http     http.Server
	// conns counts the connections that are being served, each by a goroutine.
	conns sync.WaitGroup
}

// NewServer listens on the socket and serves requests until it is killed. It replaces a socket
// file that a dead agent left; it returns an error if another server listens on the socket.
func NewServer(config ServerConfig) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	if config.Authorize == nil {
		config.Authorize = isRootOrSelf
	}
	if config.RequestTimeout == 0 {
		config.RequestTimeout = headerTimeout
	}
	if config.Handler == nil {
		var err error
		config.Handler, err = userapi.New(userapi.Config{Backend: config.Backend, Caller: localAdmin, RequestTimeout: config.RequestTimeout})
		if err != nil {
			return nil, errors.Trace(err)
		}
	}
	listener, err := Listen(config.SocketPath)
	if err != nil {
		return nil, errors.Trace(err)
	}
	s := &Server{
		config:   config,
		listener: newPeerListener(listener, config.Authorize),
	}
	ctx := s.tomb.Context(context.Background())
	s.http = http.Server{
		Handler:           s.authorized(config.Handler),
		ReadHeaderTimeout: config.RequestTimeout,
		IdleTimeout:       idleTimeout,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       withPeerConn,
		ConnState:         s.trackConn,
		ErrorLog:          log.New(logWriter{config.Logger}, "", 0),
	}
	s.tomb.Go(s.run)
	return s, nil
}

// Kill implements worker.Worker.
func (s *Server) Kill() { s.tomb.Kill(nil) }

// Wait implements worker.Worker. When it returns, no request is being served.
func (s *Server) Wait() error { return s.tomb.Wait() }

// trackConn counts open connections. The HTTP server reports a new connection before
// Serve returns, and a closed one when the goroutine of the connection has nothing left
// to do.
func (s *Server) trackConn(_ net.Conn, now http.ConnState) {
	switch now {
	case http.StateNew:
		s.conns.Add(1)
	case http.StateClosed:
		s.conns.Done()
	}
}

func (s *Server) run() error {
	served := make(chan struct{})
	defer close(served)
	s.tomb.Go(func() error {
		<-s.tomb.Dying()
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		_ = s.http.Shutdown(ctx)
		<-served
		_ = s.http.Close() // ends connections that have not ended in time, or that came last
		s.conns.Wait()
		return nil
	})
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return errors.Annotatef(err, "serving %s", s.config.SocketPath)
	}
	return nil
}

// Listen makes a socket, and replaces the file that a dead process left. It sets the mode before bind, which gives the socket file the same
// mode: so there is no moment at which others could connect, and no second lookup of the path.
func Listen(path string) (net.Listener, error) {
	stale, err := inspect(path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if stale {
		if err := os.Remove(path); err != nil {
			return nil, errors.Annotate(err, "removing the socket of a stopped agent")
		}
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var modeErr error
		if err := raw.Control(func(fd uintptr) { modeErr = unix.Fchmod(int(fd), 0o600) }); err != nil {
			return err
		}
		return modeErr
	}}
	listener, err := config.Listen(context.Background(), "unix", path)
	return listener, errors.Annotatef(cause(err), "listening on %s", path)
}

// CheckSocketPath returns an error that satisfies errors.IsNotValid if the path is longer than
// the kernel allows for a socket.
func CheckSocketPath(path string) error {
	const maxLen = len(unix.RawSockaddrUnix{}.Path) - 1
	if len(path) > maxLen {
		return errors.NewNotValid(nil, fmt.Sprintf("the socket's path %q is longer than %d bytes: choose a shorter path", path, maxLen))
	}
	return nil
}

// CheckSocket returns an error if a server cannot currently listen on the path: its directory
// is missing, another agent listens there, or the path is another kind of file.
func CheckSocket(path string) error {
	_, err := inspect(path)
	return err
}

// CheckAnswered returns an error if an agent listens on the path.
func CheckAnswered(path string) error {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil // no agent listens, or none can be reached
	}
	_ = conn.Close()
	return errors.Errorf("an agent answers on %s", path)
}

// inspect is CheckSocket, and reports whether a dead agent left its socket there.
func inspect(path string) (stale bool, err error) {
	if err := CheckSocketPath(path); err != nil {
		return false, err
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		_, err := os.Stat(filepath.Dir(path))
		return false, errors.Annotatef(err, "listening on %s", path)
	}
	if err != nil {
		return false, errors.Annotatef(err, "listening on %s", path)
	}
	if info.Mode().Type() != os.ModeSocket {
		return false, errors.Errorf("%s exists and is not a socket: move it away, or choose another path", path)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
		return false, errors.Errorf("another agent already answers on %s", path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return false, errors.Annotatef(cause(err), "listening on %s", path)
	}
	return true, nil
}

// cause returns the system's error from an error of package net, without the address, which
// the messages here already have.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

type peerConnKey struct{}

// withPeerConn stores the connection of a request in its context.
func withPeerConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, peerConnKey{}, conn)
}

// authorized passes on only requests of users who may use the socket.
func (s *Server) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer := r.Context().Value(peerConnKey{}).(*peerConn) // panics without one, so that no request goes unchecked
		if peer.unauthorized {
			s.config.Logger.Warningf("refused user %d on the control socket (%v)", peer.uid, peer.err)
			w.Header().Set("Connection", "close")
			writeError(w, errors.Unauthorizedf("user %d may not use this agent: run the command as root", peer.uid))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// localAdmin is the caller of all requests on the socket.
func localAdmin(r *http.Request) (userapi.Caller, error) {
	peer := r.Context().Value(peerConnKey{}).(*peerConn) // see authorized
	return userapi.Caller{UID: peer.uid, Role: role.Admin, Local: true}, nil
}

func writeError(w http.ResponseWriter, err error) {
	problem := user.NewProblem(err)
	w.Header().Set("Content-Type", problem.ContentType(""))
	w.WriteHeader(problem.Status)
	_ = json.NewEncoder(w).Encode(problem) // fails if the client has disconnected
}

// logWriter passes the messages of net/http to the logger.
type logWriter struct{ logger Logger }

func (w logWriter) Write(p []byte) (int, error) {
	w.logger.Warningf("control socket: %q", strings.TrimSpace(string(p)))
	return len(p), nil
}
