package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// ours is our way, by the sources that everybody uses.
type ours struct {
	volumes     storage.VolumeSource
	filesystems storage.FilesystemSource
	devices     *devices
}

// openVolumes returns the sources of loop volumes and of filesystems on them, in
// a directory.
func openVolumes(dir string) (*ours, error) {
	config, err := storage.NewConfig("bench", provider.LoopProviderType, nil)
	if err != nil {
		return nil, errors.Trace(err)
	}
	volumes, err := provider.NewLoopProvider(provider.LoopOptions{StorageDir: filepath.Join(dir, "loop")}).VolumeSource(config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	known := &devices{byVolume: make(map[names.VolumeTag]storage.BlockDevice)}
	known.files, _ = volumes.(storage.FileVolumes)
	return &ours{
		volumes:     volumes,
		filesystems: provider.NewManagedFilesystemSource(filepath.Join(dir, "managed"), known),
		devices:     known,
	}, nil
}

// openFilesystems returns the source of filesystems of a provider.
func openFilesystems(p storage.Provider, kind storage.ProviderType) (*ours, error) {
	config, err := storage.NewConfig("bench", kind, nil)
	if err != nil {
		return nil, errors.Trace(err)
	}
	filesystems, err := p.FilesystemSource(config)
	return &ours{filesystems: filesystems}, errors.Trace(err)
}

func (o *ours) do(ctx context.Context, s step, things []*thing) error {
	c := envcontext.New(ctx)
	switch s {
	case allocate:
		results, err := o.volumes.CreateVolumes(c, each(things, (*thing).volumeParams))
		return firstOf(err, results, func(r storage.CreateVolumesResult) error { return r.Error })
	case attach:
		results, err := o.volumes.AttachVolumes(c, each(things, (*thing).volumeAttachment))
		for _, r := range results {
			o.devices.add(r.VolumeAttachment)
		}
		return firstOf(err, results, func(r storage.AttachVolumesResult) error { return r.Error })
	case format:
		results, err := o.filesystems.CreateFilesystems(c, each(things, (*thing).onVolume))
		return firstOf(err, results, func(r storage.CreateFilesystemsResult) error { return r.Error })
	case mount:
		results, err := o.filesystems.AttachFilesystems(c, each(things, (*thing).attachment))
		return firstOf(err, results, func(r storage.AttachFilesystemsResult) error { return r.Error })
	case unmount:
		failures, err := o.filesystems.DetachFilesystems(c, each(things, (*thing).attachment))
		return firstOf(err, failures, itself)
	case detach:
		failures, err := o.volumes.DetachVolumes(c, each(things, (*thing).volumeAttachment))
		return firstOf(err, failures, itself)
	case remove:
		failures, err := o.filesystems.DestroyFilesystems(c, each(things, (*thing).filesystemID))
		if err := firstOf(err, failures, itself); err != nil || o.volumes == nil {
			return errors.Trace(err)
		}
		failures, err = o.volumes.DestroyVolumes(c, each(things, (*thing).volumeID))
		return firstOf(err, failures, itself)
	}
	return errors.NotImplementedf("%s", s)
}

// create makes filesystems that stand on no volume.
func (o *ours) create(ctx context.Context, things []*thing) error {
	results, err := o.filesystems.CreateFilesystems(envcontext.New(ctx), each(things, (*thing).alone))
	return firstOf(err, results, func(r storage.CreateFilesystemsResult) error { return r.Error })
}

func each[T any](things []*thing, f func(*thing) T) []T {
	all := make([]T, len(things))
	for i, t := range things {
		all[i] = f(t)
	}
	return all
}

// firstOf returns the error of a bulk call, or else the first of its items.
func firstOf[T any](err error, results []T, errorOf func(T) error) error {
	if err != nil {
		return errors.Trace(err)
	}
	for _, r := range results {
		if err := errorOf(r); err != nil {
			return errors.Trace(err)
		}
	}
	return nil
}

func itself(err error) error { return err }

func (t *thing) volume() names.VolumeTag {
	return names.NewVolumeTag(fmt.Sprintf("0/%d", t.number))
}

func (t *thing) filesystem() names.FilesystemTag {
	return names.NewFilesystemTag(fmt.Sprintf("0/%d", t.number))
}

func (t *thing) volumeID() string { return t.volume().String() }

func (t *thing) filesystemID() string { return t.filesystem().String() }

func (t *thing) volumeParams() storage.VolumeParams {
	return storage.VolumeParams{Tag: t.volume(), Size: t.size, Provider: provider.LoopProviderType}
}

func (t *thing) volumeAttachment() storage.VolumeAttachmentParams {
	return storage.VolumeAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Provider: provider.LoopProviderType, Machine: names.NewMachineTag("0")},
		Volume:           t.volume(),
		VolumeId:         t.volumeID(),
	}
}

func (t *thing) onVolume() storage.FilesystemParams {
	return storage.FilesystemParams{Tag: t.filesystem(), Volume: t.volume(), Size: t.size}
}

func (t *thing) alone() storage.FilesystemParams {
	return storage.FilesystemParams{Tag: t.filesystem(), Size: t.size}
}

func (t *thing) attachment() storage.FilesystemAttachmentParams {
	return storage.FilesystemAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0")},
		Filesystem:       t.filesystem(),
		FilesystemId:     t.filesystemID(),
		Path:             t.mountPoint,
	}
}

// devices are the block devices of the volumes. It is what a worker would know
// from what it has attached.
type devices struct {
	files    storage.FileVolumes
	mu       sync.Mutex
	byVolume map[names.VolumeTag]storage.BlockDevice
}

func (d *devices) add(a *storage.VolumeAttachment) {
	if a == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byVolume[a.Volume] = storage.BlockDevice{DeviceName: a.DeviceName, BusAddress: a.BusAddress}
}

// BlockDevice implements [storage.BackingDevices].
func (d *devices) BlockDevice(tag names.VolumeTag) (storage.BlockDevice, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	device, ok := d.byVolume[tag]
	return device, ok
}

// Filesystem implements [storage.BackingDevices].
func (d *devices) Filesystem(names.FilesystemTag) (storage.Filesystem, bool) {
	return storage.Filesystem{}, false
}

// BackingFile implements [storage.BackingFiles].
func (d *devices) BackingFile(tag names.VolumeTag) (string, bool) {
	if d.files == nil {
		return "", false
	}
	return d.files.VolumeFile(tag.String()), true
}
