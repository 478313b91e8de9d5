package world

import (
	"strconv"
	"strings"
	"time"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// These are the accessors that a World provides.
var (
	_ storageprovisioner.Accessors                 = (*accessors)(nil)
	_ storageprovisioner.VolumeRemovalAccessor     = (*accessors)(nil)
	_ storageprovisioner.FilesystemRemovalAccessor = (*accessors)(nil)
	_ storageprovisioner.VolumeSizeAccessor        = (*accessors)(nil)
	_ storageprovisioner.FilesystemSizeAccessor    = (*accessors)(nil)
)

// accessors is a world as the worker sees it.
type accessors struct{ *World }

// The errors of results are made once, so that they cost nothing.
var (
	errNotFound       = &params.Error{Message: "not found", Code: params.CodeNotFound}
	errNotProvisioned = &params.Error{Message: "not provisioned", Code: params.CodeNotProvisioned}
)

// These are the places of all storage on its machine.
const (
	deviceName = "sdx"
	mountPoint = "/srv"
)

// enter begins an accessor call; leave ends it.
func (w *World) enter() {
	w.accessors.enter()
	if w.delay > 0 {
		time.Sleep(w.delay)
	}
	w.mu.Lock()
}

func (w *World) leave() {
	w.mu.Unlock()
	w.accessors.leave()
}

// answer serves one accessor call.
func answer[A, R any](w *World, args []A, one func(A) R) ([]R, error) {
	w.enter()
	defer w.leave()
	results := make([]R, len(args))
	for i, arg := range args {
		results[i] = one(arg)
	}
	return results, w.Err()
}

// write serves one accessor call that writes.
func write[A any](w *World, args []A, one func(A) *params.Error) ([]params.ErrorResult, error) {
	return answer(w, args, func(arg A) params.ErrorResult { return params.ErrorResult{Error: one(arg)} })
}

// provisioned returns the error of reading the info of an entity: an empty life means that the
// entity is not there.
func provisioned(value life.Value, recorded bool) *params.Error {
	switch {
	case value == "":
		return errNotFound
	case !recorded:
		return errNotProvisioned
	}
	return nil
}

func present(value life.Value) *params.Error { return provisioned(value, true) }

// The watchers. The worker starts none of them twice.

func (a *accessors) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	return a.environ, nil
}

func (a *accessors) WatchBlockDevices(names.MachineTag) (watcher.NotifyWatcher, error) {
	return a.blockDevices, nil
}

func (a *accessors) WatchVolumes() (watcher.StringsWatcher, error) {
	return a.World.Volumes.changes, nil
}

func (a *accessors) WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return a.World.Volumes.attachmentChanges, nil
}

func (a *accessors) WatchFilesystems() (watcher.StringsWatcher, error) {
	return a.World.Filesystems.changes, nil
}

func (a *accessors) WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return a.World.Filesystems.attachmentChanges, nil
}

func (a *accessors) WatchMachine(tag names.MachineTag) (watcher.NotifyWatcher, error) {
	a.enter()
	defer a.leave()
	m := a.machine(tag)
	if m == nil {
		return nil, errNotFound
	}
	if m.watch != nil {
		a.fail("%s is watched a second time", m.tag)
	}
	m.watch = newWatch[struct{}](1)
	m.watch.Notify()
	a.watched.add()
	return m.watch, a.Err()
}

// The environment and the machines.

func (a *accessors) EnvironConfig() (*config.Config, error) {
	a.enter()
	defer a.leave()
	return config.New(map[string]any{"name": "scale", "type": "instant", "uuid": modelUUID})
}

func (a *accessors) InstanceIds(tags []names.MachineTag) ([]params.StringResult, error) {
	return answer(a.World, tags, func(tag names.MachineTag) params.StringResult {
		m := a.machine(tag)
		switch {
		case m == nil:
			return params.StringResult{Error: errNotFound}
		case !m.provisioned:
			return params.StringResult{Error: errNotProvisioned}
		}
		return params.StringResult{Result: m.instance()}
	})
}

