package backend

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/cmd/stowage/internal/space"
	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// situation reads the situation that a request is compared with, which is about the storage of
// some names.
func (b *Backend) situation(wanted []string) (converge.Situation, error) {
	situation := converge.Situation{
		Machine:   b.config.Machine,
		Providers: b.config.Registry,
		Manager:   b.config.Manager,
		// Only its validation is used, which needs no directory.
		Filesystems:      provider.NewManagedFilesystemSource("", nil),
		CheckGrowth:      b.checkGrowth,
		Snapshot:         b.state.Snapshot,
		ListAll:          b.state.AllStorage,
		TakenMountPoints: b.state.TakenMountPoints,
	}
	pools, err := b.pools().List()
	if err != nil {
		return situation, errors.Trace(err)
	}
	for _, pool := range pools {
		situation.Pools = append(situation.Pools, pool.Config)
	}
	if situation.Machines, err = b.state.Machines(); err != nil {
		return situation, errors.Trace(err)
	}
	if situation.Storage, _, err = b.state.StorageOf(wanted...); err != nil {
		return situation, errors.Trace(err)
	}
	if situation.Space, err = b.space(situation.Machines); err != nil || !b.isLocal() {
		return situation, errors.Trace(err)
	}
	situation.Reserved, err = b.executor.Reserved()
	return situation, errors.Trace(err)
}

// space returns the free space of the machines for the storage of their providers, as far as it is
// known. A loop volume takes its full size when it is made or grows, unless it is thin, so the size of
// volumes that are still to be made is subtracted. A server knows what agents last reported.
func (b *Backend) space(machines []state.Machine) (map[names.MachineTag]map[storage.ProviderType]converge.Space, error) {
	measured := make(map[names.MachineTag]map[storage.ProviderType]coremachine.Space, len(machines))
	for _, m := range machines {
		measured[m.Tag] = m.Space
	}
	if b.isLocal() {
		own, err := space.Measure(b.dir.Storage())
		if err != nil {
			return nil, errors.Trace(err)
		}
		measured[b.config.Machine] = own
	}
	unmade, err := b.state.UnmadeStorage()
	if err != nil {
		return nil, errors.Trace(err)
	}
	missing := map[names.MachineTag]uint64{}
	for _, s := range unmade {
		machine, bound := converge.BoundMachine(&s.Storage)
		if bound && s.Provider == provider.LoopProviderType && !isThin(s.Storage) {
			missing[machine] += s.MissingMiB
		}
	}
	free := make(map[names.MachineTag]map[storage.ProviderType]converge.Space, len(measured))
	for machine, spaces := range measured {
		free[machine] = make(map[storage.ProviderType]converge.Space, len(spaces))
		for kind, space := range spaces {
			left := converge.Space{FreeMiB: space.FreeMiB}
			if kind == provider.LoopProviderType {
				left.Reserved, left.Thin = true, provider.LoopIsThin
				left.FreeMiB -= min(left.FreeMiB, missing[machine])
			}
			free[machine][kind] = left
		}
	}
	return free, nil
}
