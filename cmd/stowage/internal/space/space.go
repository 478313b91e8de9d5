// Package space measures the space that this machine has for storage, by provider.
package space

import (
	"path/filepath"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// Host returns the size of the filesystem that a directory is on, and how much of it is free for
// files, in bytes.
func Host(dir string) (size, free uint64, err error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, 0, errors.Annotatef(err, "measuring the space in %s", dir)
	}
	return stat.Blocks * uint64(stat.Frsize), stat.Bavail * uint64(stat.Frsize), nil
}

// Unallocated returns how many bytes a file may take that it does not have yet; 0 for a missing file, which
// the storage provisioner reports.
func Unallocated(path string) uint64 {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0
	}
	size, allocated := uint64(stat.Size), uint64(stat.Blocks)*512
	return size - min(size, allocated)
}

// Promised returns how many bytes the loop volumes in dir may take that they do not have yet. Those that
// are not thin have all.
func Promised(dir string) (promised uint64, err error) {
	files, err := filepath.Glob(provider.LoopVolumePath(filepath.Join(dir, string(provider.LoopProviderType)), "*"))
	for _, file := range files {
		promised += Unallocated(file)
	}
	return promised, errors.Annotatef(err, "looking for volumes in %s", dir)
}

// Measure returns the space for the storage of providers that keep it on the machine. Loop volumes
// and rootfs directories are in dir. A tmpfs may be as large as the memory and the swap space.
func Measure(dir string) (map[storage.ProviderType]machine.Space, error) {
	size, free, err := Host(dir)
	if err != nil {
		return nil, errors.Trace(err)
	}
	var memory unix.Sysinfo_t
	if err := unix.Sysinfo(&memory); err != nil {
		return nil, errors.Annotate(err, "measuring the memory")
	}
	host := machine.Space{SizeMiB: size >> 20, FreeMiB: free >> 20}
	all := (memory.Totalram + memory.Totalswap) * uint64(memory.Unit) >> 20
	return map[storage.ProviderType]machine.Space{
		provider.LoopProviderType:   host,
		provider.RootfsProviderType: host,
		provider.TmpfsProviderType:  {SizeMiB: all, FreeMiB: all},
	}, nil
}
