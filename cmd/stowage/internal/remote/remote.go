// Package remote assembles the agent of a machine whose state is on a server: it connects to the
// server, publishes the machine's block devices, and runs the machine's storage provisioner.
//
// The agent's directory has the providers' data and records, the agent's certificate, and the
// secret of its last session; it has no state. One directory belongs to one agent at a time; a
// lock guarantees that on one machine, and the server beyond that. When the agent stops, or has
// no connection, the storage stays as it is.
package remote

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4"
	"github.com/juju/worker/v4/dependency"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/csi"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/plugins"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/cmd/stowage/internal/space"
	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage/provider"
	"github.com/stowage-io/stowage/watcher/mounts"
	"github.com/stowage-io/stowage/worker/diskmanager"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// Config is the configuration of an agent.
type Config struct {
	process.Config
	// DataDir is the directory of the agent. Its path is absolute. It is an earlier agent's
	// directory, empty, or does not exist yet.
	DataDir string
	// Servers are the URLs of the servers.
	Servers []string
	// Token is needed once, to enrol the agent.
	Token string
	// Machine is the name of the machine. Empty: the name with which the agent was enrolled, or
	// else the host name.
	Machine string
	// CSI, if not nil, makes the agent the node service of a CSI driver. It needs no Machine.
	CSI *csi.Settings
}

// Validate returns an error that names the field that is not valid.
func (c Config) Validate() error {
	switch {
	case !filepath.IsAbs(c.DataDir):
		return errors.NotValidf("DataDir %q, which is not absolute,", c.DataDir)
	case c.Machine != "" && !coremachine.IsName(c.Machine):
		return errors.NewNotValid(nil, fmt.Sprintf("machine name %q: a name has up to 63 lower-case letters, digits, hyphens and dots, with a letter or digit at both ends, and is not a number", c.Machine))
	}
	if c.CSI != nil && c.CSI.SocketPath == "" {
		return errors.NotValidf("empty CSI.SocketPath")
	}
	return c.Config.Validate()
}

// Agent is a worker that looks after the storage of a machine.
type Agent struct {
	*process.Process
	config   Config
	dir      datadir.Dir
	identity *identity
	client   *api.Client
	machine  names.MachineTag
}

// New starts an agent. It enrols the agent if it has no certificate, and waits for a connection,
// until the context ends. The error satisfies errors.Is(err, api.ErrRefused) if the server refuses
// the agent.
func New(ctx context.Context, config Config) (*Agent, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	dir := datadir.Dir(config.DataDir)
	if err := dir.Prepare(); err != nil {
		return nil, errors.Trace(err)
	}
	if err := dir.CheckUse(datadir.UseAgent); err != nil {
		return nil, errors.Trace(err)
	}
	own, err := openIdentity(dir.Agent(), config.Machine)
	if err != nil {
		return nil, errors.Trace(err)
	}
	a := &Agent{Process: process.New(config.Config), config: config, dir: dir, identity: own}
	if err := a.start(ctx); err != nil {
		return nil, errors.Trace(process.FirstError(err, a.close()))
	}
	return a, nil
}

// start does the rest of New once the agent has locked the directory.
func (a *Agent) start(ctx context.Context) error {
	if err := a.identity.checkFingerprint(a.dir); err != nil {
		return errors.Trace(err)
	}
	if a.config.CSI != nil {
		if err := control.CheckSocket(a.config.CSI.SocketPath); err != nil {
			return errors.Trace(err)
		}
	}
	if err := a.dir.PrepareStorage(); err != nil {
		return errors.Trace(err)
	}
	own, err := a.dir.Fingerprint()
	if err != nil {
		return errors.Trace(err)
	}
	config := api.Config{URLs: a.config.Servers, Clock: a.config.Clock, Logger: a.config.Logger, Secrets: a.identity, BootID: own.BootID}
	if !a.identity.isEnrolled() {
		if err := a.enrol(ctx, config); err != nil {
			return errors.Trace(err)
		}
	}
	if a.machine, err = a.identity.machine(); err != nil {
		return errors.Trace(err)
	}
	if config.TLS, err = trust.ClientConfig(a.identity.credentials, a.config.Clock.Now); err != nil {
		return errors.Annotatef(err, "reading the certificates in %s", a.dir.Agent())
	}
	if a.client, err = api.Dial(ctx, config); err != nil {
		a.abandonIfFenced(err)
		return errors.Trace(explain(err))
	}
	a.Interrupt = a.client.Kill
	a.Serving = []string{connection}
	a.registerMetrics()
	a.config.Logger.Infof("connected to %s as machine %s (number %s)", a.client.Server(), a.identity.name, a.machine.Id())
	// Only the worker of the connection ends the agent, with an error that says what has happened.
	isFatal := func(error) bool { return false }
	return errors.Trace(a.Run(a.manifolds(), isFatal, a.close))
}

// registerMetrics registers the metrics of the agent. It is ready while it is connected.
func (a *Agent) registerMetrics() {
	a.Ready = func() error {
		if !a.client.IsConnected() {
			return errors.Errorf("there is no connection to %s", a.client.Server())
		}
		return nil
	}
	a.Gauge("stowage_agent_connected", "Whether the agent is connected to a server (1) or not (0).",
		func() float64 { return process.BoolGauge(a.client.IsConnected()) })
	a.Metrics.MustRegister(space.Metrics{Dir: a.dir.Storage(), Promised: func() (uint64, error) { return space.Promised(a.dir.Storage()) }})
	a.CertificateExpiry(func() (time.Time, error) {
		leaf, err := a.identity.credentials().Leaf()
		if err != nil {
			return time.Time{}, errors.Trace(err)
		}
		return leaf.NotAfter, nil
	})
}

