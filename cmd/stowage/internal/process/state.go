package process

import (
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/apiserver/userapi"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/state/statefile"
)

// StartCopier starts a worker that keeps two copies of the state beside it, for "stowage recover".
func (p *Process) StartCopier(store *boltkv.Store, dir datadir.Dir) (worker.Worker, error) {
	copier, err := statefile.NewCopier(statefile.CopierConfig{
		Store:    store,
		Path:     dir.StateFile(),
		Identify: datadir.Identify,
		Clock:    p.Config.Clock,
		Logger:   p.Config.Logger,
	})
	if err != nil {
		return nil, errors.Trace(err)
	}
	return copier, nil
}

// eventInterval is how often the events of removed storage are checked.
const eventInterval = time.Hour

// StartEventRemover starts a worker that removes the events of storage that was removed some time ago.
func (p *Process) StartEventRemover(st *state.State) (worker.Worker, error) {
	return Every(p.Config.Clock, eventInterval, st.RemoveOldEvents), nil
}

// StartControl makes the control socket. A failure ends the process, because one that cannot be
// reached is useless.
func (p *Process) StartControl(path string, backend userapi.Backend) (worker.Worker, error) {
	server, err := control.NewServer(control.ServerConfig{SocketPath: path, Backend: backend, Logger: p.Config.Logger})
	if err != nil {
		return nil, errors.WithType(err, ErrFatal)
	}
	p.Config.Logger.Infof("listening on %s", path)
	return server, nil
}

// IsStateFatal reports whether an error of a worker is one of a state that has failed. The
// contents of a damaged state must not be acted on, and a state that has failed does not recover.
func IsStateFatal(err error) bool {
	return errors.Is(err, boltkv.ErrDamaged) || errors.Is(err, boltkv.ErrUnreadable)
}

// Place lets the providers ask the state where machines are.
func (c Config) Place(st *state.State) {
	if c.Orchestrator != nil {
		c.Orchestrator.Set(st.Orchestrator())
	}
}

// EnsureEnviron creates the environment in a new state, and returns its model.
func EnsureEnviron(st *state.State) (names.ModelTag, error) {
	environ, err := st.EnvironConfig()
	if errors.Is(err, errors.NotFound) {
		attrs := map[string]any{"name": "stowage", "type": "local", "uuid": st.UUID()}
		if err := st.SetEnvironConfig(attrs); err != nil {
			return names.ModelTag{}, errors.Trace(err)
		}
		environ, err = st.EnvironConfig()
	}
	if err != nil {
		return names.ModelTag{}, errors.Trace(err)
	}
	return names.NewModelTag(environ.UUID()), nil
}
