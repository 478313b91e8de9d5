// Package server assembles a server: it opens the state, serves the agents of its machines over
// HTTPS, and the user's requests on the control socket, and runs the environment's storage
// provisioner. A server is no machine itself.
//
// The state is in a file, in an etcd that others run, or in an etcd whose members the servers
// themselves run. In etcd, several servers can have it: each of these serves agents and users, and one
// at a time provisions the environment's storage.
//
// One directory belongs to one server at a time; a lock guarantees that. When the server stops, the
// storage stays as it is, and the agents wait until it is back.
package server

import (
	"context"
	"crypto/rand"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4"
	"github.com/juju/worker/v4/dependency"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/admission"
	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/cmd/stowage/internal/backend"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/csi"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/member"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/worker/leased"
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
	// Etcd says where the state is, if it is in an etcd that others run.
	Etcd Etcd
	// ClusterInit says that this server and others that join it keep the state together. Without that,
	// Etcd and Join, the state is in a file in DataDir.
	ClusterInit bool
	// Join has the URLs of servers with the same state, and Token is what a new server needs once to
	// join them.
	Join  []string
	Token string
	// PeerAddress is the host and port at which the other servers that keep the state reach this one.
	// Empty: the host of Listen, and the port after that.
	PeerAddress string
	// AcceptRestored says that a user accepts a state that was restored: see
	// [state.State.AcceptGeneration].
	AcceptRestored bool
	// FenceProgram is the absolute path of a program that switches machines off; see [fencing]. Empty:
	// users do that themselves.
	FenceProgram string
	// FenceAfter is how long a machine may be unreachable before the program is run without a user's
	// request. Zero: it is run only on request.
	FenceAfter time.Duration
	// CSI, if not nil, makes the server the controller of a CSI driver for all machines.
	CSI *csi.Settings
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
	case c.CSI != nil && c.CSI.SocketPath == "":
		return errors.NotValidf("empty CSI.SocketPath")
	case c.CSI != nil && c.CSI.SocketPath == c.SocketPath:
		return errors.NotValidf("CSI.SocketPath that is SocketPath, too")
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return errors.NewNotValid(nil, "the address to listen on: "+err.Error())
	}
	if err := c.Etcd.validate(); err != nil {
		return errors.Trace(err)
	}
	switch {
	case c.FenceProgram != "" && !filepath.IsAbs(c.FenceProgram):
		return errors.NotValidf("FenceProgram %q, which is not absolute,", c.FenceProgram)
	case c.FenceAfter < 0:
		return errors.NotValidf("negative FenceAfter")
	case c.FenceAfter > 0 && c.FenceProgram == "":
		return errors.NewNotValid(nil, "a time after which machines are fenced needs a program that does it")
	}
	switch {
	case c.ClusterInit && len(c.Join) > 0:
		return errors.NewNotValid(nil, "a server either begins a cluster or joins one")
	case c.ClusterInit && len(c.Etcd.Endpoints) > 0:
		return errors.NewNotValid(nil, "a server that begins a cluster has its own etcd")
	case c.PeerAddress != "":
		if err := member.CheckAddress(c.PeerAddress); err != nil {
			return errors.Trace(err)
		}
	}
	return c.Config.Validate()
}

// Server is a worker that serves agents and users.
type Server struct {
	*process.Process
	config Config
	dir    datadir.Dir
	model  names.ModelTag
	place  place
	state  *state.State

	// name is that of this run of the server among several with one state, and member the lease that
	// shows that it runs. Both are empty if there is only one server.
	name   string
	member kv.Lease

	// leads says that this server provisions the environment's storage.
	leads atomic.Bool

	backend  *backend.Backend
	listener net.Listener
	handler  *admission.Handler
	certs    *certificates
}

