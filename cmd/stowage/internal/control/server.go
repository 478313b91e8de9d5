package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
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

	"github.com/stowage-io/stowage/apiserver/params"
)

// Backend does what clients ask for. Its methods are called by several
// goroutines at once and end when their context does.
type Backend interface {
	// Apply converges to a file.
	Apply(context.Context, ApplyArgs) (ApplyResult, error)
	// Storage returns the named storage, or all where no name is given. A name
	// that is not known is an error that satisfies errors.IsNotFound.
	Storage(ctx context.Context, names []string) ([]Storage, error)
	// Watch calls send with all of the named storage (none named: with all
	// there is), then with what changes. It returns when the context ends or
	// send fails. A name that is not known is no error: it may come, or have
	// gone.
	Watch(ctx context.Context, names []string, send func(Event) error) error
	// Attach, Detach and Remove ask that the named storage be attached,
	// detached, or detached and destroyed. They return when that is recorded,
	// not when it is done. A name that is not known is an error, and then
	// nothing is changed.
	Attach(ctx context.Context, names []string) error
	Detach(ctx context.Context, names []string) error
	Remove(ctx context.Context, names []string) error
	// Release asks that the named storage be detached and forgotten, with its data
	// left where it is.
	Release(ctx context.Context, names []string) error
	// Retry asks that what has failed of the named storage, or of all where none is
	// named, be tried again at once.
	Retry(ctx context.Context, names []string) error
	// Format asks that the filesystems of storage, each named by its full name, be made
	// whatever is on their volumes.
	Format(ctx context.Context, names []string) error
	// Resize asks that storage grow. It returns when that is recorded, not when it
	// is done.
	Resize(context.Context, ResizeArgs) (ChangesResult, error)
	// Import takes over what is there, as storage that is then attached. When it is
	// interrupted, the same call again finishes it.
	Import(context.Context, ImportArgs) (ChangesResult, error)
	// Orphans returns what providers have and no storage has. It looks twice, some
	// seconds apart, before it calls something an orphan.
	Orphans(context.Context) ([]Orphan, error)
	// Adopt makes an orphan storage again, detached.
	Adopt(context.Context, AdoptArgs) (ChangesResult, error)
	// DeleteOrphan destroys an orphan.
	DeleteOrphan(context.Context, DeleteOrphanArgs) (DeleteOrphanResult, error)
	// Backup writes the state to a new file.
	Backup(context.Context, BackupArgs) (BackupResult, error)
	Pools(context.Context) ([]Pool, error)
	// AddPool makes a pool, or replaces one, for storage that is added from then
	// on.
	AddPool(context.Context, AddPoolArgs) error
	// RemovePools removes the named pools, all or none.
	RemovePools(ctx context.Context, names []string) error
	// Report tells how the agent's workers fare.
	Report(context.Context) (map[string]any, error)
}

// Logger is what a server tells its operator.
type Logger interface {
	Warningf(format string, args ...any)
}

// ServerConfig has what a server needs.
type ServerConfig struct {
	SocketPath string
	Backend    Backend
	Logger     Logger
	// Authorize tells whether a user may use the socket. Nil means root and
	// the user of this process.
	Authorize func(uid uint32) bool
	// RequestTimeout bounds the sending of a request. Zero means 10 seconds.
	RequestTimeout time.Duration
}

// Validate returns an error that names the field that is not valid.
func (c ServerConfig) Validate() error {
	switch {
	case c.SocketPath == "":
		return errors.NotValidf("empty SocketPath")
	case c.Backend == nil:
		return errors.NotValidf("nil Backend")
	case c.Logger == nil:
		return errors.NotValidf("nil Logger")
	case c.RequestTimeout < 0:
		return errors.NotValidf("negative RequestTimeout")
	}
	return nil
}

const (
	// maxRequest holds the largest file in base64, and then some.
	maxRequest = 4 << 20
	// maxStreams bounds how many clients watch at a time. maxConns bounds how many
	// authorized clients are connected: further ones wait. maxUnauthorizedConns bounds
	// the connections of users who may not use the socket: further ones are closed.
	maxStreams           = 64
	maxConns             = 128
	maxUnauthorizedConns = 8
	// defaultRequestTimeout is for a ServerConfig that gives none. stallTimeout
	// is how long a client may leave an answer unread, shutdownTimeout how long
	// answers in flight have to end once the server is killed.
	defaultRequestTimeout = 10 * time.Second
	stallTimeout          = 30 * time.Second
	shutdownTimeout       = 2 * time.Second
)

