package executor

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// inspect reads the file that is to be imported. Without a path or a device it reads none.
func (x *Executor) inspect(args task.Inspect) (*task.Inspected, error) {
	reserved, err := x.Reserved()
	if err != nil {
		return nil, errors.Trace(err)
	}
	found := &task.Inspected{Path: args.Path, Reserved: reserved}
	if args.Device != "" {
		if found.Path, err = provider.LoopFile(args.Device); err != nil {
			return nil, errors.Trace(err)
		}
	}
	if found.Path == "" {
		return found, nil
	}
	found.Contents, err = readContents(found.Path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // an earlier import may have moved it
	}
	return found, errors.Trace(err)
}

func readContents(path string) (*task.Contents, error) {
	found, err := provider.ReadContents(path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return &task.Contents{Size: found.Size, Filesystem: found.Filesystem, UUID: found.UUID}, nil
}

// takeOver makes a provider take over a file or directory. If an earlier call has done so for the same
// owner, the provider finds it.
func (x *Executor) takeOver(ctx context.Context, args task.Import) (*task.Imported, error) {
	p, err := x.config.Registry.StorageProvider(storage.ProviderType(args.Provider))
	if err != nil {
		return nil, errors.Trace(err)
	}
	config, err := SourceConfig(x.config.Dir, storage.ProviderType(args.Provider))
	if err != nil {
		return nil, errors.Trace(err)
	}
	callCtx := envcontext.New(ctx)
	if !args.Volume {
		source, err := p.FilesystemSource(config)
		if err != nil {
			return nil, errors.Trace(err)
		}
		importer, ok := source.(storage.FilesystemImporter)
		if !ok {
			return nil, cannotImport(args.Provider)
		}
		info, err := importFilesystem(callCtx, importer, storage.FilesystemImportParams{
			FilesystemId: cmp.Or(args.ID, args.Path), ResourceTags: args.ResourceTags, Attributes: args.Attributes,
		})
		return &task.Imported{ID: info.FilesystemId, Size: info.Size}, errors.Trace(err)
	}
	source, err := p.VolumeSource(config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	importer, ok := source.(storage.VolumeImporter)
	if !ok {
		return nil, cannotImport(args.Provider)
	}
	if args.Device != "" {
		if err := provider.DetachLoopFile(ctx, args.Device, args.Path); err != nil {
			return nil, errors.Trace(err)
		}
	}
	info, err := importVolume(callCtx, importer, storage.VolumeImportParams{
		VolumeId: cmp.Or(args.ID, args.Path), ResourceTags: args.ResourceTags, Attributes: args.Attributes, Copy: args.Copy,
	})
	if err != nil {
		return nil, errors.Trace(err)
	}
	imported := &task.Imported{ID: info.VolumeId, Size: info.Size, HardwareID: info.HardwareId, WWN: info.WWN, Persistent: info.Persistent}
	if contexts, ok := source.(storage.ContextSource); ok {
		imported.Context = contexts.VolumeContext(info.VolumeId)
	}
	if args.Reread {
		path := provider.LoopVolumePath(config.Attrs()[storage.ConfigStorageDir].(string), info.VolumeId)
		if imported.Contents, err = readContents(path); err != nil {
			// The volume has been taken over, so the error must not say that this was refused.
			return nil, errors.New(err.Error())
		}
	}
	return imported, nil
}

// importVolume makes a source take over a volume. It passes all parameters if the source
// accepts them.
func importVolume(ctx envcontext.ProviderCallContext, importer storage.VolumeImporter, p storage.VolumeImportParams) (storage.VolumeInfo, error) {
	if withParams, ok := importer.(storage.VolumeParamsImporter); ok {
		return withParams.ImportVolumeWithParams(ctx, p)
	}
	if p.Copy {
		return storage.VolumeInfo{}, errors.NewNotSupported(nil, "the pool's provider cannot import a copy of a volume: leave out --copy, or choose another pool")
	}
	return importer.ImportVolume(ctx, p.VolumeId, p.ResourceTags)
}

// importFilesystem makes a source take over a filesystem. It passes all parameters if the source
// accepts them.
func importFilesystem(ctx envcontext.ProviderCallContext, importer storage.FilesystemImporter, p storage.FilesystemImportParams) (storage.FilesystemInfo, error) {
	if withParams, ok := importer.(storage.FilesystemParamsImporter); ok {
		return withParams.ImportFilesystemWithParams(ctx, p)
	}
	return importer.ImportFilesystem(ctx, p.FilesystemId, p.ResourceTags)
}

func cannotImport(provider string) error {
	return errors.NewNotSupported(nil, fmt.Sprintf("provider %s cannot import existing storage: choose another pool", provider))
}
