package agent

import (
	"path/filepath"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// world reads what a file is held against.
func (b *backend) world() (converge.World, error) {
	world := converge.World{
		Machine:   machine,
		Providers: b.config.Registry,
		Manager:   b.config.Manager,
		// Only its rules are asked for, for which it needs no directory.
		Filesystems: provider.NewManagedFilesystemSource("", nil),
		CheckGrowth: b.checkGrowth,
	}
	pools, err := b.pools().List()
	if err != nil {
		return world, errors.Trace(err)
	}
	for _, pool := range pools {
		world.Pools = append(world.Pools, pool.Config)
	}
	if world.Storage, err = b.state.AllStorage(); err != nil {
		return world, errors.Trace(err)
	}
	if world.Space, err = b.space(world.Storage); err != nil {
		return world, errors.Trace(err)
	}
	world.Reserved = []string{b.config.DataDir, b.config.SocketPath}
	resolved, err := filepath.EvalSymlinks(b.config.DataDir)
	if err != nil {
		return world, errors.Trace(err)
	}
	if resolved != b.config.DataDir {
		world.Reserved = append(world.Reserved, resolved)
	}
	return world, nil
}

// space returns the free space on the filesystem that loop volumes and rootfs directories are
// on, which may be another than that of the data directory. A loop volume takes all its size when
// it is made or grows, unless it is thin, so what is still to be made is taken already. A
// tmpfs may be as large as the memory.
func (b *backend) space(existing []state.Storage) (map[storage.ProviderType]converge.Space, error) {
	dir := b.dir.Storage()
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return nil, errors.Annotatef(err, "measuring the room in %s", dir)
	}
	var memory unix.Sysinfo_t
	if err := unix.Sysinfo(&memory); err != nil {
		return nil, errors.Annotate(err, "measuring the memory")
	}
	free := stat.Bavail * uint64(stat.Frsize) >> 20
	left := free
	for _, s := range existing {
		if s.Provider != provider.LoopProviderType || s.Volume == nil || isThin(s) {
			continue
		}
		made := s.SizeMiB
		if s.Volume.ProviderID == "" {
			made = 0
		}
		left -= min(left, s.RequestedMiB-min(made, s.RequestedMiB))
	}
	return map[storage.ProviderType]converge.Space{
		provider.LoopProviderType:   {FreeMiB: left, Taken: true, Thin: provider.LoopIsThin},
		provider.RootfsProviderType: {FreeMiB: free},
		provider.TmpfsProviderType:  {FreeMiB: (memory.Totalram + memory.Totalswap) * uint64(memory.Unit) >> 20},
	}, nil
}
