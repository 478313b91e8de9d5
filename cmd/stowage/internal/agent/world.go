package agent

import (
	"path/filepath"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// world reads what a file is held against.
func (b *backend) world() (converge.World, error) {
	world := converge.World{Machine: machine, Providers: b.config.Registry}
	pools, err := b.state.Pools()
	if err != nil {
		return world, errors.Trace(err)
	}
	for _, pool := range pools {
		config, err := storage.NewConfig(pool.Name, pool.Provider, pool.Attributes)
		if err != nil {
			return world, errors.Annotatef(err, "pool %s", pool.Name)
		}
		world.Pools = append(world.Pools, config)
	}
	all, err := b.state.AllStorage()
	if err != nil {
		return world, errors.Trace(err)
	}
	if world.Storage, err = b.requested(all); err != nil {
		return world, errors.Trace(err)
	}
	if world.Space, err = b.space(world.Storage); err != nil {
		return world, errors.Trace(err)
	}
	world.Reserved = []string{b.config.DataDir}
	resolved, err := filepath.EvalSymlinks(b.config.DataDir)
	if err != nil {
		return world, errors.Trace(err)
	}
	if resolved != b.config.DataDir {
		world.Reserved = append(world.Reserved, resolved)
	}
	return world, nil
}

// requested adds to storage the sizes that were asked for. What has gone since it
// was read has none.
func (b *backend) requested(all []state.Storage) ([]converge.Existing, error) {
	var (
		volumes     []names.VolumeTag
		filesystems []names.FilesystemTag
		sizes       = map[names.Tag]uint64{}
	)
	for _, s := range all {
		if s.Volume != nil {
			volumes = append(volumes, s.Volume.Tag.(names.VolumeTag))
		} else if s.Filesystem != nil {
			filesystems = append(filesystems, s.Filesystem.Tag.(names.FilesystemTag))
		}
	}
	accessor := b.state.ForMachine(machine)
	volumeParams, err := accessor.VolumeParams(volumes)
	if err != nil {
		return nil, errors.Trace(err)
	}
	for i, p := range volumeParams {
		sizes[volumes[i]] = p.Result.Size
	}
	filesystemParams, err := accessor.FilesystemParams(filesystems)
	if err != nil {
		return nil, errors.Trace(err)
	}
	for i, p := range filesystemParams {
		sizes[filesystems[i]] = p.Result.Size
	}
	existing := make([]converge.Existing, len(all))
	for i, s := range all {
		existing[i].Storage = s
		if s.Volume != nil {
			existing[i].RequestedMiB = sizes[s.Volume.Tag]
		} else if s.Filesystem != nil {
			existing[i].RequestedMiB = sizes[s.Filesystem.Tag]
		}
	}
	return existing, nil
}

// space returns the room on the filesystem of the data directory, which is where
// loop volumes and rootfs directories are. A loop volume takes all its size when
// it is made, so what is still to be made is taken already.
func (b *backend) space(existing []converge.Existing) (map[storage.ProviderType]converge.Space, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(b.config.DataDir, &stat); err != nil {
		return nil, errors.Annotatef(err, "measuring the room in %s", b.config.DataDir)
	}
	free := stat.Bavail * uint64(stat.Frsize) >> 20
	left := free
	for _, s := range existing {
		if s.Provider == provider.LoopProviderType && s.Volume != nil && s.Volume.ProviderID == "" {
			left -= min(left, s.RequestedMiB)
		}
	}
	return map[storage.ProviderType]converge.Space{
		provider.LoopProviderType:   {FreeMiB: left, Taken: true},
		provider.RootfsProviderType: {FreeMiB: free},
	}, nil
}
