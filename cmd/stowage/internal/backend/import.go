package backend

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// Import implements userapi.Backend. It makes all checks first. Then the provider takes over
// the object, and the state records it. If the agent dies in between, repeating the import
// finds the object taken over already.
func (b *Backend) Import(ctx context.Context, args user.ImportArgs) (user.ChangesResult, error) {
	if !b.isLocal() {
		return user.ChangesResult{}, errors.NewNotSupported(nil, "a server cannot import storage yet, since it is on the machines: add new storage, and copy the data to it")
	}
	end, err := b.beginChange(ctx)
	if err != nil {
		return user.ChangesResult{}, errors.Trace(err)
	}
	defer end()
	change, record, err := b.takeOver(ctx, args)
	if err != nil {
		return user.ChangesResult{}, errors.Annotatef(err, "importing storage %q", args.Name)
	}
	return user.ChangesResult{Changes: []user.Change{change}}, errors.Trace(record())
}

// takeOver makes the provider take over the object. record then records it in the state.
func (b *Backend) takeOver(ctx context.Context, args user.ImportArgs) (change user.Change, record func() error, err error) {
	situation, err := b.situation([]string{args.Name})
	if err != nil {
		return change, nil, errors.Trace(err)
	}
	t, err := converge.Import(situation, args)
	if err != nil {
		return change, nil, errors.Trace(err)
	}
	config, err := b.sourceConfig(t.Pool.Provider())
	if err != nil {
		return change, nil, errors.Trace(err)
	}
	p, err := b.config.Registry.StorageProvider(t.Pool.Provider())
	if err != nil {
		return change, nil, errors.Trace(err)
	}
	callCtx := envcontext.New(ctx)
	if !t.OnVolume {
		if args.Copy {
			return change, nil, errors.NewNotSupported(nil, fmt.Sprintf("provider %s cannot import a copy of a filesystem: leave out --copy", t.Pool.Provider()))
		}
		if err := checkPath(args.Source); err != nil {
			return change, nil, errors.Trace(err)
		}
		source, err := p.FilesystemSource(config)
		if err != nil {
			return change, nil, errors.Trace(err)
		}
		importer, ok := source.(storage.FilesystemImporter)
		if !ok {
			return change, nil, cannotImport(t.Pool)
		}
		t.State.Source = args.Source
		info, err := importPrepared(b, t, func(tags map[string]string) (storage.FilesystemInfo, error) {
			return importer.ImportFilesystem(callCtx, args.Source, tags)
		})
		if err != nil {
			return change, nil, errors.Trace(err)
		}
		return t.Change(info.Size), func() error { return b.state.ImportFilesystem(t.State, info) }, nil
	}

	source, err := p.VolumeSource(config)
	if err != nil {
		return change, nil, errors.Trace(err)
	}
	importer, ok := source.(storage.VolumeImporter)
	if !ok {
		return change, nil, cannotImport(t.Pool)
	}
	file, err := b.findFile(args.Source)
	if err != nil {
		return change, nil, errors.Trace(err)
	}
	found, err := provider.ReadContents(file.path)
	exists := err == nil
	switch {
	case exists:
		if err := adopt(t, args, file, found); err != nil {
			return change, nil, errors.Trace(err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return change, nil, errors.Trace(err)
	}
	t.State.Source = file.path
	info, err := importPrepared(b, t, func(tags map[string]string) (storage.VolumeInfo, error) {
		if file.device != "" {
			if err := provider.DetachLoopFile(ctx, file.device, file.path); err != nil {
				return storage.VolumeInfo{}, errors.Trace(err)
			}
		}
		return importVolume(callCtx, importer, storage.VolumeImportParams{
			VolumeId: file.path, ResourceTags: tags, Attributes: t.Pool.Attrs(), Copy: args.Copy,
		})
	})
	if err != nil {
		return change, nil, errors.Trace(err)
	}
	if !exists {
		// An earlier call has moved the file.
		file.path = provider.LoopVolumePath(config.Attrs()[storage.ConfigStorageDir].(string), info.VolumeId)
		if found, err = provider.ReadContents(file.path); err != nil {
			return change, nil, errors.Trace(err)
		}
		if err := adopt(t, args, file, found); err != nil {
			return change, nil, errors.Trace(err)
		}
	}
	return t.Change(info.Size), func() error { return b.state.ImportVolume(t.State, info) }, nil
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

// importPrepared notes an import in the state, and then makes the provider take the object
// over. If the provider refuses, it cancels the note; after another error, importing again
// finds the object.
func importPrepared[I any](b *Backend, t *converge.Takeover, doImport func(tags map[string]string) (I, error)) (I, error) {
	tags, err := b.state.PrepareImport(t.State)
	if err != nil {
		var none I
		return none, errors.Trace(err)
	}
	info, err := doImport(tags)
	if errors.Is(err, errors.NotValid) || errors.Is(err, errors.NotFound) || errors.Is(err, errors.NotSupported) {
		if cerr := b.state.CancelImport(t.State.Pool, t.State.Source); cerr != nil {
			return info, errors.Annotatef(err, "(%v)", cerr)
		}
	}
	return info, errors.Trace(err)
}

// adopt completes a takeover with the filesystem that was found in its file, unless a block
// device is wanted, whatever it contains.
func adopt(t *converge.Takeover, args user.ImportArgs, file backingFile, found provider.Contents) error {
	switch {
	case found.Size < 1<<20:
		return errors.NewNotValid(nil, fmt.Sprintf("%s has %d bytes: storage has at least 1 MiB", file.path, found.Size))
	case file.uuid != "" && found.UUID != file.uuid:
		return errors.NewNotValid(nil, fmt.Sprintf("%s has a filesystem with UUID %q, not %q", file.path, found.UUID, file.uuid))
	case args.Block:
		return nil
	case found.Filesystem == "":
		return errors.NewNotValid(nil, fmt.Sprintf(
			"%s has no known filesystem at its start: import it as a block device with --block", file.path))
	}
	if err := t.Adopt(found.Filesystem, found.UUID); err != nil {
		return errors.NewNotValid(err, fmt.Sprintf("%s can be imported only as a block device, with --block", file.path))
	}
	return nil
}

func cannotImport(pool *storage.Config) error {
	return errors.NewNotSupported(nil, fmt.Sprintf("pool %s has provider %s, which cannot import existing storage: choose another pool",
		pool.Name(), pool.Provider()))
}

// backingFile is the location of a volume to take over. uuid and device are set if the user
// gave the UUID of the filesystem on a device.
type backingFile struct {
	path, uuid, device string
}

// findFile returns the file that source names, by path or by UUID=….
func (b *Backend) findFile(source string) (backingFile, error) {
	id, ok := strings.CutPrefix(source, "UUID=")
	if !ok {
		return backingFile{path: source}, checkPath(source)
	}
	devices, err := b.state.MachineBlockDevices(b.config.Machine)
	if err != nil {
		return backingFile{}, errors.Trace(err)
	}
	var found []string
	for _, d := range devices {
		if id != "" && strings.EqualFold(d.UUID, id) {
			found = append(found, d.DeviceName)
			id = d.UUID
		}
	}
	switch len(found) {
	case 0:
		return backingFile{}, errors.NewNotFound(nil, fmt.Sprintf("no block device has a filesystem with UUID %q: name the path of its file", id))
	case 1:
		path, err := provider.LoopFile(found[0])
		return backingFile{path: path, uuid: id, device: found[0]}, errors.Trace(err)
	}
	return backingFile{}, errors.NewNotValid(nil, fmt.Sprintf("UUID %q is on several block devices, %s: name the path of the file that is meant",
		id, strings.Join(found, ", ")))
}

func checkPath(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return errors.NewNotValid(nil, fmt.Sprintf("%q is not an absolute path in its shortest form", path))
	}
	return nil
}

// sourceConfig returns the configuration with which the storage provisioner opens a provider's
// sources.
func (b *Backend) sourceConfig(p storage.ProviderType) (*storage.Config, error) {
	return storage.NewConfig(string(p), p, storage.Attrs{
		storage.ConfigStorageDir: filepath.Join(b.dir.Storage(), string(p)),
	})
}
