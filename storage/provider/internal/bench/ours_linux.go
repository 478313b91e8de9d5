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

// ours does the steps with the providers' sources, as every user of them does.
type ours struct {
	volumes     storage.VolumeSource
	filesystems storage.FilesystemSource
	devices     *devices
}

// openVolumes opens the sources of loop volumes and of filesystems on them in a directory.
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

// openFilesystems opens a provider's filesystem source.
func openFilesystems(p storage.Provider, kind storage.ProviderType) (*ours, error) {
	config, err := storage.NewConfig("bench", kind, nil)
	if err != nil {
		return nil, errors.Trace(err)
	}
	filesystems, err := p.FilesystemSource(config)
	return &ours{filesystems: filesystems}, errors.Trace(err)
}

func (o *ours) do(ctx context.Context, s step, items []*item) error {
	c := envcontext.New(ctx)
	switch s {
	case allocate:
		results, err := o.volumes.CreateVolumes(c, each(items, (*item).volumeParams))
		return firstOf(err, results, func(r storage.CreateVolumesResult) error { return r.Error })
	case attach:
		results, err := o.volumes.AttachVolumes(c, each(items, (*item).volumeAttachment))
		for _, r := range results {
			o.devices.add(r.VolumeAttachment)
		}
		return firstOf(err, results, func(r storage.AttachVolumesResult) error { return r.Error })
	case format:
		results, err := o.filesystems.CreateFilesystems(c, each(items, (*item).onVolume))
		return firstOf(err, results, func(r storage.CreateFilesystemsResult) error { return r.Error })
	case mount:
		results, err := o.filesystems.AttachFilesystems(c, each(items, (*item).attachment))
		return firstOf(err, results, func(r storage.AttachFilesystemsResult) error { return r.Error })
	case unmount:
		failures, err := o.filesystems.DetachFilesystems(c, each(items, (*item).attachment))
		return firstOf(err, failures, itself)
	case detach:
		failures, err := o.volumes.DetachVolumes(c, each(items, (*item).volumeAttachment))
		return firstOf(err, failures, itself)
	case remove:
		failures, err := o.filesystems.DestroyFilesystems(c, each(items, (*item).filesystemID))
		if err := firstOf(err, failures, itself); err != nil || o.volumes == nil {
			return errors.Trace(err)
		}
		failures, err = o.volumes.DestroyVolumes(c, each(items, (*item).volumeID))
		return firstOf(err, failures, itself)
	}
	return errors.NotImplementedf("%s", s)
}

// create makes filesystems that have no backing volume.
func (o *ours) create(ctx context.Context, items []*item) error {
	results, err := o.filesystems.CreateFilesystems(envcontext.New(ctx), each(items, (*item).alone))
	return firstOf(err, results, func(r storage.CreateFilesystemsResult) error { return r.Error })
}

func each[T any](items []*item, f func(*item) T) []T {
	all := make([]T, len(items))
	for i, t := range items {
		all[i] = f(t)
	}
	return all
}

// firstOf returns the error of a bulk call, or else the first error of its items.
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

func (t *item) volume() names.VolumeTag {
	return names.NewVolumeTag(fmt.Sprintf("0/%d", t.number))
}

func (t *item) filesystem() names.FilesystemTag {
	return names.NewFilesystemTag(fmt.Sprintf("0/%d", t.number))
}

func (t *item) volumeID() string { return t.volume().String() }

func (t *item) filesystemID() string { return t.filesystem().String() }

func (t *item) volumeParams() storage.VolumeParams {
	return storage.VolumeParams{Tag: t.volume(), Size: t.size, Provider: provider.LoopProviderType}
}

func (t *item) volumeAttachment() storage.VolumeAttachmentParams {
	return storage.VolumeAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Provider: provider.LoopProviderType, Machine: names.NewMachineTag("0")},
		Volume:           t.volume(),
		VolumeId:         t.volumeID(),
	}
}

func (t *item) onVolume() storage.FilesystemParams {
	return storage.FilesystemParams{Tag: t.filesystem(), Volume: t.volume(), Size: t.size}
}

func (t *item) alone() storage.FilesystemParams {
	return storage.FilesystemParams{Tag: t.filesystem(), Size: t.size}
}

func (t *item) attachment() storage.FilesystemAttachmentParams {
	return storage.FilesystemAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0")},
		Filesystem:       t.filesystem(),
		FilesystemId:     t.filesystemID(),
		Path:             t.mountPoint,
	}
}

// devices holds the block devices of the volumes: what a worker would know from the
// attachments that it made.
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
