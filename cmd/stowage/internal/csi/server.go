package csi

import (
	"context"
	"net"
	"path"
	"runtime/debug"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/clock"
	"github.com/juju/errors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
)

// Way is the way in of storage that is asked for through CSI.
const Way = "csi"

// DefaultPool is the pool of volumes for which no pool is named.
const DefaultPool = "loop"

// Logger receives messages for the operator.
type Logger interface {
	Debugf(format string, args ...any)
	Errorf(format string, args ...any)
}

// Settings are what users choose of a [Config].
type Settings struct {
	// SocketPath is the path of the socket, see [ParseEndpoint]. Required.
	SocketPath string
	// Pool is the pool of volumes that name none. Empty: [DefaultPool].
	Pool string
	// Machine is the name of the machine of the node service: its node ID, and its name in topologies.
	// Required with a node service.
	Machine string
	// ExpandOnNodes leaves expanding volumes to the node service: the controller service that an
	// orchestrator asks may be that of another machine.
	ExpandOnNodes bool
	// Version is the version of the driver. Empty: "unknown".
	Version string
}

// Config configures a [Server].
type Config struct {
	Settings
	// Controller is the storage of the controller service, and Node that of the node service. Nil: the
	// service is not served. At least one is set.
	Controller asked.Manager
	Node       asked.Volumes
	// Ready returns an error if the process cannot do its work at the moment. Nil: it always can.
	Ready func() error
	// Clock and Logger are required.
	Clock  clock.Clock
	Logger Logger
}

// Validate returns an error that names the field that is not valid.
func (c Config) Validate() error {
	switch {
	case c.SocketPath == "":
		return errors.NotValidf("empty SocketPath")
	case c.Controller == nil && c.Node == nil:
		return errors.NotValidf("nil Controller and Node")
	case c.Node != nil && c.Machine == "":
		return errors.NotValidf("empty Machine")
	case c.Clock == nil:
		return errors.NotValidf("nil Clock")
	case c.Logger == nil:
		return errors.NotValidf("nil Logger")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Pool == "" {
		c.Pool = DefaultPool
	}
	if c.Version == "" {
		c.Version = "unknown"
	}
	if c.Ready == nil {
		c.Ready = func() error { return nil }
	}
	return c
}

// register registers the services.
func (c Config) register(to grpc.ServiceRegistrar) {
	csi.RegisterIdentityServer(to, &identity{config: c})
	calls := &busy{}
	if c.Controller != nil {
		csi.RegisterControllerServer(to, &controller{config: c, volumes: c.Controller, busy: calls})
	}
	if c.Node != nil {
		csi.RegisterNodeServer(to, &node{config: c, volumes: c.Node, busy: calls})
	}
}

// Server is a worker that serves CSI on a socket, which only its own user may use.
type Server struct {
	config Config
	tomb   tomb.Tomb
	grpc   *grpc.Server
	// ctx ends with the cause errStopping when the server is killed.
	ctx context.Context
}

// NewServer listens on the socket, and serves calls until it is killed. It replaces a socket file that
// a dead process left; it returns an error if another process listens on the socket. The file is
// removed at the end.
func NewServer(config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	config = config.withDefaults()
	listener, err := control.Listen(config.SocketPath)
	if err != nil {
		return nil, errors.Trace(err)
	}
	s := &Server{config: config}
	ctx, cancel := context.WithCancelCause(context.Background())
	s.ctx = ctx
	s.grpc = grpc.NewServer(grpc.UnaryInterceptor(s.intercept))
	config.register(s.grpc)
	s.tomb.Go(func() error {
		s.tomb.Go(func() error {
			<-s.tomb.Dying()
			cancel(errStopping)
			s.stop()
			return nil
		})
		return errors.Annotatef(s.serve(listener), "serving CSI on %s", config.SocketPath)
	})
	return s, nil
}

func (s *Server) serve(listener net.Listener) error {
	err := s.grpc.Serve(listener)
	if errors.Is(err, grpc.ErrServerStopped) || !s.tomb.Alive() {
		return nil
	}
	return err
}

// stopTimeout is how long calls may take to end when the server is killed. They end at once, unless
// they are in a system call that does not.
const stopTimeout = 2 * time.Second

// stop ends the calls in hand, and the connections.
func (s *Server) stop() {
	var stopped sync.WaitGroup
	done := make(chan struct{})
	stopped.Go(func() {
		s.grpc.GracefulStop()
		close(done)
	})
	select {
	case <-done:
	case <-s.config.Clock.After(stopTimeout):
		s.grpc.Stop()
	}
	stopped.Wait()
}

// Kill implements worker.Worker.
func (s *Server) Kill() { s.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (s *Server) Wait() error { return s.tomb.Wait() }

// intercept carries out a call. The call ends when the server is killed, and a panic fails the call
// only. Neither what is asked nor what is answered is logged: it may be secret.
func (s *Server) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })()
	name := path.Base(info.FullMethod)
	defer func() {
		if cause := recover(); cause != nil {
			s.config.Logger.Errorf("panic in %s: %v\n%s", name, cause, debug.Stack())
			response, err = nil, fail(codes.Internal, "%s: panic: %v: see the log of stowage", name, cause)
		}
		switch code := status.Code(err); code {
		case codes.OK, codes.Unimplemented:
		case codes.Internal, codes.Unknown:
			s.config.Logger.Errorf("%s: %s", name, messageOf(err))
		default:
			s.config.Logger.Debugf("%s: %s: %s", name, code, messageOf(err))
		}
	}()
	response, err = handler(ctx, request)
	if _, coded := status.FromError(err); err != nil && !coded {
		err = failure(err, "%s", name)
	}
	return response, err
}