// Server is a worker that answers on a socket.
type Server struct {
	config   ServerConfig
	tomb     tomb.Tomb
	listener net.Listener
	http     http.Server
	streams  chan struct{}
	// conns counts the connections that are being served, each by a goroutine.
	conns sync.WaitGroup
}

// NewServer listens on the socket and answers until it is killed. A socket file
// that a dead agent left is replaced; one that is answered on is an error.
func NewServer(config ServerConfig) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	if config.Authorize == nil {
		config.Authorize = isRootOrSelf
	}
	if config.RequestTimeout == 0 {
		config.RequestTimeout = defaultRequestTimeout
	}
	listener, err := listen(config.SocketPath)
	if err != nil {
		return nil, errors.Trace(err)
	}
	s := &Server{
		config:   config,
		listener: newPeerListener(listener, config.Authorize),
		streams:  make(chan struct{}, maxStreams),
	}
	ctx := s.tomb.Context(context.Background())
	s.http = http.Server{
		Handler:           s.authorized(s.routes()),
		ReadHeaderTimeout: config.RequestTimeout,
		IdleTimeout:       stallTimeout,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       withPeerConn,
		ConnState:         s.trackConn,
		ErrorLog:          log.New(logWriter{config.Logger}, "", 0),
	}
	s.tomb.Go(s.run)
	return s, nil
}

// Kill is part of worker.Worker.
func (s *Server) Kill() { s.tomb.Kill(nil) }

// Wait is part of worker.Worker. When it returns, nobody is being answered.
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
		_ = s.http.Close() // cuts off who did not end in time, or came last
		s.conns.Wait()
		return nil
	})
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return errors.Annotatef(err, "serving %s", s.config.SocketPath)
	}
	return nil
}

