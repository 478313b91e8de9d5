package backend

import (
	"path/filepath"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// situation reads the situation that a file is compared with.
func (b *Backend) situation() (converge.Situation, error) {
	situation := converge.Situation{
		Machine:   b.config.Machine,
		Providers: b.config.Registry,
		Manager:   b.config.Manager,
		// Only its validation is used, which needs no directory.
		Filesystems: provider.NewManagedFilesystemSource("", nil),
		CheckGrowth: b.checkGrowth,
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
	if situation.Storage, err = b.state.AllStorage(); err != nil {
		return situation, errors.Trace(err)
	}
	if !b.isLocal() {
		return situation, nil
	}
	if situation.Space, err = b.space(situation.Storage); err != nil {
		return situation, errors.Trace(err)
	}
	situation.Reserved = []string{string(b.dir), b.config.SocketPath}
	resolved, err := filepath.EvalSymlinks(string(b.dir))
	if err != nil {
		return situation, errors.Trace(err)
	}
	if resolved != string(b.dir) {
		situation.Reserved = append(situation.Reserved, resolved)
	}
	return situation, nil
}

// space returns the free space on the filesystem that loop volumes and rootfs directories are
// on, which may differ from that of the data directory. A loop volume takes its full size when
// it is made or grows, unless it is thin, so the size of volumes that are still to be made is
// subtracted. A tmpfs may be as large as the memory.
func (b *Backend) space(existing []state.Storage) (map[storage.ProviderType]converge.Space, error) {
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
		provider.LoopProviderType:   {FreeMiB: left, Reserved: true, Thin: provider.LoopIsThin},
		provider.RootfsProviderType: {FreeMiB: free},
		provider.TmpfsProviderType:  {FreeMiB: (memory.Totalram + memory.Totalswap) * uint64(memory.Unit) >> 20},
	}, nil
}
