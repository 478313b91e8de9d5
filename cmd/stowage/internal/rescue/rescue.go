// Package rescue repairs the directory of a stopped agent: it restores or recovers a state,
// and gives a moved or copied directory its identity. It runs no worker, attaches nothing, and
// makes or destroys no storage.
package rescue

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/juju/clock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/inventory"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// Config identifies the directory. All of it is required.
type Config struct {
	Dir      datadir.Dir
	Registry storage.ProviderRegistry
	Clock    clock.Clock
}

// openedState is the state of a stopped agent.
type openedState struct {
	*state.State
	store *boltkv.Store
}

// open opens the existing state in the directory.
func (c Config) open() (*openedState, error) {
	if err := c.Dir.CheckState(); err != nil {
		return nil, errors.Trace(err)
	}
	store, err := boltkv.OpenExisting(c.Dir.StateFile())
	if err != nil {
		return nil, c.explain(err)
	}
	return c.openStore(store, c.stateConfig())
}

// explain adds the remedy to an error of opening the directory's state.
func (c Config) explain(err error) error {
	var locked *boltkv.LockedError
	switch {
	case errors.As(err, &locked) && locked.PID != 0:
		return errors.New(fmt.Sprintf("an agent runs in %s: stop it first: PID %d (%s)", c.Dir, locked.PID, locked.Program))
	case errors.Is(err, errors.Timeout):
		return errors.New(fmt.Sprintf("an agent runs in %s: stop it first", c.Dir))
	case errors.Is(err, fs.ErrNotExist):
		return errors.NewNotFound(nil, fmt.Sprintf("%s is not the directory of an agent: name it with --data-dir", c.Dir))
	}
	return errors.Trace(err)
}

func (c Config) stateConfig() state.Config {
	return state.Config{Clock: c.Clock, Registry: c.Registry, Marks: c.Dir.Marks()}
}

func (c Config) openStore(store *boltkv.Store, config state.Config) (*openedState, error) {
	st, err := c.Dir.OpenState(store, config)
	if err != nil {
		_ = store.Close() // the error above says why
		return nil, errors.Trace(err)
	}
	return &openedState{st, store}, nil
}

func (o *openedState) close(err *error) {
	for _, close := range []func() error{o.State.Close, o.store.Close} {
		if cerr := close(); *err == nil {
			*err = errors.Trace(cerr)
		}
	}
}

func (c Config) inventory(environ bool) (*inventory.Inventory, error) {
	inv, err := inventory.Open(inventory.Config{Registry: c.Registry, StorageDir: c.Dir.Storage(), Environ: environ})
	return inv, errors.Trace(err)
}

// AdoptMoved makes a directory that was moved the directory of its state. It updates the
// identities of files and directories; it returns an error if one is not what its record says.
// It can be called again.
func AdoptMoved(ctx context.Context, c Config) (err error) {
	o, err := c.open()
	if err != nil {
		return errors.Trace(err)
	}
	defer o.close(&err)
	return errors.Trace(c.updateIdentity(ctx, o, provider.Moved))
}

// updateIdentity updates the identities in the records of this directory, and then the
// fingerprint in the state.
func (c Config) updateIdentity(ctx context.Context, o *openedState, relocation provider.Relocation) error {
	for _, directory := range c.Dir.StorageDirectories() {
		if err := directory.Reidentify(ctx, relocation); err != nil {
			return errors.Trace(err)
		}
	}
	now, err := c.Dir.Fingerprint()
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(o.SetFingerprint(now))
}

// AdoptCopy separates a copied directory from the original, which may still be used: the state
// and all its storage get new UUIDs, storage of the environment stays with the original, and
// mount points are those of new storage. It can be called again after an interruption.
func AdoptCopy(ctx context.Context, c Config) (err error) {
	o, err := c.open()
	if err != nil {
		return errors.Trace(err)
	}
	defer o.close(&err)
	if record := c.Dir.DriverRecord(); record != "" {
		// Both directories would have the same volume, and each could destroy it.
		return errors.Errorf("%s is of a volume of a CSI driver, which the original has: delete the directory of the driver below %s in this copy, and remove its storage here after the agent has started",
			record, c.Dir.Storage())
	}
	if _, err := o.BecomeCopy(); err != nil {
		return errors.Trace(err)
	}
	inv, err := c.inventory(false)
	if err != nil {
		return errors.Trace(err)
	}
	if err := inventory.Stamp(ctx, inv, o.State); err != nil {
		return errors.Trace(err)
	}
	// This must be last: until then the agent does not start here.
	return errors.Trace(c.updateIdentity(ctx, o, provider.Copied))
}
