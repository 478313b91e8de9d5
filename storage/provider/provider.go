package provider

import (
	"context"
	"path/filepath"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/loop"
	"github.com/stowage-io/stowage/storage/provider/managed"
	"github.com/stowage-io/stowage/storage/provider/rootfs"
	"github.com/stowage-io/stowage/storage/provider/tmpfs"
)

// The types of the providers in this package.
const (
	LoopProviderType   = loop.ProviderType
	TmpfsProviderType  = tmpfs.ProviderType
	RootfsProviderType = rootfs.ProviderType
)

// The settings of the providers, and the logger of the rootfs provider.
type (
	LoopOptions   = loop.Options
	TmpfsOptions  = tmpfs.Options
	RootfsOptions = rootfs.Options
	Logger        = rootfs.Logger
)

// CommonStorageProviders returns the providers that every Linux machine has:
// loop, tmpfs and rootfs, with their default options.
func CommonStorageProviders() storage.ProviderRegistry {
	return storage.StaticProviderRegistry{
		Providers: map[storage.ProviderType]storage.Provider{
			LoopProviderType:   NewLoopProvider(LoopOptions{}),
			TmpfsProviderType:  NewTmpfsProvider(TmpfsOptions{}),
			RootfsProviderType: NewRootfsProvider(RootfsOptions{}),
		},
	}
}

// NewLoopProvider returns the provider of volumes that are files attached to loop
// devices: see [loop.NewProvider].
func NewLoopProvider(options LoopOptions) storage.Provider {
	return loop.NewProvider(options)
}

// NewTmpfsProvider returns the provider of filesystems in the machine's memory: see
// [tmpfs.NewProvider].
func NewTmpfsProvider(options TmpfsOptions) storage.Provider {
	return tmpfs.NewProvider(options)
}

// NewRootfsProvider returns the provider of filesystems that are directories of the
// machine's own filesystem: see [rootfs.NewProvider].
func NewRootfsProvider(options RootfsOptions) storage.Provider {
	return rootfs.NewProvider(options)
}

// NewManagedFilesystemSource returns the source of filesystems that are made on volumes: see
// [managed.NewSource]. It keeps its records under storageDir.
func NewManagedFilesystemSource(storageDir string, d storage.BackingDevices) storage.FilesystemSource {
	return managed.NewSource(storageDir, d)
}

// LeastFilesystemSize returns the size in MiB of the smallest volume on which a filesystem with the
// attributes can be made: see [managed.LeastSize].
func LeastFilesystemSize(attributes map[string]any) (uint64, error) {
	return managed.LeastSize(attributes)
}

// ShutDownEnvironment makes the kernel stop using the filesystems on volumes of the environment that
// an agent with this storage directory has mounted: see [managed.ShutDown].
func ShutDownEnvironment(ctx context.Context, storageDir string) ([]string, error) {
	return managed.ShutDown(ctx, filepath.Join(storageDir, string(ManagedSourceType)))
}
