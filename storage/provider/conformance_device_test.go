//go:build linux

package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
	"github.com/stowage-io/stowage/storage/provider/providertest"
)

// conformance returns the suite's configuration for a provider of this package, with a
// storage directory of its own.
func conformance(t *testing.T, p storage.ProviderType, open func(dir string) storage.Provider) (_ providertest.Config, dir string) {
	t.Helper()
	return conformanceIn(t, devicetest.Dir(t), p, open)
}

// conformanceIn is conformance with everything in the directory top.
func conformanceIn(t *testing.T, top string, p storage.ProviderType, open func(dir string) storage.Provider) (_ providertest.Config, dir string) {
	t.Helper()
	dir = filepath.Join(top, "storage")
	mounts := filepath.Join(top, "mnt")
	return providertest.Config{
		Provider:     open(dir),
		Restart:      func() storage.Provider { return open(dir) },
		SourceConfig: sourcetest.PoolOf(t, p, storage.Attrs{storage.ConfigStorageDir: dir}),
		InvalidAttrs: storage.Attrs{"no-such-attribute": "value", storage.ConfigStorageDir: "relative"},
		MountDir:     mounts,
		Leaks:        func() []string { return leaks(t, top, dir, mounts) },
	}, dir
}

// leaks lists the storage that is left: mounts, loop devices, files, and directories that
// were made for mounts.
func leaks(t *testing.T, top, dir, mounts string) []string {
	var all []string
	for _, m := range devicetest.Mounts(t, top) {
		all = append(all, fmt.Sprintf("%s mounted at %s", m.FSType, m.Mountpoint))
	}
	for _, name := range devicetest.Loops(t, top) {
		all = append(all, name+" attached")
	}
	all = append(all, sourcetest.Files(t, dir)...)
	if _, err := os.Lstat(mounts); err == nil {
		all = append(all, mounts)
	}
	return all
}

// takeFrom returns a function that removes a released object from a directory, by its ID.
func takeFrom(dir string) func(id string) error {
	return func(id string) error {
		path := filepath.Join(dir, id)
		if _, err := os.Stat(path); err != nil {
			return err
		}
		return os.RemoveAll(path)
	}
}

func TestLoopConforms(t *testing.T) {
	config, dir := conformance(t, LoopProviderType, func(string) storage.Provider {
		return NewLoopProvider(LoopOptions{})
	})
	config.Size = sourcetest.VolumeSize
	config.InvalidAttrs["fs"] = "fat"
	config.TakeReleased = takeFrom(filepath.Join(dir, "volumes"))
	providertest.Run(t, config)
}

func TestTmpfsConforms(t *testing.T) {
	config, _ := conformance(t, TmpfsProviderType, func(string) storage.Provider {
		return NewTmpfsProvider(TmpfsOptions{})
	})
	config.Size = sourcetest.FilesystemSize
	config.Volatile = true
	providertest.Run(t, config)
}

// Filesystems differ in what copies of directories need: sharing blocks, and extended attributes.
func TestRootfsConforms(t *testing.T) {
	for _, fs := range []string{"", "ext4", "xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			top := ""
			switch {
			case fs == "":
				top = devicetest.Dir(t)
			case testing.Short():
				t.Skip("the code is the same")
			default:
				devicetest.RequireProgram(t, "mkfs."+fs)
				top = devicetest.NewDisk(t, 512<<20, "mkfs."+fs, "-q").Dir
			}
			config, dir := conformanceIn(t, top, RootfsProviderType, func(string) storage.Provider {
				return NewRootfsProvider(RootfsOptions{})
			})
			config.Size = sourcetest.FilesystemSize
			config.TakeReleased = takeFrom(filepath.Join(dir, "filesystems"))
			config.ImportsByPath = true
			providertest.Run(t, config)
		})
	}
}

// managedProvider makes a provider of the managed source. It has no pools: settings come
// with each filesystem.
type managedProvider struct {
	object.Provider
	devices storage.BackingDevices
}

func (p managedProvider) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	return nil, errors.NotSupportedf("making volumes with the managed source")
}

func (p managedProvider) FilesystemSource(config *storage.Config) (storage.FilesystemSource, error) {
	if err := p.ValidateConfig(config); err != nil {
		return nil, errors.Trace(err)
	}
	dir, err := p.Dir(config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	// A released filesystem is imported by its UUID, which is not the ID that it had.
	return withoutImports{NewManagedFilesystemSource(dir, p.devices)}, nil
}

// withoutImports has the methods of a source and none of its optional capabilities.
type withoutImports struct{ storage.FilesystemSource }

func (p managedProvider) Supports(kind storage.StorageKind) bool {
	return kind == storage.StorageKindFilesystem
}

func (p managedProvider) Releasable() bool { return true }

func (p managedProvider) ValidateForK8s(map[string]any) error { return nil }

// knownDevices are the block devices that the machine knows.
type knownDevices struct {
	mu      sync.Mutex
	devices map[names.VolumeTag]storage.BlockDevice
	files   map[names.VolumeTag]string
}

func newKnownDevices() *knownDevices {
	return &knownDevices{devices: make(map[names.VolumeTag]storage.BlockDevice), files: make(map[names.VolumeTag]string)}
}

func (k *knownDevices) add(tag names.VolumeTag, device storage.BlockDevice, file string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.devices[tag], k.files[tag] = device, file
}

// BackingFile implements [storage.BackingFiles].
func (k *knownDevices) BackingFile(tag names.VolumeTag) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	file, ok := k.files[tag]
	return file, ok
}

// BlockDevice implements [storage.BackingDevices].
func (k *knownDevices) BlockDevice(tag names.VolumeTag) (storage.BlockDevice, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	device, ok := k.devices[tag]
	return device, ok
}

// Filesystem implements [storage.BackingDevices].
func (k *knownDevices) Filesystem(names.FilesystemTag) (storage.Filesystem, bool) {
	return storage.Filesystem{}, false
}

func TestManagedConforms(t *testing.T) {
	for fs, bytes := range sourcetest.ManagedSizes {
		size := uint64(bytes) >> 20
		t.Run(fs, func(t *testing.T) {
			if testing.Short() && fs != "ext4" {
				t.Skip("the code is the same")
			}
			devicetest.RequireProgram(t, "mkfs."+fs)
			known := newKnownDevices()
			config, _ := conformance(t, "managed", func(string) storage.Provider {
				return managedProvider{object.Provider{Type: "managed"}, known}
			})
			config.Size = size
			config.CompleteFilesystem = func(t testing.TB, p *storage.FilesystemParams) {
				loop := devicetest.NewLoop(t, int64(size)<<20)
				p.Volume = names.NewVolumeTag(p.Tag.Id())
				p.Attributes["fs"] = fs
				known.add(p.Volume, storage.BlockDevice{DeviceName: loop.Name(), Size: size}, loop.File)
			}
			providertest.Run(t, config)
		})
	}
}
