// Package executor carries out tasks on the machine where it runs: the parts of users' requests that
// need the files and the providers of that machine. The agent with a state of its own calls it directly,
// the agent of a server when the server asks for it, and a server for the storage of the environment.
//
// It opens its own sources, beside those of the workers: providers lock what they share. Its methods may
// be called concurrently.
package executor

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/inventory"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/internal/patience"
	"github.com/stowage-io/stowage/storage"
)

// Config configures an [Executor]. Registry, Dir and Clock are required.
type Config struct {
	Registry storage.ProviderRegistry
	// Dir is the data directory.
	Dir   datadir.Dir
	Clock clock.Clock
	// Environ says that the storage of the environment is this process's, too.
	Environ bool
	// Sockets are paths that must not be mounted over, besides the data directory.
	Sockets []string
	// Owners, if set, returns the owner of each object that the state has with the entity and the UUID
	// that the object's tags name, and an empty one otherwise. A scan leaves those objects out.
	Owners func([]inventory.Object) ([]storage.Owner, error)
	// Progress, if set, returns what workers of this process report of unfinished operations on volumes
	// and filesystems, and on their attachments, by entity.
	Progress func([]names.Tag) map[string]any
}

// Executor carries out tasks.
type Executor struct {
	config Config
	// looking bounds the wait for devices and filesystems that may not answer.
	looking *patience.Asker
	// flushing bounds the wait for disks.
	flushing *patience.Asker
}

// New returns an executor.
func New(config Config) *Executor {
	return &Executor{config, patience.New(lookLimit), patience.New(flushLimit)}
}

// Do carries out a task. The result is in the field of its kind.
func (x *Executor) Do(ctx context.Context, request task.Request) (result task.Result, err error) {
	if err := request.Validate(); err != nil {
		return task.Result{}, errors.Trace(err)
	}
	switch {
	case request.Inspect != nil:
		result.Inspect, err = x.inspect(*request.Inspect)
	case request.Import != nil:
		result.Import, err = x.takeOver(ctx, *request.Import)
	case request.Scan != nil:
		result.Scan, err = x.scan(ctx, *request.Scan)
	case request.Tag != nil:
		result.Tag, err = &task.Tagged{}, x.tag(ctx, *request.Tag)
	case request.MountOptions != nil:
		result.MountOptions, err = &task.MountOptionsSet{}, x.setMountOptions(ctx, *request.MountOptions)
	case request.Delete != nil:
		result.Delete, err = x.delete(ctx, *request.Delete)
	case request.Snapshot != nil:
		result.Snapshot, err = x.snapshot(ctx, *request.Snapshot)
	case request.Flush != nil:
		result.Flush, err = &task.Flushed{}, x.flush(*request.Flush)
	case request.Look != nil:
		result.Look = x.look(ctx, *request.Look)
	case request.Measure != nil:
		result.Measure = x.measure(ctx, *request.Measure)
	}
	return result, errors.Trace(err)
}

// Reserved returns the paths that must not be mounted on, in or above.
func (x *Executor) Reserved() ([]string, error) {
	dir := string(x.config.Dir)
	reserved := append([]string{dir}, x.config.Sockets...)
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if resolved != dir {
		reserved = append(reserved, resolved)
	}
	return reserved, nil
}

// SourceConfig returns the configuration with which the storage provisioner opens a provider's sources.
func SourceConfig(dir datadir.Dir, p storage.ProviderType) (*storage.Config, error) {
	config, err := storage.NewConfig(string(p), p, storage.Attrs{
		storage.ConfigStorageDir: filepath.Join(dir.Storage(), string(p)),
	})
	return config, errors.Trace(err)
}

func (x *Executor) inventory() (*inventory.Inventory, error) {
	inv, err := inventory.Open(inventory.Config{
		Registry: x.config.Registry, StorageDir: x.config.Dir.Storage(), Environ: x.config.Environ, Snapshots: true,
	})
	return inv, errors.Trace(err)
}

// find returns the object with the reference and the owner.
func find(objects []inventory.Object, want task.Owned) (inventory.Object, error) {
	for _, o := range objects {
		if o.Task().Ref != want.Ref {
			continue
		}
		if o.Owner() != (storage.Owner{ModelUUID: want.ModelUUID, EntityUUID: want.EntityUUID}) {
			return o, errors.NewNotValid(nil, fmt.Sprintf("%s %s has another owner now", o.Kind, o.ID))
		}
		return o, nil
	}
	return inventory.Object{}, errors.NewNotFound(nil, fmt.Sprintf("%s %s of provider %s does not exist any more", want.Kind, want.ID, want.Provider))
}
