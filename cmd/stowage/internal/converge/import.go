package converge

import (
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// Takeover is the storage that an import adds.
type Takeover struct {
	State state.StorageParams
	Pool  *storage.Config
	// OnVolume is false for a filesystem of a provider that makes filesystems
	// itself.
	OnVolume bool
	// ByID says that the source is an ID of the system that has the storage, and no path. Environ says that
	// no machine in particular has it.
	ByID, Environ bool

	planner *planner
}

// Import returns the storage that an import adds, as far as it is known before the object has
// been read. Errors satisfy errors.IsNotValid, errors.IsNotFound or errors.IsAlreadyExists.
func Import(situation Situation, args user.ImportArgs) (*Takeover, error) {
	p := newPlanner(situation)
	if err := spec.CheckName(args.Name); err != nil {
		return nil, errors.NewNotValid(err, "")
	}
	if p.prefixes[args.Name] {
		return nil, errors.NewAlreadyExists(nil, "there is storage of that name: choose another name")
	}
	pool, ok := p.pools[args.Pool]
	if !ok {
		return nil, errors.NewNotFound(nil, fmt.Sprintf("pool %q is not known: the pools are %s", args.Pool, p.poolNames()))
	}
	provider, err := situation.Providers.StorageProvider(pool.Provider())
	if err != nil {
		return nil, errors.Annotatef(err, "pool %s", pool.Name())
	}
	if err := p.checkManager(pool, provider); err != nil {
		return nil, errors.NewNotValid(err, "")
	}
	t := &Takeover{
		State: state.StorageParams{
			Name: args.Name, Kind: storage.StorageKindFilesystem, Pool: pool.Name(), MountPoint: args.Mount, Machine: situation.Machine,
		},
		Pool:     pool,
		OnVolume: args.Block || !provider.Supports(storage.StorageKindFilesystem),
		ByID:     storage.ImportsByID(provider),
		Environ:  provider.Scope() == storage.ScopeEnviron,
		planner:  p,
	}
	switch {
	case t.ByID && t.OnVolume && !args.Block && !storage.MountsVolumes(provider, pool.ForProvider().Attrs()):
		return nil, errors.NewNotValid(nil, fmt.Sprintf("provider %s makes no filesystems: import a block device, with --block", pool.Provider()))
	case t.OnVolume && !provider.Supports(storage.StorageKindBlock):
		return nil, errors.NewNotValid(nil, fmt.Sprintf("provider %s has no block devices: leave out --block, or choose another pool", pool.Provider()))
	case args.Block && args.Mount != "":
		return nil, errors.NewNotValid(nil, "a block device is not mounted: leave out --mount or --block")
	case args.Block:
		t.State.Kind = storage.StorageKindBlock
	case args.Mount != "":
		if err := spec.CheckMountPoint(args.Mount); err != nil {
			return nil, errors.NewNotValid(err, "")
		}
		fail := func(err error) error { return errors.NewNotValid(err, "") }
		if err := p.addMount(situation.Machine, args.Mount, args.Name, fail); err != nil {
			return nil, err
		}
		if err := p.checkMounts(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Adopt records which filesystem is on the volume. The error satisfies errors.IsNotValid
// if the agent cannot manage that filesystem.
func (t *Takeover) Adopt(filesystem, uuid string) error {
	t.State.Attributes = map[string]any{storage.FilesystemTypeAttribute: filesystem, storage.FilesystemUUIDAttribute: uuid}
	params := storage.FilesystemParams{Attributes: t.Pool.ForProvider().Attrs()}
	if params.Attributes == nil {
		params.Attributes = map[string]any{}
	}
	for name, value := range t.State.Attributes {
		params.Attributes[name] = value
	}
	err := t.planner.checkFilesystem(params)
	return errors.Annotatef(err, "the %s on it", filesystem)
}

// Change describes the import of an object of size MiB.
func (t *Takeover) Change(size uint64) user.Change {
	detail := fmt.Sprintf("%s, pool %s, %s", t.State.Kind, t.Pool.Name(), table.Size(size))
	if filesystem, ok := t.State.Attributes[storage.FilesystemTypeAttribute].(string); ok {
		detail += ", " + filesystem
	}
	if t.State.MountPoint != "" {
		detail += ", on " + t.State.MountPoint
	}
	return user.Change{Action: user.ActionImport, Item: "storage", Name: t.State.Name, Detail: detail}
}
