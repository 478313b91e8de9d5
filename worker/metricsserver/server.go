// Package metricsserver serves the metrics of a process to Prometheus, for programs that have no HTTP server
// of their own. Others register the handler of promhttp with theirs.
//
// Any client that can connect can read the metrics: choose an address that only the right ones reach.
package metricsserver

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"gopkg.in/tomb.v2"
)

// DefaultPath is the path at which metrics are served unless the configuration has another one.
const DefaultPath = "/metrics"

const (
	headerTimeout   = 10 * time.Second
	shutdownTimeout = time.Second
)

// Config configures a [Server].
type Config struct {
	// Address is the TCP host and port, such as localhost:9163. Port 0 is any free one. Required.
	Address string
	// Path is the path of the metrics. It begins with a slash. Empty: [DefaultPath].
	Path string
	// Gatherer has the metrics, such as a *prometheus.Registry. Required.
	Gatherer prometheus.Gatherer
	// Routes, if set, adds further requests that are served at the same address.
	Routes func(*http.ServeMux)
}

// Validate returns an error that satisfies errors.IsNotValid and names the invalid field, or nil.
func (c Config) Validate() error {
	switch _, _, err := net.SplitHostPort(c.Address); {
	case err != nil:
		return errors.NewNotValid(err, "Address")
	case c.Gatherer == nil:
		return errors.NotValidf("nil Gatherer")
	case c.Path != "" && (!strings.HasPrefix(c.Path, "/") || strings.ContainsAny(c.Path, "{} ")):
		return errors.NotValidf("Path %q", c.Path)
	}
	return nil
}

// Server is a worker that serves until it is killed.
type Server struct {
	tomb    tomb.Tomb
	server  http.Server
	address net.Addr
}

// New begins to serve. The error satisfies errors.IsNotValid if the configuration is invalid.
func New(config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	if config.Path == "" {
		config.Path = DefaultPath
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+config.Path, promhttp.HandlerFor(config.Gatherer, promhttp.HandlerOpts{}))
	if config.Routes != nil {
		config.Routes(mux)
	}
	listener, err := net.Listen("tcp", config.Address)
	if err != nil {
		return nil, errors.Annotate(err, "serving metrics")
	}
	s := &Server{server: http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}, address: listener.Addr()}
	s.tomb.Go(func() error {
		s.tomb.Go(s.shutDown)
		if err := s.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return errors.Annotate(err, "serving metrics")
		}
		return nil
	})
	return s, nil
}

// shutDown waits until the server is killed, and lets requests end.
func (s *Server) shutDown() error {
	<-s.tomb.Dying()
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := s.server.Shutdown(ctx); err == nil {
		return nil
	}
	return errors.Trace(s.server.Close())
}

// Address returns the address at which the server listens.
func (s *Server) Address() net.Addr { return s.address }

// Kill implements worker.Worker.
func (s *Server) Kill() { s.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (s *Server) Wait() error { return s.tomb.Wait() }
