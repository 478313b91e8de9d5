//go:build linux

package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// ours does the steps with the providers' sources.
type ours struct {
	// volumes is nil if the filesystems have no volumes.
	volumes     storage.VolumeSource
	filesystems storage.FilesystemSource
	// devices are the block devices of attached volumes.
	devices map[names.VolumeTag]storage.BlockDevice
}

// newOurs opens the sources of a kind in a directory.
func newOurs(t testing.TB, dir string, k kind) *ours {
	t.Helper()
	config := func(p storage.ProviderType) *storage.Config {
		c, err := storage.NewConfig("bench", p, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	dir = filepath.Join(dir, "stowage")
	o := &ours{devices: make(map[names.VolumeTag]storage.BlockDevice)}
	var err error
	switch k {
	case ext4:
		p := provider.NewLoopProvider(provider.LoopOptions{StorageDir: filepath.Join(dir, "loop")})
		o.volumes, err = p.VolumeSource(config(provider.LoopProviderType))
		o.filesystems = provider.NewManagedFilesystemSource(filepath.Join(dir, "managed"), o)
	case tmpfs:
		p := provider.NewTmpfsProvider(provider.TmpfsOptions{StorageDir: dir})
		o.filesystems, err = p.FilesystemSource(config(provider.TmpfsProviderType))
	case bind:
		p := provider.NewRootfsProvider(provider.RootfsOptions{StorageDir: dir})
		o.filesystems, err = p.FilesystemSource(config(provider.RootfsProviderType))
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *ours) do(ctx context.Context, s step, items []*item) error {
	c := envcontext.New(ctx)
	switch s {
	case allocate:
		results, err := o.volumes.CreateVolumes(c, each(items, (*item).volumeParams))
		return firstOf(err, results, func(r storage.CreateVolumesResult) error { return r.Error })
	case attach:
		results, err := o.volumes.AttachVolumes(c, each(items, (*item).volumeAttachment))
		for n, r := range results {
			if a := r.VolumeAttachment; a != nil {
				items[n].device = "/dev/" + a.DeviceName
				o.devices[a.Volume] = storage.BlockDevice{DeviceName: a.DeviceName, BusAddress: a.BusAddress}
			}
		}
		return firstOf(err, results, func(r storage.AttachVolumesResult) error { return r.Error })
	case format:
		results, err := o.filesystems.CreateFilesystems(c, each(items, (*item).filesystemParams))
		return firstOf(err, results, func(r storage.CreateFilesystemsResult) error { return r.Error })
	case mount:
		results, err := o.filesystems.AttachFilesystems(c, each(items, (*item).filesystemAttachment))
		return firstOf(err, results, func(r storage.AttachFilesystemsResult) error { return r.Error })
	case unmount:
		failures, err := o.filesystems.DetachFilesystems(c, each(items, (*item).filesystemAttachment))
		return firstOf(err, failures, itself)
	case detach:
		failures, err := o.volumes.DetachVolumes(c, each(items, (*item).volumeAttachment))
		for n, failure := range failures {
			if failure == nil {
				items[n].device = ""
			}
		}
		return firstOf(err, failures, itself)
	case remove:
		failures, err := o.filesystems.DestroyFilesystems(c, each(items, (*item).filesystemID))
		if err := firstOf(err, failures, itself); err != nil {
			return err
		}
		failures, err = o.volumes.DestroyVolumes(c, each(items, (*item).volumeID))
		return firstOf(err, failures, itself)
	}
	return errors.NotImplementedf("%s", s)
}

func each[T any](items []*item, f func(*item) T) []T {
	all := make([]T, len(items))
	for n, i := range items {
		all[n] = f(i)
	}
	return all
}

// firstOf returns the error of a bulk call, or else the first error of its items.
func firstOf[T any](err error, results []T, errorOf func(T) error) error {
	if err != nil {
		return err
	}
	for _, r := range results {
		if err := errorOf(r); err != nil {
			return err
		}
	}
	return nil
}

func itself(err error) error { return err }

func (i *item) volume() names.VolumeTag {
	return names.NewVolumeTag(fmt.Sprintf("0/%d", i.number))
}

func (i *item) filesystem() names.FilesystemTag {
	return names.NewFilesystemTag(fmt.Sprintf("0/%d", i.number))
}

func (i *item) volumeID() string { return i.volume().String() }

func (i *item) filesystemID() string { return i.filesystem().String() }

func (i *item) volumeParams() storage.VolumeParams {
	return storage.VolumeParams{Tag: i.volume(), Size: i.size, Provider: provider.LoopProviderType}
}

func (i *item) volumeAttachment() storage.VolumeAttachmentParams {
	return storage.VolumeAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Provider: provider.LoopProviderType, Machine: names.NewMachineTag("0")},
		Volume:           i.volume(),
		VolumeId:         i.volumeID(),
	}
}

func (i *item) filesystemParams() storage.FilesystemParams {
	p := storage.FilesystemParams{Tag: i.filesystem(), Size: i.size}
	if i.kind == ext4 {
		p.Volume = i.volume()
	}
	return p
}

func (i *item) filesystemAttachment() storage.FilesystemAttachmentParams {
	return storage.FilesystemAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0")},
		Filesystem:       i.filesystem(),
		FilesystemId:     i.filesystemID(),
		Path:             i.mountPoint,
	}
}

// BlockDevice implements [storage.BackingDevices].
func (o *ours) BlockDevice(tag names.VolumeTag) (storage.BlockDevice, bool) {
	device, ok := o.devices[tag]
	return device, ok
}

// Filesystem implements [storage.BackingDevices].
func (o *ours) Filesystem(names.FilesystemTag) (storage.Filesystem, bool) {
	return storage.Filesystem{}, false
}

// BackingFile implements [storage.BackingFiles].
func (o *ours) BackingFile(tag names.VolumeTag) (string, bool) {
	files, ok := o.volumes.(storage.FileVolumes)
	if !ok {
		return "", false
	}
	return files.VolumeFile(tag.String()), true
}