// New starts a server. The context bounds the wait for etcd and for other servers. New returns an
// error if the server cannot start at all: if another process uses the directory, if the directory
// has another use or others can write to it, or if it cannot listen. Later failures are retried with
// backoff.
func New(ctx context.Context, config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	dir := datadir.Dir(config.DataDir)
	if err := prepare(dir); err != nil {
		return nil, errors.Trace(err)
	}
	place, err := openPlace(ctx, dir, config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	s := &Server{Process: process.New(config.Config), config: config, dir: dir, place: place}
	if err := s.start(ctx); err != nil {
		return nil, errors.Trace(process.FirstError(err, s.close()))
	}
	return s, nil
}

// prepare makes the directory, unless it has another use.
func prepare(dir datadir.Dir) error {
	if err := dir.Prepare(); err != nil {
		return errors.Trace(err)
	}
	if err := dir.CheckUse(datadir.UseServer); err != nil {
		return errors.Trace(err)
	}
	if err := os.Mkdir(dir.Server(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return errors.Annotate(err, "making the directory of the server's files")
	}
	return nil
}

// start does the rest of New once the server has locked the directory.
func (s *Server) start(ctx context.Context) error {
	if err := control.CheckSocket(s.config.SocketPath); err != nil {
		return errors.Trace(err)
	}
	if s.config.CSI != nil {
		if err := control.CheckSocket(s.config.CSI.SocketPath); err != nil {
			return errors.Trace(err)
		}
	}
	if err := s.openState(); err != nil {
		return errors.Trace(err)
	}
	ca, err := s.openAuthority(ctx)
	if err != nil {
		return errors.Trace(err)
	}
	if p, ok := s.place.(*inEtcd); ok {
		s.name = running{strings.ToLower(rand.Text()[:8]), state.SchemaVersion, p.name}.String()
		if s.member, err = p.Acquire(ctx, memberLease(s.name)); err != nil {
			return errors.Trace(err)
		}
	}
	if s.listener, err = net.Listen("tcp", s.config.Listen); err != nil {
		return errors.Annotate(err, "serving agents")
	}
	host, _, _ := net.SplitHostPort(s.listener.Addr().String())
	if s.certs, err = newCertificates(ca, []string{trust.ServerName, host}, s.config.Clock); err != nil {
		return errors.Trace(err)
	}
	s.handler, err = admission.New(admission.Config{State: s.state, CA: ca, Server: s.name, Clock: s.config.Clock, Logger: s.config.Logger, Absence: s.config.Absence, AddMember: s.addMember(), Asked: s.asked})
	if err != nil {
		return errors.Trace(err)
	}
	s.backend = backend.New(backend.Config{
		State:       s.state,
		Backup:      s.place.backup,
		ChangeLease: s.changeLease(),
		Dir:         s.dir,
		SocketPath:  s.config.SocketPath,
		Registry:    s.config.Registry,
		Clock:       s.config.Clock,
		Logger:      s.config.Logger,
		Manager:     true,
		Server:      s.backendServer(ca),
		Report:      s.Reports,
		Progress:    s.Progress,
		Audit:       s.config.Audit,
	})
	s.registerMetrics()
	s.Ready = s.ready
	manifolds, err := s.manifolds()
	if err != nil {
		return errors.Trace(err)
	}
	s.Serving = []string{agentServer, controlSocket}
	return errors.Trace(s.Run(manifolds, s.place.isFatal, s.close))
}

// backendServer returns what the requests of users need of the server.
func (s *Server) backendServer(ca *trust.CA) *backend.Server {
	server := &backend.Server{
		CAHash:       ca.Hash(),
		LastSeen:     s.handler.LastSeen,
		IsConnected:  s.handler.IsConnected,
		ExpectAbsent: s.handler.ExpectAbsent,
		PowerOff:     s.powerOff,
	}
	if m := s.etcdMember(); m != nil {
		server.Servers = func(ctx context.Context) []user.Server { return servers(m.List(ctx)) }
		server.RemoveServer = m.Remove
	}
	return server
}

// openState opens the state, and creates the environment in a new one.
func (s *Server) openState() error {
	var err error
	s.state, err = s.place.open(state.Config{Clock: s.config.Clock, Registry: s.config.Registry, Marks: s.dir.Marks()})
	if err != nil {
		return errors.Trace(err)
	}
	s.config.Place(s.state)
	if s.model, err = process.EnsureEnviron(s.state); err != nil {
		return errors.Trace(err)
	}
	if s.config.AcceptRestored {
		return errors.Trace(s.state.AcceptGeneration())
	}
	return nil
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
	if s.member != nil {
		leased.Release(s.member)
	}
	if s.backend != nil {
		s.backend.Close()
	}
	if s.state != nil {
		errs = append(errs, s.state.Close())
	}
	return process.FirstError(append(errs, s.place.Close())...)
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
	taskCollector      = "tasks"
	eventCollector     = "events"
	machineFencer      = "fencing"
	thisServer         = "membership"
	otherServers       = "other-servers"
	schemaRaising      = "schema"
	etcdOwn            = "etcd"
	csiServer          = "csi"
	snapshotter        = "snapshots"
)

func (s *Server) manifolds() (dependency.Manifolds, error) {
	manifolds := dependency.Manifolds{
		agentServer:     process.Start(s.serveAgents),
		controlSocket:   process.Start(func() (worker.Worker, error) { return s.StartControl(s.config.SocketPath, s.backend) }),
		memoryScavenger: process.Start(func() (worker.Worker, error) { return s.StartScavenger(s.state) }),
		tokenCollector:  process.Start(s.collectTokens),
		taskCollector:   process.Start(s.collectTasks),
		eventCollector:  process.Start(func() (worker.Worker, error) { return s.StartEventRemover(s.state) }),
	}
	if file, ok := s.place.(*inFile); ok {
		manifolds[stateCopies] = process.Start(func() (worker.Worker, error) { return s.StartCopier(file.Store, s.dir) })
	}
	if p, ok := s.place.(*inEtcd); ok {
		manifolds[thisServer] = process.Start(func() (worker.Worker, error) { return s.startMembership(p) })
		manifolds[otherServers] = process.Start(func() (worker.Worker, error) { return s.startPeers(p) })
		manifolds[schemaRaising] = process.Start(func() (worker.Worker, error) { return s.startSchemaRaiser(p) })
		if p.member != nil {
			manifolds[etcdOwn] = process.Start(p.awaitMember)
		}
	}
	if s.config.CSI != nil {
		manifolds[csiServer] = process.Start(s.startCSI)
	}
	if s.config.FenceAfter > 0 {
		manifolds[machineFencer] = process.Start(s.startFencer)
	}
	accepted, err := s.state.IsAccepted()
	if err != nil {
		return nil, errors.Trace(err)
	}
	if !accepted {
		s.config.Logger.Warningf("the state was restored from a backup, and may not know which machines have which storage of the environment: " +
			"nothing of it is made, attached or detached. When you have made sure that no machine uses storage that `stowage status` shows elsewhere, start the server with --accept-restored")
		if _, shared := s.place.(kv.Leaser); !shared {
			return manifolds, nil
		}
	}
	manifolds[snapshotter] = s.snapshotManifold()
	manifolds[environProvisioner], err = s.environManifold()
	return manifolds, errors.Trace(err)
}

const tokenInterval = time.Hour

// collectTokens starts a worker that removes tokens that have expired.
func (s *Server) collectTokens() (worker.Worker, error) {
	return process.Every(s.config.Clock, tokenInterval, s.state.RemoveExpiredTokens), nil
}

const taskInterval = 10 * time.Minute

// collectTasks starts a worker that removes tasks that ended some time ago.
func (s *Server) collectTasks() (worker.Worker, error) {
	return process.Every(s.config.Clock, taskInterval, s.state.RemoveOldTasks), nil
}