// machine returns the machine with a tag, or nil.
func (a *accessors) machine(tag names.MachineTag) *machine {
	n, err := strconv.Atoi(tag.Id())
	if err != nil || n < 0 || n >= len(a.machines) {
		return nil
	}
	return &a.machines[n]
}

// Lives and statuses.

func (a *accessors) Life(tags []names.Tag) ([]params.LifeResult, error) {
	return answer(a.World, tags, func(tag names.Tag) params.LifeResult {
		i := a.at(tag)
		return params.LifeResult{Life: i.life, Error: present(i.life)}
	})
}

func (a *accessors) AttachmentLife(ids []params.MachineStorageId) ([]params.LifeResult, error) {
	return answer(a.World, ids, func(id params.MachineStorageId) params.LifeResult {
		i := a.of(id).attachmentAt(id)
		return params.LifeResult{Life: i.attachment, Error: present(i.attachment)}
	})
}

func (a *accessors) Remove(tags []names.Tag) ([]params.ErrorResult, error) {
	return write(a.World, tags, func(tag names.Tag) *params.Error {
		return a.kind(tag.Kind()).remove(tag.String())
	})
}

func (a *accessors) RemoveAttachments(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	return write(a.World, ids, func(id params.MachineStorageId) *params.Error {
		return a.of(id).removeAttachment(id)
	})
}

func (a *accessors) SetStatus(statuses []params.EntityStatusArgs) error {
	a.enter()
	defer a.leave()
	for _, s := range statuses {
		a.kind(kindOf(s.Tag)).at(s.Tag)
	}
	return a.Err()
}

// at returns the item of a volume or filesystem tag.
func (a *accessors) at(tag names.Tag) *item { return a.kind(tag.Kind()).at(tag.String()) }

// of returns the storage that contains what an attachment attaches.
func (a *accessors) of(id params.MachineStorageId) *Storage { return a.kind(kindOf(id.AttachmentTag)) }

// kind returns all volumes, or all filesystems.
func (a *accessors) kind(kind string) *Storage {
	if kind == names.VolumeTagKind {
		return a.World.Volumes
	}
	return a.World.Filesystems
}

// kindOf returns the kind of a tag.
func kindOf(tag string) string {
	kind, _, _ := strings.Cut(tag, "-")
	return kind
}

// Volumes.

func (a *accessors) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	return answer(a.World, tags, func(tag names.VolumeTag) params.VolumeResult {
		i := a.World.Volumes.at(tag.String())
		if err := provisioned(i.life, i.recorded); err != nil {
			return params.VolumeResult{Error: err}
		}
		return params.VolumeResult{Result: params.Volume{
			VolumeTag: i.tag,
			Info:      params.VolumeInfo{VolumeId: i.tag, Size: size},
		}}
	})
}

func (a *accessors) VolumeSizes(tags []names.VolumeTag) ([]params.SizeResult, error) {
	return answer(a.World, tags, func(tag names.VolumeTag) params.SizeResult {
		return sizeOf(a.World.Volumes.at(tag.String()))
	})
}

func sizeOf(i *item) params.SizeResult {
	return params.SizeResult{Result: size, Error: present(i.life)}
}

func (a *accessors) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	return answer(a.World, tags, func(tag names.VolumeTag) params.VolumeParamsResult {
		i := a.World.Volumes.at(tag.String())
		if err := present(i.life); err != nil {
			return params.VolumeParamsResult{Error: err}
		}
		attachment := i.volumeAttachmentParams()
		return params.VolumeParamsResult{Result: params.VolumeParams{
			VolumeTag:  i.tag,
			Size:       size,
			Provider:   i.provider,
			Attachment: &attachment,
		}}
	})
}