// listen makes the socket. A file gets the mode that its socket has when it is bound:
// there is no moment at which others could connect, nor a name to be looked up again.
func listen(path string) (net.Listener, error) {
	stale, err := inspect(path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if stale {
		if err := os.Remove(path); err != nil {
			return nil, errors.Annotate(err, "removing a dead agent's socket")
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

// CheckSocketPath returns an error that satisfies errors.IsNotValid if the path is
// longer than the kernel takes for a socket.
func CheckSocketPath(path string) error {
	const maxLen = len(unix.RawSockaddrUnix{}.Path) - 1
	if len(path) > maxLen {
		return errors.NewNotValid(nil, fmt.Sprintf("the socket's path %q is longer than %d bytes: choose a shorter --socket", path, maxLen))
	}
	return nil
}

// CheckSocket returns an error if a server cannot listen on the path as things are:
// its directory is missing, another agent answers there, or it is another file.
func CheckSocket(path string) error {
	_, err := inspect(path)
	return err
}

// CheckAnswered returns an error if an agent answers on the path.
func CheckAnswered(path string) error {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil // nobody does, or nobody can be asked
	}
	_ = conn.Close()
	return errors.Errorf("an agent answers on %s", path)
}

// inspect is CheckSocket, and tells whether an agent that died left its socket there.
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
		return false, errors.Errorf("%s is there and is not a socket: move it away, or choose another path", path)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
		return false, errors.Errorf("another agent answers on %s already", path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return false, errors.Annotatef(cause(err), "listening on %s", path)
	}
	return true, nil
}

// cause is what package net says the kernel said, without the address, which our
// own messages have.
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

// authorized lets through only who may use the socket.
func (s *Server) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer := r.Context().Value(peerConnKey{}).(*peerConn) // or nobody gets through
		if peer.unauthorized {
			s.config.Logger.Warningf("refused user %d on the control socket (%v)", peer.uid, peer.err)
			w.Header().Set("Connection", "close")
			writeError(w, errors.Unauthorizedf("user %d on this agent: run the command as root", peer.uid))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) routes() http.Handler {
	b := s.config.Backend
	mux := http.NewServeMux()
	mux.Handle("POST /v1/apply", jsonHandler(s, b.Apply))
	mux.Handle("POST /v1/resize", jsonHandler(s, b.Resize))
	mux.Handle("POST /v1/import", jsonHandler(s, b.Import))
	mux.Handle("POST /v1/storage", jsonHandler(s, func(ctx context.Context, args namesArgs) (storageResult, error) {
		found, err := b.Storage(ctx, args.Names)
		return storageResult{found}, err
	}))
	for verb, do := range map[string]func(context.Context, []string) error{
		"attach": b.Attach, "detach": b.Detach, "remove": b.Remove, "release": b.Release, "retry": b.Retry, "format": b.Format,
		"remove-pools": b.RemovePools,
	} {
		mux.Handle("POST /v1/"+verb, jsonHandler(s, func(ctx context.Context, args namesArgs) (struct{}, error) {
			return struct{}{}, do(ctx, args.Names)
		}))
	}
	mux.Handle("POST /v1/orphans", jsonHandler(s, func(ctx context.Context, _ struct{}) (orphansResult, error) {
		orphans, err := b.Orphans(ctx)
		return orphansResult{orphans}, err
	}))
	mux.Handle("POST /v1/adopt", jsonHandler(s, b.Adopt))
	mux.Handle("POST /v1/delete-orphan", jsonHandler(s, b.DeleteOrphan))
	mux.Handle("POST /v1/backup", jsonHandler(s, b.Backup))
	mux.Handle("POST /v1/pools", jsonHandler(s, func(ctx context.Context, _ struct{}) (poolsResult, error) {
		pools, err := b.Pools(ctx)
		return poolsResult{pools}, err
	}))
	mux.Handle("POST /v1/add-pool", jsonHandler(s, func(ctx context.Context, args AddPoolArgs) (struct{}, error) {
		return struct{}{}, b.AddPool(ctx, args)
	}))
	mux.Handle("POST /v1/report", jsonHandler(s, func(ctx context.Context, _ struct{}) (reportResult, error) {
		report, err := b.Report(ctx)
		return reportResult{report}, err
	}))
	mux.HandleFunc("POST /v1/watch", s.watch)
	return mux
}

// readArgs returns the arguments of a request. The body is read to its end, and its
// deadline lifted afterwards: only then does the request's context end when, and only
// when, the client goes away.
func readArgs[A any](s *Server, w http.ResponseWriter, r *http.Request) (A, error) {
	var args A
	controller := http.NewResponseController(w)
	if err := controller.SetReadDeadline(time.Now().Add(s.config.RequestTimeout)); err != nil {
		return args, errors.Trace(err)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		return args, errors.NewNotValid(err, "reading the request")
	}
	if err := controller.SetReadDeadline(time.Time{}); err != nil {
		return args, errors.Trace(err)
	}
	if err := json.Unmarshal(body, &args); err != nil {
		return args, errors.NewNotValid(err, "reading the request")
	}
	return args, nil
}

// jsonHandler returns a handler that calls a function with the arguments of a request
// and writes its result.
func jsonHandler[A, R any](s *Server, do func(context.Context, A) (R, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		args, err := readArgs[A](s, w, r)
		if err != nil {
			writeError(w, err)
			return
		}
		result, err := do(r.Context(), args)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, envelope[R]{Result: result})
	})
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	args, err := readArgs[namesArgs](s, w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		writeError(w, errors.Errorf("%d clients watch already: try again when one has ended", maxStreams))
		return
	}
	controller := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	send := func(event envelope[Event]) error {
		if err := controller.SetWriteDeadline(time.Now().Add(stallTimeout)); err != nil {
			return errors.Trace(err)
		}
		if err := encoder.Encode(event); err != nil {
			return errors.Trace(err)
		}
		return errors.Trace(controller.Flush())
	}
	err = s.config.Backend.Watch(r.Context(), args.Names, func(event Event) error {
		return send(envelope[Event]{Result: event})
	})
	if err != nil && r.Context().Err() == nil {
		_ = send(envelope[Event]{Error: params.ServerError(err)}) // who has gone misses nothing
	}
}

// writeJSON writes a response. Errors are ignored: they mean that the client has gone.
func writeJSON(w http.ResponseWriter, status int, body any) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(stallTimeout))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func writeError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, errors.NotValid):
		status = http.StatusBadRequest
	case errors.Is(err, errors.NotFound):
		status = http.StatusNotFound
	case errors.Is(err, errors.Unauthorized):
		status = http.StatusForbidden
	}
	writeJSON(w, status, envelope[struct{}]{Error: params.ServerError(err)})
}

// logWriter hands what net/http has to say to the logger.
type logWriter struct{ logger Logger }

func (w logWriter) Write(p []byte) (int, error) {
	w.logger.Warningf("control socket: %q", strings.TrimSpace(string(p)))
	return len(p), nil
}
