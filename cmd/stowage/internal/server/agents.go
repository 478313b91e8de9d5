package server

import (
	"context"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/juju/errors"
	"github.com/juju/worker/v4"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/apiserver/admission"
	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/apiserver/userapi"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
)

const (
	headerTimeout   = 10 * time.Second
	idleTimeout     = 2 * time.Minute
	shutdownTimeout = 5 * time.Second
	maxHeaderBytes  = 16 << 10
)

// agents serves agents, and users of other hosts, until it is killed.
type agents struct {
	tomb  tomb.Tomb
	http  http.Server
	conns sync.WaitGroup // open connections
}

// serveAgents starts the worker. A failure ends the server, because it has one listener, and
// agents rely on it.
func (s *Server) serveAgents() (worker.Worker, error) {
	config, err := trust.ServerConfig(s.certs.get, s.config.Clock.Now)
	if err != nil {
		return nil, errors.WithType(err, process.ErrFatal)
	}
	users, err := userapi.New(userapi.Config{Backend: s.backend, Caller: s.caller})
	if err != nil {
		return nil, errors.WithType(err, process.ErrFatal)
	}
	handshakes := newHandshakes()
	w := &agents{}
	w.http = http.Server{
		Handler:           s.routes(users, w.tomb.Context(context.Background())),
		TLSConfig:         handshakes.limit(config),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(debugWriter{s.config.Logger}, "", 0),
		ConnState:         w.trackConn,
	}
	w.tomb.Go(func() error {
		served := make(chan struct{})
		defer close(served)
		w.tomb.Go(func() error {
			<-w.tomb.Dying()
			s.handler.Kill() // ends the streams, for which Shutdown waits
			ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
			defer cancel()
			_ = w.http.Shutdown(ctx)
			<-served
			_ = w.http.Close() // ends connections that have not ended in time, or that came last
			w.conns.Wait()
			return nil
		})
		if err := w.http.ServeTLS(handshakes.listen(s.listener), "", ""); !errors.Is(err, http.ErrServerClosed) {
			return errors.WithType(errors.Annotate(err, "serving agents"), process.ErrFatal)
		}
		return nil
	})
	s.config.Logger.Infof("serving agents on https://%s", s.listener.Addr())
	return w, nil
}

// routes serves the requests of agents and of supervisors, and those of users until the context ends.
func (s *Server) routes(users http.Handler, serving context.Context) http.Handler {
	mux := http.NewServeMux()
	s.HealthRoutes(mux, false)
	for _, path := range admission.Paths() {
		mux.Handle(path, s.handler)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(serving, cancel)()
		users.ServeHTTP(w, r.WithContext(ctx))
	})
	return mux
}

// caller returns the user who makes a request.
func (s *Server) caller(r *http.Request) (userapi.Caller, error) {
	u, err := s.handler.User(r)
	return userapi.Caller{Name: u.Name, Role: u.Role}, errors.Trace(err)
}

// trackConn counts open connections. The HTTP server reports a new connection before Serve
// returns, and a closed one when the goroutine of the connection has nothing left to do.
func (w *agents) trackConn(_ net.Conn, now http.ConnState) {
	switch now {
	case http.StateNew:
		w.conns.Add(1)
	case http.StateClosed:
		w.conns.Done()
	}
}

// Kill implements worker.Worker.
func (w *agents) Kill() { w.tomb.Kill(nil) }

// Wait implements worker.Worker. When it returns, no connection is open.
func (w *agents) Wait() error { return w.tomb.Wait() }

// debugWriter passes the messages of net/http to the logger. Most are about connections that
// anybody can make.
type debugWriter struct{ logger process.Logger }

func (w debugWriter) Write(p []byte) (int, error) {
	w.logger.Debugf("agents: %q", strings.TrimSpace(string(p)))
	return len(p), nil
}