func (a *accessors) RemoveVolumeParams(tags []names.VolumeTag) ([]params.RemoveVolumeParamsResult, error) {
	return answer(a.World, tags, func(tag names.VolumeTag) params.RemoveVolumeParamsResult {
		i := a.World.Volumes.at(tag.String())
		if err := provisioned(i.life, i.recorded); err != nil {
			return params.RemoveVolumeParamsResult{Error: err}
		}
		return params.RemoveVolumeParamsResult{Result: params.RemoveVolumeParams{
			Provider: i.provider, VolumeId: i.tag, Destroy: true,
		}}
	})
}

func (a *accessors) VolumeAttachments(ids []params.MachineStorageId) ([]params.VolumeAttachmentResult, error) {
	return answer(a.World, ids, func(id params.MachineStorageId) params.VolumeAttachmentResult {
		i := a.World.Volumes.attachmentAt(id)
		if err := provisioned(i.attachment, i.attached); err != nil {
			return params.VolumeAttachmentResult{Error: err}
		}
		return params.VolumeAttachmentResult{Result: params.VolumeAttachment{
			VolumeTag:  i.tag,
			MachineTag: i.machine.tag,
			Info:       params.VolumeAttachmentInfo{DeviceName: deviceName},
		}}
	})
}

func (a *accessors) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	return answer(a.World, ids, func(id params.MachineStorageId) params.VolumeAttachmentParamsResult {
		i := a.World.Volumes.attachmentAt(id)
		if err := present(i.attachment); err != nil {
			return params.VolumeAttachmentParamsResult{Error: err}
		}
		return params.VolumeAttachmentParamsResult{Result: i.volumeAttachmentParams()}
	})
}

func (i *item) volumeAttachmentParams() params.VolumeAttachmentParams {
	return params.VolumeAttachmentParams{
		VolumeTag:  i.tag,
		MachineTag: i.machine.tag,
		VolumeId:   i.providerID(),
		InstanceId: i.machine.instance(),
		Provider:   i.provider,
	}
}

func (a *accessors) SetVolumeInfo(volumes []params.Volume) ([]params.ErrorResult, error) {
	return write(a.World, volumes, func(v params.Volume) *params.Error {
		return a.World.Volumes.record(v.VolumeTag, v.Info.VolumeId, v.Info.Size)
	})
}

func (a *accessors) SetVolumeAttachmentInfo(attachments []params.VolumeAttachment) ([]params.ErrorResult, error) {
	return write(a.World, attachments, func(va params.VolumeAttachment) *params.Error {
		return a.World.Volumes.recordAttachment(params.MachineStorageId{
			MachineTag: va.MachineTag, AttachmentTag: va.VolumeTag,
		})
	})
}

func (a *accessors) VolumeBlockDevices(ids []params.MachineStorageId) ([]params.BlockDeviceResult, error) {
	shown := int(a.devices.Load())
	return answer(a.World, ids, func(id params.MachineStorageId) params.BlockDeviceResult {
		i := a.World.Volumes.attachmentAt(id)
		if i.attachment == "" || i.number >= shown {
			return params.BlockDeviceResult{Error: errNotFound}
		}
		return params.BlockDeviceResult{Result: storage.BlockDevice{DeviceName: deviceName, UUID: modelUUID, Size: size}}
	})
}

// Filesystems.

func (a *accessors) Filesystems(tags []names.FilesystemTag) ([]params.FilesystemResult, error) {
	return answer(a.World, tags, func(tag names.FilesystemTag) params.FilesystemResult {
		i := a.World.Filesystems.at(tag.String())
		if err := provisioned(i.life, i.recorded); err != nil {
			return params.FilesystemResult{Error: err}
		}
		return params.FilesystemResult{Result: params.Filesystem{
			FilesystemTag: i.tag,
			VolumeTag:     a.backingVolume(i),
			Info:          params.FilesystemInfo{FilesystemId: i.tag, Size: size},
		}}
	})
}

// backingVolume returns the tag of the volume that backs a filesystem, if any.
func (a *accessors) backingVolume(i *item) string {
	if !a.options.Backed {
		return ""
	}
	return a.World.Volumes.items[i.number].tag
}

