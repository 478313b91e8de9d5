package backend

import (
	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// situation reads the situation that a request is compared with, which is about the storage of
// some names.
func (b *Backend) situation(names []string) (converge.Situation, error) {
	situation := converge.Situation{
		Machine:   b.config.Machine,
		Providers: b.config.Registry,
		Manager:   b.config.Manager,
		// Only its validation is used, which needs no directory.
		Filesystems:      provider.NewManagedFilesystemSource("", nil),
		CheckGrowth:      b.checkGrowth,
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
	if situation.Storage, _, err = b.state.StorageOf(names...); err != nil {
		return situation, errors.Trace(err)
	}
	if !b.isLocal() {
		return situation, nil
	}
	if situation.Space, err = b.space(); err != nil {
		return situation, errors.Trace(err)
	}
	situation.Reserved, err = b.executor.Reserved()
	return situation, errors.Trace(err)
}

// space returns the free space on the filesystem that loop volumes and rootfs directories are
// on, which may differ from that of the data directory. A loop volume takes its full size when
// it is made or grows, unless it is thin, so the size of volumes that are still to be made is
// subtracted. A tmpfs may be as large as the memory.
func (b *Backend) space() (map[storage.ProviderType]converge.Space, error) {
	dir := b.dir.Storage()
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return nil, errors.Annotatef(err, "measuring the free space in %s", dir)
	}
	var memory unix.Sysinfo_t
	if err := unix.Sysinfo(&memory); err != nil {
		return nil, errors.Annotate(err, "measuring the memory")
	}
	free := stat.Bavail * uint64(stat.Frsize) >> 20
	left := free
	unmade, err := b.state.UnmadeStorage()
	if err != nil {
		return nil, errors.Trace(err)
	}
	for _, s := range unmade {
		if s.Provider == provider.LoopProviderType && !isThin(s.Storage) {
			left -= min(left, s.MissingMiB)
		}
	}
	return map[storage.ProviderType]converge.Space{
		provider.LoopProviderType:   {FreeMiB: left, Reserved: true, Thin: provider.LoopIsThin},
		provider.RootfsProviderType: {FreeMiB: free},
		provider.TmpfsProviderType:  {FreeMiB: (memory.Totalram + memory.Totalswap) * uint64(memory.Unit) >> 20},
	}, nil
}
