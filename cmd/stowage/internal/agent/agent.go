// Package agent assembles the machine agent: it opens the state, runs the disk manager, the
// storage provisioner and the control socket under a dependency engine, and carries out the
// requests that arrive on the socket. As an environment manager it also runs the environment's
// storage provisioner, over the same state.
//
// One directory belongs to one agent at a time; the lock on its state file guarantees that.
// When the agent stops, the storage stays as it is.
package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/backend"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/csi"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/docker"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/state/statefile"
)

// machine is the tag of the agent's machine in its own state.
var machine = names.NewMachineTag("0")

// Config is the configuration of an agent. The fields up to Logger are required.
type Config struct {
	process.Config
	// DataDir is the directory of state and storage. Its path is absolute. It is an earlier
	// agent's directory, empty, or does not exist yet. Only root and the user of this process
	// may be able to write to it, or to redirect its path.
	DataDir string
	// SocketPath is the path of the control socket.
	SocketPath string
	// Manager makes the agent an environment manager too: it makes and attaches the
	// environment's storage.
	Manager bool
	// CSI, if not nil, makes the agent a CSI driver. The machine of an agent has the same tag in each
	// state, so the name of the machine is that which identifies it among others.
	CSI *csi.Settings
	// Docker, if not nil, makes the agent a volume plugin of Docker and Podman.
	Docker *docker.Settings
	// Spec, if not nil, is applied before anything starts. With SpecOnce, it is not if the state has ever had
	// storage.
	Spec     *user.ApplyArgs
	SpecOnce bool
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
	case c.CSI != nil && c.CSI.Machine == "":
		return errors.NotValidf("empty CSI.Machine")
	case c.CSI != nil && c.CSI.SocketPath == c.SocketPath:
		return errors.NotValidf("CSI.SocketPath that is SocketPath, too")
	}
	return c.Config.Validate()
}

// Agent is a worker that looks after the storage of this machine.
type Agent struct {
	*backend.Backend
	*process.Process
	config Config
	dir    datadir.Dir
	model  names.ModelTag
	store  *boltkv.Store
	state  *state.State
}

// New starts an agent. It returns an error if the agent cannot start at all: if another agent
// uses the directory, if the directory is not an agent's or others can write to it, if the
// socket cannot be made, or if Spec is not valid. Later failures are retried with backoff.
func New(config Config) (*Agent, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	dir := datadir.Dir(config.DataDir)
	if err := dir.Prepare(); err != nil {
		return nil, errors.Trace(err)
	}
	if err := dir.CheckUse(datadir.UseRun); err != nil {
		return nil, errors.Trace(err)
	}
	store, err := dir.OpenStore()
	if err != nil {
		return nil, errors.Trace(err)
	}
	a := &Agent{Process: process.New(config.Config), config: config, dir: dir, store: store}
	if err := a.start(config); err != nil {
		return nil, errors.Trace(process.FirstError(err, a.close()))
	}
	return a, nil
}

// start does the rest of New once the agent has locked the directory.
func (a *Agent) start(config Config) error {
	if err := control.CheckSocket(config.SocketPath); err != nil {
		return errors.Trace(err)
	}
	if config.CSI != nil {
		if err := control.CheckSocket(config.CSI.SocketPath); err != nil {
			return errors.Trace(err)
		}
	}
	dir := a.dir
	if err := dir.PrepareStorage(); err != nil {
		return errors.Trace(err)
	}
	st, err := dir.OpenState(a.store, state.Config{Clock: config.Clock, Registry: config.Registry, Marks: dir.Marks()})
	if err != nil {
		return errors.Trace(err)
	}
	a.state = st
	a.Backend = backend.New(backend.Config{
		State: st,
		Backup: func(ctx context.Context, path string, now time.Time) (statefile.Meta, error) {
			return statefile.Backup(ctx, a.store, path, datadir.Identify, now)
		},
		Dir:        dir,
		SocketPath: config.SocketPath,
		Registry:   config.Registry,
		Clock:      config.Clock,
		Logger:     config.Logger,
		Manager:    config.Manager,
		Machine:    machine,
		Report:     a.Reports,
		Progress:   a.Progress,
		Audit:      config.Audit,
	})
	a.Metrics.MustRegister(a.StorageMetrics())
	a.Ready = func() error {
		_, err := st.EnvironConfig()
		return errors.Annotate(err, "reading the state")
	}
	if err := dir.CheckFingerprint(st); err != nil {
		return errors.Trace(err)
	}
	if err := a.identify(); err != nil {
		return errors.Trace(err)
	}
	if err := a.takeInventory(); err != nil {
		return errors.Trace(err)
	}
	if err := a.resetStatuses(); err != nil {
		return errors.Trace(err)
	}
	apply, err := a.appliesSpec()
	if err != nil {
		return errors.Trace(err)
	}
	if apply && config.SpecOnce {
		if _, err := a.Apply(context.Background(), *config.Spec); err != nil {
			return errors.Trace(err)
		}
	} else if apply {
		// The file may be unchanged since "stowage resize", which must not keep the agent from
		// starting.
		result, err := a.ApplyFile(context.Background(), *config.Spec, true)
		if err != nil {
			return errors.Trace(err)
		}
		for _, change := range result.Changes {
			if change.Action == user.ActionKeep {
				config.Logger.Warningf("%s", Kept(config.Spec.File, change))
			}
		}
	}
	a.Serving = []string{controlSocket}
	return errors.Trace(a.Run(a.manifolds(), process.IsStateFatal, a.close))
}

// appliesSpec reports whether there is a file to apply.
func (a *Agent) appliesSpec() (bool, error) {
	if a.config.Spec == nil || !a.config.SpecOnce {
		return a.config.Spec != nil, nil
	}
	had, err := a.state.HasHadStorage()
	return !had, err
}

// Kept says that storage differs from a file.
func Kept(file string, change user.Change) string {
	return fmt.Sprintf("%s: storage %s differs from the file, and is left as it is: %s", file, change.Name, change.Detail)
}

func (a *Agent) close() error {
	var err error
	if a.Backend != nil {
		a.Backend.Close()
	}
	if a.state != nil {
		err = a.state.Close()
	}
	return process.FirstError(err, a.store.Close())
}