func (a *accessors) FilesystemSizes(tags []names.FilesystemTag) ([]params.SizeResult, error) {
	return answer(a.World, tags, func(tag names.FilesystemTag) params.SizeResult {
		return sizeOf(a.World.Filesystems.at(tag.String()))
	})
}

func (a *accessors) FilesystemParams(tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	return answer(a.World, tags, func(tag names.FilesystemTag) params.FilesystemParamsResult {
		i := a.World.Filesystems.at(tag.String())
		if err := present(i.life); err != nil {
			return params.FilesystemParamsResult{Error: err}
		}
		attachment := i.filesystemAttachmentParams()
		return params.FilesystemParamsResult{Result: params.FilesystemParams{
			FilesystemTag: i.tag,
			VolumeTag:     a.backingVolume(i),
			Size:          size,
			Provider:      i.provider,
			Attachment:    &attachment,
		}}
	})
}

func (a *accessors) RemoveFilesystemParams(tags []names.FilesystemTag) ([]params.RemoveFilesystemParamsResult, error) {
	return answer(a.World, tags, func(tag names.FilesystemTag) params.RemoveFilesystemParamsResult {
		i := a.World.Filesystems.at(tag.String())
		if err := provisioned(i.life, i.recorded); err != nil {
			return params.RemoveFilesystemParamsResult{Error: err}
		}
		return params.RemoveFilesystemParamsResult{Result: params.RemoveFilesystemParams{
			Provider: i.provider, FilesystemId: i.tag, Destroy: true,
		}}
	})
}

func (a *accessors) FilesystemAttachments(ids []params.MachineStorageId) ([]params.FilesystemAttachmentResult, error) {
	return answer(a.World, ids, func(id params.MachineStorageId) params.FilesystemAttachmentResult {
		i := a.World.Filesystems.attachmentAt(id)
		if err := provisioned(i.attachment, i.attached); err != nil {
			return params.FilesystemAttachmentResult{Error: err}
		}
		return params.FilesystemAttachmentResult{Result: params.FilesystemAttachment{
			FilesystemTag: i.tag,
			MachineTag:    i.machine.tag,
			Info:          params.FilesystemAttachmentInfo{MountPoint: mountPoint},
		}}
	})
}

func (a *accessors) FilesystemAttachmentParams(ids []params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error) {
	return answer(a.World, ids, func(id params.MachineStorageId) params.FilesystemAttachmentParamsResult {
		i := a.World.Filesystems.attachmentAt(id)
		if err := present(i.attachment); err != nil {
			return params.FilesystemAttachmentParamsResult{Error: err}
		}
		return params.FilesystemAttachmentParamsResult{Result: i.filesystemAttachmentParams()}
	})
}

func (i *item) filesystemAttachmentParams() params.FilesystemAttachmentParams {
	return params.FilesystemAttachmentParams{
		FilesystemTag: i.tag,
		MachineTag:    i.machine.tag,
		FilesystemId:  i.providerID(),
		InstanceId:    i.machine.instance(),
		Provider:      i.provider,
		MountPoint:    mountPoint,
	}
}

func (a *accessors) SetFilesystemInfo(filesystems []params.Filesystem) ([]params.ErrorResult, error) {
	return write(a.World, filesystems, func(f params.Filesystem) *params.Error {
		return a.World.Filesystems.record(f.FilesystemTag, f.Info.FilesystemId, f.Info.Size)
	})
}

func (a *accessors) SetFilesystemAttachmentInfo(attachments []params.FilesystemAttachment) ([]params.ErrorResult, error) {
	return write(a.World, attachments, func(fa params.FilesystemAttachment) *params.Error {
		return a.World.Filesystems.recordAttachment(params.MachineStorageId{
			MachineTag: fa.MachineTag, AttachmentTag: fa.FilesystemTag,
		})
	})
}