func (a *Agent) enrol(ctx context.Context, config api.Config) error {
	if a.config.Token == "" {
		return errors.Errorf("the agent in %s is not enrolled: make a token with `stowage token create --role machine` on the server, and start the agent with --token", a.dir)
	}
	token, err := trust.ParseToken(strings.TrimSpace(a.config.Token))
	if err != nil {
		return errors.Trace(err)
	}
	if err := a.identity.enrol(ctx, config, token); err != nil {
		return errors.Trace(err)
	}
	a.config.Logger.Infof("enrolled as machine %s", a.identity.name)
	return nil
}

// explain adds the remedy to the error of an agent that the server refuses.
func explain(err error) error {
	if !errors.Is(err, api.ErrRefused) {
		return err
	}
	if errors.Is(err, api.ErrFenced) {
		return errors.Annotate(err, "the server refuses this agent")
	}
	return errors.Annotate(err, "the server refuses this agent, and its storage stays as it is")
}

// abandonIfFenced shuts down what is on the environment's volumes if the machine was fenced although
// it was not off: another machine may use the volumes now, and what this one has in memory must not
// be written to them.
func (a *Agent) abandonIfFenced(err error) {
	if !errors.Is(err, api.ErrFenced) {
		return
	}
	down, err := provider.ShutDownEnvironment(context.Background(), a.dir.Storage())
	for _, path := range down {
		a.config.Logger.Errorf("shut down the filesystem on %s without writing to it, since this machine was fenced: restart the machine", path)
	}
	if err != nil {
		a.config.Logger.Errorf("this machine was fenced, and still has what another machine may use: restart it at once: %v", err)
	}
}

func (a *Agent) close() error {
	var err error
	if a.client != nil {
		err = a.client.Close()
		if errors.Is(err, api.ErrRefused) || errors.Is(err, api.ErrRestored) {
			err = nil // the process ends with it already
		}
	}
	return process.FirstError(err, a.identity.close())
}

// The names of the manifolds, as messages show them.
const (
	connection         = "server"
	certificateRenewer = "certificate"
	diskManager        = "disk-manager"
	machineAccessors   = "accessors"
	machineProvisioner = "storage-provisioner"
	trashCollector     = "trash"
	taskExecutor       = "tasks"
	spaceReporter      = "space"
	driverReporter     = "drivers"
	csiServer          = "csi"
)

// manifolds returns the workers that the engine keeps running. They share the client, which
// hides lost connections.
func (a *Agent) manifolds() dependency.Manifolds {
	manifolds := dependency.Manifolds{
		connection:         process.Start(a.startConnection),
		certificateRenewer: process.Start(a.startRenewer),
		diskManager: process.Start(func() (worker.Worker, error) {
			return diskmanager.New(diskmanager.Config{Publisher: a.client.Accessors(), Clock: a.config.Clock})
		}),
		trashCollector: process.Start(func() (worker.Worker, error) { return a.StartTrashPurger(a.dir) }),
		taskExecutor:   process.Start(a.startTasks),
		spaceReporter:  process.Start(a.startSpaceReporter),
		driverReporter: process.Start(func() (worker.Worker, error) {
			return plugins.StartDriverReporter(a.config.Registry, a.config.Clock, a.config.Logger.Warningf, a.client.SetMachineDrivers), nil
		}),
		machineAccessors: storageprovisioner.AccessorsManifold(a.client.Accessors()),
		machineProvisioner: storageprovisioner.MachineManifold(storageprovisioner.MachineManifoldConfig{
			ManifoldConfig: a.Provisioner(machineAccessors, a.machine.String()),
			Machine:        a.machine,
			StorageDir:     a.dir.Storage(),
			Plans:          plugins.Plans(a.config.Registry, a.dir.Storage()),
			Mounts:         mounts.Watch,
		}),
	}
	if a.config.CSI != nil {
		manifolds[csiServer] = process.Start(a.startCSI)
	}
	return manifolds
}

// startConnection starts a worker that ends when the client does, and with it the agent. The
// client itself is closed last, so that the other workers can finish what they do.
func (a *Agent) startConnection() (worker.Worker, error) {
	w := &connectionWorker{}
	w.tomb.Go(func() error {
		select {
		case <-w.tomb.Dying():
			return tomb.ErrDying
		case <-a.client.Dead():
			err := a.client.Wait()
			a.abandonIfFenced(err)
			return errors.WithType(explain(err), process.ErrFatal)
		}
	})
	return w, nil
}

type connectionWorker struct{ tomb tomb.Tomb }

// Kill implements worker.Worker.
func (w *connectionWorker) Kill() { w.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (w *connectionWorker) Wait() error { return w.tomb.Wait() }

// renewalInterval is how often the agent looks whether its certificate is to be renewed, and
// tries again after a failure.
const renewalInterval = time.Hour

// startRenewer starts a worker that renews the certificate after two thirds of its time.
func (a *Agent) startRenewer() (worker.Worker, error) {
	return process.Every(a.config.Clock, renewalInterval, func() error {
		leaf, err := a.identity.credentials().Leaf()
		if err != nil {
			return errors.Trace(err)
		}
		if a.config.Clock.Now().Before(trust.RenewAt(leaf)) {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		certificate, err := a.client.Renew(ctx, a.identity.key.Public())
		if err == nil {
			err = a.identity.replaceCertificate(certificate)
		}
		if err != nil {
			a.config.Logger.Warningf("%v; the certificate is valid until %s", err, leaf.NotAfter.UTC().Format(time.RFC3339))
			return nil
		}
		a.config.Logger.Infof("renewed the certificate")
		return nil
	}), nil
}
