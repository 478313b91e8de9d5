package bench

import (
	"fmt"
	"reflect"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
)

// The calls that the machine's worker makes of its accessors: in bulk for everything, or for
// one instance. The first applied file leads to volumes and filesystems 0/0, 0/1, ….

func volumeTag(i int) names.VolumeTag { return names.NewVolumeTag(fmt.Sprintf("0/%d", i)) }

func filesystemTag(i int) names.FilesystemTag { return names.NewFilesystemTag(fmt.Sprintf("0/%d", i)) }

func attachmentID(tag names.Tag) params.MachineStorageId {
	return params.MachineStorageId{MachineTag: machine.String(), AttachmentTag: tag.String()}
}

func volumeAttachmentID(i int) params.MachineStorageId { return attachmentID(volumeTag(i)) }

func filesystemAttachmentID(i int) params.MachineStorageId { return attachmentID(filesystemTag(i)) }

func volume(i int) params.Volume {
	return params.Volume{VolumeTag: volumeTag(i).String(), Info: params.VolumeInfo{
		VolumeId: fmt.Sprintf("volume-0-%d", i), Size: 64,
	}}
}

func volumeAttachment(i int) params.VolumeAttachment {
	return params.VolumeAttachment{
		VolumeTag: volumeTag(i).String(), MachineTag: machine.String(),
		Info: params.VolumeAttachmentInfo{DeviceName: fmt.Sprintf("loop%d", i), BusAddress: busAddress(i)},
	}
}

func filesystem(i int) params.Filesystem {
	return params.Filesystem{
		FilesystemTag: filesystemTag(i).String(), VolumeTag: volumeTag(i).String(),
		Info: params.FilesystemInfo{FilesystemId: fmt.Sprintf("%08d-0000-4000-8000-000000000000", i), Size: 64},
	}
}

func filesystemAttachment(i int) params.FilesystemAttachment {
	return params.FilesystemAttachment{
		FilesystemTag: filesystemTag(i).String(), MachineTag: machine.String(),
		Info: params.FilesystemAttachmentInfo{MountPoint: fmt.Sprintf("/srv/data/%d", i)},
	}
}

func busAddress(i int) string { return storage.LoopBusAddress(1<<8, uint64(i)) }

// loopDevices returns the block devices of the first n volumes.
func loopDevices(n int) []storage.BlockDevice {
	return each(n, func(i int) storage.BlockDevice {
		return storage.BlockDevice{
			DeviceName: fmt.Sprintf("loop%d", i), BusAddress: busAddress(i), Size: 64,
			FilesystemType: "ext4", UUID: fmt.Sprintf("%08d-0000-4000-8000-000000000000", i), InUse: true, MountPoint: fmt.Sprintf("/srv/data/%d", i),
		}
	})
}

// readParams reads the lives of all entities, and the parameters to make them with.
func (w *world) readParams() error {
	return runAll(
		w.readLives,
		func() error { return check(w.VolumeParams(each(w.n, volumeTag))) },
		func() error { return check(w.FilesystemParams(each(w.n, filesystemTag))) },
		func() error { return check(w.VolumeAttachmentParams(each(w.n, volumeAttachmentID))) },
		func() error { return check(w.FilesystemAttachmentParams(each(w.n, filesystemAttachmentID))) },
	)
}

// readAll reads everything, as a starting worker does.
func (w *world) readAll() error {
	return runAll(
		w.readLives,
		func() error { return check(w.Volumes(each(w.n, volumeTag))) },
		func() error { return check(w.VolumeSizes(each(w.n, volumeTag))) },
		func() error { return check(w.VolumeAttachments(each(w.n, volumeAttachmentID))) },
		func() error { return check(w.VolumeAttachmentParams(each(w.n, volumeAttachmentID))) },
		w.findDevices,
		func() error { return check(w.Filesystems(each(w.n, filesystemTag))) },
		func() error { return check(w.FilesystemSizes(each(w.n, filesystemTag))) },
		func() error { return check(w.FilesystemAttachments(each(w.n, filesystemAttachmentID))) },
		func() error { return check(w.FilesystemAttachmentParams(each(w.n, filesystemAttachmentID))) },
	)
}

func (w *world) readLives() error {
	return runAll(
		func() error { return check(w.Life(each(w.n, asTag(volumeTag)))) },
		func() error { return check(w.Life(each(w.n, asTag(filesystemTag)))) },
		func() error { return check(w.AttachmentLife(each(w.n, volumeAttachmentID))) },
		func() error { return check(w.AttachmentLife(each(w.n, filesystemAttachmentID))) },
	)
}

func (w *world) recordVolumes() error {
	return runAll(
		func() error { return check(w.SetVolumeInfo(each(w.n, volume))) },
		func() error { return check(w.SetVolumeAttachmentInfo(each(w.n, volumeAttachment))) },
	)
}

func (w *world) findDevices() error {
	return check(w.VolumeBlockDevices(each(w.n, volumeAttachmentID)))
}

func (w *world) recordFilesystems() error {
	return runAll(
		func() error { return check(w.SetFilesystemInfo(each(w.n, filesystem))) },
		func() error { return check(w.SetFilesystemAttachmentInfo(each(w.n, filesystemAttachment))) },
	)
}

// setStatuses sets the statuses that storage has while it is being attached.
func (w *world) setStatuses() error {
	for _, tag := range []func(int) names.Tag{asTag(volumeTag), asTag(filesystemTag)} {
		for _, value := range []status.Status{status.Attaching, status.Attached} {
			err := w.SetStatus(each(w.n, func(i int) params.EntityStatusArgs {
				return params.EntityStatusArgs{Tag: tag(i).String(), Status: string(value)}
			}))
			if err != nil {
				return errors.Trace(err)
			}
		}
	}
	return nil
}

// recordRemovals removes all storage whose removal was requested, from the top.
func (w *world) recordRemovals() error {
	return runAll(
		func() error { return check(w.RemoveAttachments(each(w.n, filesystemAttachmentID))) },
		func() error { return check(w.Remove(each(w.n, asTag(filesystemTag)))) },
		func() error { return check(w.RemoveAttachments(each(w.n, volumeAttachmentID))) },
		func() error { return check(w.Remove(each(w.n, asTag(volumeTag)))) },
	)
}

// setStatus sets a volume's status to one that it has not had.
func (w *world) setStatus(i int, remark string) error {
	return w.SetStatus([]params.EntityStatusArgs{{
		Tag: volumeTag(i).String(), Status: string(status.Attached), Info: remark,
	}})
}

func (w *world) recordSize(i int, size uint64) error {
	larger := volume(i)
	larger.Info.Size = size
	return check(w.SetVolumeInfo([]params.Volume{larger}))
}

func (w *world) findDevice(i int) error {
	return check(w.VolumeBlockDevices([]params.MachineStorageId{volumeAttachmentID(i)}))
}

// check returns the first error of a bulk call.
func check[R any](results []R, err error) error {
	if err != nil {
		return errors.Trace(err)
	}
	all := reflect.ValueOf(results)
	field, _ := all.Type().Elem().FieldByName("Error")
	for i := range results {
		if err := all.Index(i).FieldByIndex(field.Index).Interface().(*params.Error); err != nil {
			return err
		}
	}
	return nil
}

// each returns make(0), make(1), …, make(n-1).
func each[T any](n int, make func(int) T) []T {
	all := []T{}
	for i := range n {
		all = append(all, make(i))
	}
	return all
}

func asTag[T names.Tag](tag func(int) T) func(int) names.Tag {
	return func(i int) names.Tag { return tag(i) }
}
