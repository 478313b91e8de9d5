// Package server assembles a server: it opens the state, serves the agents of its machines over
// HTTPS, and the user's requests on the control socket, and runs the environment's storage
// provisioner. A server is no machine itself.
//
// One directory belongs to one server at a time; the lock on its state file guarantees that.
// When the server stops, the storage stays as it is, and the agents wait until it is back.
package server

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4"
	"github.com/juju/worker/v4/dependency"

	"github.com/stowage-io/stowage/apiserver/admission"
	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/cmd/stowage/internal/backend"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// Config is the configuration of a server.
type Config struct {
	process.Config
	// DataDir is the directory of the state. Its path is absolute. It is an earlier server's
	// directory, empty, or does not exist yet.
	DataDir string
	// SocketPath is the path of the control socket.
	SocketPath string
	// Listen is the TCP host and port on which agents are served.
	Listen string
	// AcceptRestored says that a user accepts a state that was restored: see
	// [state.State.AcceptGeneration].
	AcceptRestored bool
	// Absence is how long an agent may be without a connection before its machine counts as
	// unreachable. Zero: 40 seconds.
	Absence time.Duration
}

// Validate returns an error that names the field that is not valid.
func (c Config) Validate() error {
	switch {
	case !filepath.IsAbs(c.DataDir):
		return errors.NotValidf("DataDir %q, which is not absolute,", c.DataDir)
	case c.SocketPath == "":
		return errors.NotValidf("empty SocketPath")
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return errors.NewNotValid(nil, "the address to listen on: "+err.Error())
	}
	return c.Config.Validate()
}

// Server is a worker that serves agents and users.
type Server struct {
	*process.Process
	config Config
	dir    datadir.Dir
	model  names.ModelTag
	store  *boltkv.Store
	state  *state.State

	backend  *backend.Backend
	listener net.Listener
	handler  *admission.Handler
	certs    *certificates
}

// New starts a server. It returns an error if the server cannot start at all: if another process
// uses the directory, if the directory has another use or others can write to it, or if it cannot
// listen. Later failures are retried with backoff.
func New(config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	dir := datadir.Dir(config.DataDir)
	if err := dir.Prepare(); err != nil {
		return nil, errors.Trace(err)
	}
	if err := dir.CheckUse(datadir.UseServer); err != nil {
		return nil, errors.Trace(err)
	}
	if err := os.Mkdir(dir.Server(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, errors.Annotate(err, "making the directory of the server's files")
	}
	store, err := dir.OpenStore()
	if err != nil {
		return nil, errors.Trace(err)
	}
	s := &Server{Process: process.New(config.Config), config: config, dir: dir, store: store}
	if err := s.start(); err != nil {
		return nil, errors.Trace(process.FirstError(err, s.close()))
	}
	return s, nil
}

// start does the rest of New once the server has locked the directory.
func (s *Server) start() error {
	if err := control.CheckSocket(s.config.SocketPath); err != nil {
		return errors.Trace(err)
	}
	ca, err := openAuthority(s.dir.Server(), s.config.Clock.Now())
	if err != nil {
		return errors.Trace(err)
	}
	if err := s.openState(); err != nil {
		return errors.Trace(err)
	}
	if s.listener, err = net.Listen("tcp", s.config.Listen); err != nil {
		return errors.Annotate(err, "serving agents")
	}
	host, _, _ := net.SplitHostPort(s.listener.Addr().String())
	if s.certs, err = newCertificates(ca, []string{trust.ServerName, host}, s.config.Clock); err != nil {
		return errors.Trace(err)
	}
	s.handler, err = admission.New(admission.Config{State: s.state, CA: ca, Clock: s.config.Clock, Logger: s.config.Logger, Absence: s.config.Absence})
	if err != nil {
		return errors.Trace(err)
	}
	s.backend = backend.New(backend.Config{
		State:      s.state,
		Store:      s.store,
		Dir:        s.dir,
		SocketPath: s.config.SocketPath,
		Registry:   s.config.Registry,
		Clock:      s.config.Clock,
		Logger:     s.config.Logger,
		Manager:    true,
		Server:     &backend.Server{CAHash: ca.Hash(), LastSeen: s.handler.LastSeen, IsConnected: s.handler.IsConnected, ExpectAbsent: s.handler.ExpectAbsent},
		Report:     s.Reports,
	})
	return errors.Trace(s.Run(s.manifolds(), process.IsStateFatal, s.close))
}

// openState opens the state, and creates the environment in a new one.
func (s *Server) openState() error {
	var err error
	s.state, err = s.dir.OpenState(s.store, state.Config{Clock: s.config.Clock, Registry: s.config.Registry, Marks: s.dir.Marks()})
	if err != nil {
		return errors.Trace(err)
	}
	if err := s.dir.CheckFingerprint(s.state); err != nil {
		return errors.Trace(err)
	}
	if s.model, err = process.EnsureEnviron(s.state); err != nil {
		return errors.Trace(err)
	}
	if s.config.AcceptRestored {
		if err := s.state.AcceptGeneration(); err != nil {
			return errors.Trace(err)
		}
	}
	if !s.state.IsAccepted() {
		return nil
	}
	return errors.Trace(s.state.RecheckEnviron("the server has started again"))
}

func (s *Server) close() error {
	var errs []error
	if s.listener != nil {
		_ = s.listener.Close() // again, if it was served
	}
	if s.handler != nil {
		s.handler.Kill()
		errs = append(errs, s.handler.Wait())
	}
	if s.state != nil {
		errs = append(errs, s.state.Close())
	}
	return process.FirstError(append(errs, s.store.Close())...)
}

// Address returns the address on which agents are served.
func (s *Server) Address() string { return s.listener.Addr().String() }

// The names of the manifolds, as the report shows them.
const (
	agentServer        = "agents"
	environAccessors   = "environment-accessors"
	environProvisioner = "environment-storage-provisioner"
	controlSocket      = "control"
	memoryScavenger    = "memory"
	stateCopies        = "state-copies"
	tokenCollector     = "tokens"
)

func (s *Server) manifolds() dependency.Manifolds {
	manifolds := dependency.Manifolds{
		agentServer:     process.Start(s.serveAgents),
		controlSocket:   process.Start(func() (worker.Worker, error) { return s.StartControl(s.config.SocketPath, s.backend) }),
		memoryScavenger: process.Start(func() (worker.Worker, error) { return s.StartScavenger(s.state) }),
		stateCopies:     process.Start(func() (worker.Worker, error) { return s.StartCopier(s.store, s.dir) }),
		tokenCollector:  process.Start(s.collectTokens),
	}
	if !s.state.IsAccepted() {
		s.config.Logger.Warningf("the state was restored from a backup, and may not know which machines have which storage of the environment: " +
			"nothing of it is made, attached or detached. When you have made sure that no machine uses storage that `stowage status` shows elsewhere, start the server with --accept-restored")
		return manifolds
	}
	manifolds[environAccessors] = storageprovisioner.AccessorsManifold(s.state.ForEnviron())
	manifolds[environProvisioner] = storageprovisioner.EnvironManifold(storageprovisioner.EnvironManifoldConfig{
		ManifoldConfig: s.Provisioner(environAccessors, "environment"),
		Model:          s.model,
	})
	return manifolds
}

const tokenInterval = time.Hour

// collectTokens starts a worker that removes tokens that have expired.
func (s *Server) collectTokens() (worker.Worker, error) {
	return process.Every(s.config.Clock, tokenInterval, s.state.RemoveExpiredTokens), nil
}
