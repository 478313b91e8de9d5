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

// Backend carries out the requests of clients. Its methods may be called concurrently and
// return when their context ends.
type Backend interface {
	// Apply converges to a file.
	Apply(context.Context, ApplyArgs) (ApplyResult, error)
	// Storage returns the named storage, or all storage if no name is given. The error
	// satisfies errors.IsNotFound if a name is not known.
	Storage(ctx context.Context, names []string) ([]Storage, error)
	// Watch calls send with all of the named storage (without names, with all storage), then
	// with changes. It returns when the context ends or send fails. A name that is not known
	// is not an error: the storage may be added later, or may have been removed.
	Watch(ctx context.Context, names []string, send func(Event) error) error
	// Attach, Detach and Remove request that the named storage be attached, detached, or
	// detached and destroyed. They return when the request is recorded, not when it is carried
	// out. If a name is not known, they return an error and change nothing.
	Attach(context.Context, AttachArgs) error
	Detach(ctx context.Context, names []string) error
	Remove(ctx context.Context, names []string) error
	// Release requests that the named storage be detached and removed from the state, with its
	// data left in place.
	Release(ctx context.Context, names []string) error
	// Retry requests that failed operations of the named storage, or of all storage if no name
	// is given, be retried at once.
	Retry(ctx context.Context, names []string) error
	// Format requests that the filesystems of storage, each named by its full name, be made
	// whatever their volumes contain.
	Format(ctx context.Context, names []string) error
	// Resize requests that storage grow. It returns when the request is recorded, not when it
	// is carried out.
	Resize(context.Context, ResizeArgs) (ChangesResult, error)
	// Import takes over an existing object as storage, which is then attached. If it is
	// interrupted, repeating the call completes it.
	Import(context.Context, ImportArgs) (ChangesResult, error)
	// Orphans returns the orphans, and other objects of providers that belong to no storage.
	// It scans twice, some seconds apart, before it reports an object as an orphan.
	Orphans(context.Context) ([]Orphan, error)
	// Adopt adds storage for an orphan, detached.
	Adopt(context.Context, AdoptArgs) (ChangesResult, error)
	// DeleteOrphan destroys an orphan.
	DeleteOrphan(context.Context, DeleteOrphanArgs) (DeleteOrphanResult, error)
	// Backup writes the state to a new file.
	Backup(context.Context, BackupArgs) (BackupResult, error)
	Pools(context.Context) ([]Pool, error)
	// AddPool creates a pool, or replaces one, for storage that is added from then on.
	AddPool(context.Context, AddPoolArgs) error
	// RemovePools removes the named pools, all or none.
	RemovePools(ctx context.Context, names []string) error
	// Machines returns all machines, sorted by name.
	Machines(context.Context) ([]Machine, error)
	// Move requests that storage be detached, and attached to another machine.
	Move(context.Context, MoveArgs) (MoveResult, error)
	// FenceMachine says that the machine is off, or has been restarted.
	FenceMachine(ctx context.Context, machine string) error
	// RemoveMachine removes a machine, with the storage that is lost with it.
	RemoveMachine(context.Context, RemoveMachineArgs) error
	// CreateToken creates a token, and returns its text, which is kept nowhere.
	CreateToken(context.Context, CreateTokenArgs) (string, error)
	// Tokens returns the tokens that can be used.
	Tokens(context.Context) ([]Token, error)
	// RemoveTokens removes tokens, each named by its ID.
	RemoveTokens(ctx context.Context, ids []string) error
	// Report returns the reports of the agent's workers.
	Report(context.Context) (map[string]any, error)
}

// Logger receives messages for the operator.
type Logger interface {
	Warningf(format string, args ...any)
}

// ServerConfig is the configuration of a server.
type ServerConfig struct {
	SocketPath string
	Backend    Backend
	Logger     Logger
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
	// maxRequest is enough for the largest file in base64, with a margin.
	maxRequest = 4 << 20
	// maxStreams bounds how many clients watch at the same time. maxConns bounds how many
	// authorized clients are connected; more have to wait. maxUnauthorizedConns bounds the
	// connections of users who may not use the socket; more are closed.
	maxStreams           = 64
	maxConns             = 128
	maxUnauthorizedConns = 8
	// defaultRequestTimeout is used if ServerConfig has none. stallTimeout is how long a
	// client may leave a response unread, shutdownTimeout how long responses in flight may
	// take once the server is killed.
	defaultRequestTimeout = 10 * time.Second
	stallTimeout          = 30 * time.Second
	shutdownTimeout       = 2 * time.Second
)

// Server is a worker that serves requests on a socket.
type Server struct {
	config   ServerConfig
	tomb     tomb.Tomb
	listener net.Listener
	http     http.Server
	streams  chan struct{}
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

// listen makes the socket. It sets the mode before bind, which gives the socket file the same
// mode: so there is no moment at which others could connect, and no second lookup of the path.
func listen(path string) (net.Listener, error) {
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
		return errors.NewNotValid(nil, fmt.Sprintf("the socket's path %q is longer than %d bytes: choose a shorter --socket", path, maxLen))
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
		"detach": b.Detach, "remove": b.Remove, "release": b.Release, "retry": b.Retry, "format": b.Format,
		"remove-pools": b.RemovePools, "remove-tokens": b.RemoveTokens,
	} {
		mux.Handle("POST /v1/"+verb, jsonHandler(s, func(ctx context.Context, args namesArgs) (struct{}, error) {
			return struct{}{}, do(ctx, args.Names)
		}))
	}
	mux.Handle("POST /v1/attach", jsonHandler(s, func(ctx context.Context, args AttachArgs) (struct{}, error) {
		return struct{}{}, b.Attach(ctx, args)
	}))
	mux.Handle("POST /v1/machines", jsonHandler(s, func(ctx context.Context, _ struct{}) (machinesResult, error) {
		machines, err := b.Machines(ctx)
		return machinesResult{machines}, err
	}))
	mux.Handle("POST /v1/move", jsonHandler(s, b.Move))
	mux.Handle("POST /v1/fence-machine", jsonHandler(s, func(ctx context.Context, args RemoveMachineArgs) (struct{}, error) {
		return struct{}{}, b.FenceMachine(ctx, args.Machine)
	}))
	mux.Handle("POST /v1/remove-machine", jsonHandler(s, func(ctx context.Context, args RemoveMachineArgs) (struct{}, error) {
		return struct{}{}, b.RemoveMachine(ctx, args)
	}))
	mux.Handle("POST /v1/create-token", jsonHandler(s, func(ctx context.Context, args CreateTokenArgs) (tokenResult, error) {
		token, err := b.CreateToken(ctx, args)
		return tokenResult{token}, err
	}))
	mux.Handle("POST /v1/tokens", jsonHandler(s, func(ctx context.Context, _ struct{}) (tokensResult, error) {
		tokens, err := b.Tokens(ctx)
		return tokensResult{tokens}, err
	}))
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

// readArgs returns the arguments of a request. It reads the body to its end, and then lifts
// the read deadline: only then does the request's context end exactly when the client
// disconnects.
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
		writeError(w, errors.Errorf("%d clients are watching already: try again when one has ended", maxStreams))
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
		_ = send(envelope[Event]{Error: params.ServerError(err)}) // a client that has disconnected does not need it
	}
}

// writeJSON writes a response. It ignores errors, which mean that the client has disconnected.
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

// logWriter passes the messages of net/http to the logger.
type logWriter struct{ logger Logger }

func (w logWriter) Write(p []byte) (int, error) {
	w.logger.Warningf("control socket: %q", strings.TrimSpace(string(p)))
	return len(p), nil
}
