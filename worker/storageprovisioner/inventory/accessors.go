package inventory

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/watcher/feed"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

var (
	_ storageprovisioner.Accessors                 = (*Inventory)(nil)
	_ storageprovisioner.VolumeSizeAccessor        = (*Inventory)(nil)
	_ storageprovisioner.FilesystemSizeAccessor    = (*Inventory)(nil)
	_ storageprovisioner.VolumeRemovalAccessor     = (*Inventory)(nil)
	_ storageprovisioner.FilesystemRemovalAccessor = (*Inventory)(nil)
	_ storageprovisioner.AttemptAccessor           = (*Inventory)(nil)
)

// entry is an item, or one of its attachments, that an accessor is asked for.
type entry struct {
	tag, machine string
	Item
	attachment Attachment
}

// read makes a bulk call that reads: one result for each argument, in order. The error says what does not exist.
func read[A, R any](i *Inventory, args []A, result func(entry, error) R) ([]R, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	results := make([]R, len(args))
	for n, arg := range args {
		e, err := i.find(arg)
		results[n] = result(e, err)
	}
	return results, nil
}

// find returns what an argument of a bulk call names: a tag, or the ID of an attachment.
func (i *Inventory) find(arg any) (e entry, err error) {
	id, ok := arg.(params.MachineStorageId)
	if ok {
		e.tag, e.machine = id.AttachmentTag, id.MachineTag
	} else {
		e.tag = arg.(names.Tag).String()
	}
	e.Item, ok = i.items[e.tag]
	if ok && e.machine != "" {
		e.attachment, ok = e.Attachments[e.machine]
	}
	if !ok {
		err = errors.NotFoundf("%s", e)
	}
	return e, err
}

func (e entry) String() string {
	if e.machine != "" {
		return "attachment of " + e.tag + " to " + e.machine
	}
	return e.tag
}

// made returns err, or an error if something is not made.
func made[T any](e entry, info *T, err error) (T, *params.Error) {
	if err == nil && info == nil {
		err = errors.NotProvisionedf("%s", e)
	}
	if err != nil {
		var none T
		return none, params.ServerError(err)
	}
	return *info, nil
}

// write makes a bulk call that writes.
func write[A any](args []A, one func(A) error) ([]params.ErrorResult, error) {
	results := make([]params.ErrorResult, len(args))
	for n, arg := range args {
		results[n].Error = params.ServerError(one(arg))
	}
	return results, nil
}

// changeAttachment changes an attachment.
func (i *Inventory) changeAttachment(tag, machine string, f func(*Attachment)) error {
	return i.change(tag, func(item *Item) error {
		a, ok := item.Attachments[machine]
		if !ok {
			return errors.NotFoundf("attachment to %s", machine)
		}
		f(&a)
		item.Attachments[machine] = a
		return nil
	})
}

// ids returns the IDs of all items of a kind, and those of their attachments.
func (i *Inventory) ids(kind string) (all []string, attachments []params.MachineStorageId) {
	for tag, item := range i.items {
		parsed, _ := names.ParseTag(tag) // it is valid
		if parsed.Kind() != kind {
			continue
		}
		all = append(all, parsed.Id())
		for machine := range item.Attachments {
			attachments = append(attachments, params.MachineStorageId{MachineTag: machine, AttachmentTag: tag})
		}
	}
	return all, attachments
}

func (i *Inventory) watch(kind string, items *feed.IDs[string]) (watcher.StringsWatcher, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	all, _ := i.ids(kind)
	return items.Watch(all), nil
}

func (i *Inventory) watchAttachments(kind string, attachments *feed.IDs[params.MachineStorageId]) (watcher.MachineStorageIdsWatcher, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, all := i.ids(kind)
	return attachments.Watch(all), nil
}

// WatchVolumes implements [storageprovisioner.VolumeAccessor].
func (i *Inventory) WatchVolumes() (watcher.StringsWatcher, error) {
	return i.watch(names.VolumeTagKind, &i.volumes)
}

// WatchFilesystems implements [storageprovisioner.FilesystemAccessor].
func (i *Inventory) WatchFilesystems() (watcher.StringsWatcher, error) {
	return i.watch(names.FilesystemTagKind, &i.filesystems)
}

// WatchVolumeAttachments implements [storageprovisioner.VolumeAccessor].
func (i *Inventory) WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return i.watchAttachments(names.VolumeTagKind, &i.volumeAttachments)
}

// WatchFilesystemAttachments implements [storageprovisioner.FilesystemAccessor].
func (i *Inventory) WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return i.watchAttachments(names.FilesystemTagKind, &i.filesystemAttachments)
}

// WatchBlockDevices implements [storageprovisioner.VolumeAccessor].
func (i *Inventory) WatchBlockDevices(names.MachineTag) (watcher.NotifyWatcher, error) {
	return i.blockDevices.Watch(), nil
}

// WatchMachine implements [storageprovisioner.MachineAccessor].
func (i *Inventory) WatchMachine(names.MachineTag) (watcher.NotifyWatcher, error) {
	return i.machines.Watch(), nil
}

// WatchForEnvironConfigChanges implements [storageprovisioner.EnvironAccessor].
func (i *Inventory) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	return new(feed.Notify).Watch(), nil // it does not change
}

// EnvironConfig implements [storageprovisioner.EnvironAccessor].
func (i *Inventory) EnvironConfig() (*config.Config, error) { return i.config.Environ, nil }

// Volumes implements [storageprovisioner.VolumeAccessor].
func (i *Inventory) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	return read(i, tags, func(e entry, err error) params.VolumeResult {
		m, failed := made(e, e.Made, err)
		return params.VolumeResult{Error: failed, Result: params.Volume{VolumeTag: e.tag, Info: params.VolumeInfo{
			VolumeId: m.ID, HardwareId: m.HardwareID, WWN: m.WWN, Pool: m.Pool, Size: m.Size, Persistent: m.Persistent, New: m.New,
		}}}
	})
}

// Filesystems implements [storageprovisioner.FilesystemAccessor].
func (i *Inventory) Filesystems(tags []names.FilesystemTag) ([]params.FilesystemResult, error) {
	return read(i, tags, func(e entry, err error) params.FilesystemResult {
		m, failed := made(e, e.Made, err)
		return params.FilesystemResult{Error: failed, Result: params.Filesystem{
			FilesystemTag: e.tag, VolumeTag: e.Volume, Info: params.FilesystemInfo{FilesystemId: m.ID, Pool: m.Pool, Size: m.Size},
		}}
	})
}

// VolumeAttachments implements [storageprovisioner.VolumeAccessor].
func (i *Inventory) VolumeAttachments(ids []params.MachineStorageId) ([]params.VolumeAttachmentResult, error) {
	return read(i, ids, func(e entry, err error) params.VolumeAttachmentResult {
		m, failed := made(e, e.attachment.Made, err)
		return params.VolumeAttachmentResult{Error: failed, Result: params.VolumeAttachment{
			VolumeTag: e.tag, MachineTag: e.machine, Info: params.VolumeAttachmentInfo{
				DeviceName: m.DeviceName, DeviceLink: m.DeviceLink, BusAddress: m.BusAddress, ReadOnly: m.ReadOnly,
			},
		}}
	})
}

// FilesystemAttachments implements [storageprovisioner.FilesystemAccessor].
func (i *Inventory) FilesystemAttachments(ids []params.MachineStorageId) ([]params.FilesystemAttachmentResult, error) {
	return read(i, ids, func(e entry, err error) params.FilesystemAttachmentResult {
		m, failed := made(e, e.attachment.Made, err)
		return params.FilesystemAttachmentResult{Error: failed, Result: params.FilesystemAttachment{
			FilesystemTag: e.tag, MachineTag: e.machine, Info: params.FilesystemAttachmentInfo{MountPoint: m.MountPoint, ReadOnly: m.ReadOnly},
		}}
	})
}

// id is that of what the provider has made, or empty.
func (e entry) id() string {
	if e.Made == nil {
		return ""
	}
	return e.Made.ID
}

// instance returns the instance ID of a machine, or "" if it has none.
func (i *Inventory) instance(machine string) string {
	tag, err := names.ParseMachineTag(machine)
	if err != nil {
		return ""
	}
	id, err := i.config.InstanceId(tag)
	if err != nil {
		return ""
	}
	return id
}

func (i *Inventory) volumeAttachmentParams(e entry) params.VolumeAttachmentParams {
	return params.VolumeAttachmentParams{
		VolumeTag: e.tag, MachineTag: e.machine, VolumeId: e.id(), InstanceId: i.instance(e.machine),
		Provider: string(e.Provider), ReadOnly: e.attachment.ReadOnly,
	}
}

func (i *Inventory) filesystemAttachmentParams(e entry) params.FilesystemAttachmentParams {
	return params.FilesystemAttachmentParams{
		FilesystemTag: e.tag, MachineTag: e.machine, FilesystemId: e.id(), InstanceId: i.instance(e.machine),
		Provider: string(e.Provider), MountPoint: e.attachment.MountPoint, ReadOnly: e.attachment.ReadOnly,
	}
}

// attachments returns an entry for each wanted attachment of an item.
func (e entry) wantedAttachments() (all []entry) {
	for machine, a := range e.Attachments {
		if a.Life == life.Alive {
			all = append(all, entry{e.tag, machine, e.Item, a})
		}
	}
	return all
}

// VolumeParams implements [storageprovisioner.VolumeAccessor].
func (i *Inventory) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	return read(i, tags, func(e entry, err error) params.VolumeParamsResult {
		p := params.VolumeParams{VolumeTag: e.tag, Size: e.Size, Provider: string(e.Provider), Attributes: e.Attributes, Tags: e.ResourceTags}
		for _, at := range e.wantedAttachments() {
			a := i.volumeAttachmentParams(at)
			p.Attachment = &a
		}
		return params.VolumeParamsResult{Result: p, Error: params.ServerError(err)}
	})
}

// FilesystemParams implements [storageprovisioner.FilesystemAccessor].
func (i *Inventory) FilesystemParams(tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	return read(i, tags, func(e entry, err error) params.FilesystemParamsResult {
		p := params.FilesystemParams{
			FilesystemTag: e.tag, VolumeTag: e.Volume, Size: e.Size, Provider: string(e.Provider), Attributes: e.Attributes, Tags: e.ResourceTags,
		}
		if volume := i.items[e.Volume]; volume.Made != nil {
			p.VolumeNew = volume.Made.New
		}
		for _, at := range e.wantedAttachments() {
			a := i.filesystemAttachmentParams(at)
			p.Attachment = &a
		}
		return params.FilesystemParamsResult{Result: p, Error: params.ServerError(err)}
	})
}

// VolumeAttachmentParams implements [storageprovisioner.VolumeAccessor].
func (i *Inventory) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	return read(i, ids, func(e entry, err error) params.VolumeAttachmentParamsResult {
		return params.VolumeAttachmentParamsResult{Result: i.volumeAttachmentParams(e), Error: params.ServerError(err)}
	})
}

// FilesystemAttachmentParams implements [storageprovisioner.FilesystemAccessor].
func (i *Inventory) FilesystemAttachmentParams(ids []params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error) {
	return read(i, ids, func(e entry, err error) params.FilesystemAttachmentParamsResult {
		return params.FilesystemAttachmentParamsResult{Result: i.filesystemAttachmentParams(e), Error: params.ServerError(err)}
	})
}

// RemoveVolumeParams implements [storageprovisioner.VolumeRemovalAccessor].
func (i *Inventory) RemoveVolumeParams(tags []names.VolumeTag) ([]params.RemoveVolumeParamsResult, error) {
	return read(i, tags, func(e entry, err error) params.RemoveVolumeParamsResult {
		return params.RemoveVolumeParamsResult{Error: params.ServerError(err), Result: params.RemoveVolumeParams{
			Provider: string(e.Provider), VolumeId: e.id(), Destroy: !e.Release,
		}}
	})
}

// RemoveFilesystemParams implements [storageprovisioner.FilesystemRemovalAccessor].
func (i *Inventory) RemoveFilesystemParams(tags []names.FilesystemTag) ([]params.RemoveFilesystemParamsResult, error) {
	return read(i, tags, func(e entry, err error) params.RemoveFilesystemParamsResult {
		return params.RemoveFilesystemParamsResult{Error: params.ServerError(err), Result: params.RemoveFilesystemParams{
			Provider: string(e.Provider), FilesystemId: e.id(), Destroy: !e.Release,
		}}
	})
}

// VolumeSizes implements [storageprovisioner.VolumeSizeAccessor].
func (i *Inventory) VolumeSizes(tags []names.VolumeTag) ([]params.SizeResult, error) {
	return read(i, tags, wantedSize)
}

// FilesystemSizes implements [storageprovisioner.FilesystemSizeAccessor].
func (i *Inventory) FilesystemSizes(tags []names.FilesystemTag) ([]params.SizeResult, error) {
	return read(i, tags, wantedSize)
}

func wantedSize(e entry, err error) params.SizeResult {
	return params.SizeResult{Result: e.Size, Error: params.ServerError(err)}
}

// VolumeBlockDevices implements [storageprovisioner.VolumeAccessor].
func (i *Inventory) VolumeBlockDevices(ids []params.MachineStorageId) ([]params.BlockDeviceResult, error) {
	return read(i, ids, func(e entry, err error) params.BlockDeviceResult {
		m, failed := made(e, e.Made, err)
		if failed != nil {
			return params.BlockDeviceResult{Error: failed}
		}
		a, failed := made(e, e.attachment.Made, nil)
		if failed != nil {
			return params.BlockDeviceResult{Error: failed}
		}
		device, ok := i.devices.Match(
			storage.VolumeInfo{VolumeId: m.ID, HardwareId: m.HardwareID, WWN: m.WWN, Size: m.Size, Persistent: m.Persistent},
			storage.VolumeAttachmentInfo{DeviceName: a.DeviceName, DeviceLink: a.DeviceLink, BusAddress: a.BusAddress, ReadOnly: a.ReadOnly},
			storage.BlockDevice{},
		)
		if !ok {
			return params.BlockDeviceResult{Error: params.ServerError(errors.NotFoundf("block device of %s", e))}
		}
		return params.BlockDeviceResult{Result: device}
	})
}

// SetVolumeInfo implements [storageprovisioner.VolumeAccessor].
func (i *Inventory) SetVolumeInfo(volumes []params.Volume) ([]params.ErrorResult, error) {
	return write(volumes, func(v params.Volume) error {
		return i.setMade(v.VolumeTag, Info{
			ID: v.Info.VolumeId, HardwareID: v.Info.HardwareId, WWN: v.Info.WWN, Pool: v.Info.Pool,
			Size: v.Info.Size, Persistent: v.Info.Persistent, New: v.Info.New,
		})
	})
}

// SetFilesystemInfo implements [storageprovisioner.FilesystemAccessor].
func (i *Inventory) SetFilesystemInfo(filesystems []params.Filesystem) ([]params.ErrorResult, error) {
	return write(filesystems, func(f params.Filesystem) error {
		return i.setMade(f.FilesystemTag, Info{ID: f.Info.FilesystemId, Pool: f.Info.Pool, Size: f.Info.Size})
	})
}

func (i *Inventory) setMade(tag string, info Info) error {
	return i.change(tag, func(item *Item) error {
		item.Made, item.Attempted = &info, false
		return nil
	})
}

// SetVolumeAttachmentInfo implements [storageprovisioner.VolumeAccessor].
func (i *Inventory) SetVolumeAttachmentInfo(attachments []params.VolumeAttachment) ([]params.ErrorResult, error) {
	return write(attachments, func(a params.VolumeAttachment) error {
		if a.Info.PlanInfo != nil {
			return errors.NotSupportedf("attachment plan of %s", a.VolumeTag)
		}
		return i.setAttached(a.VolumeTag, a.MachineTag, AttachmentInfo{
			DeviceName: a.Info.DeviceName, DeviceLink: a.Info.DeviceLink, BusAddress: a.Info.BusAddress, ReadOnly: a.Info.ReadOnly,
		})
	})
}

// SetFilesystemAttachmentInfo implements [storageprovisioner.FilesystemAccessor].
func (i *Inventory) SetFilesystemAttachmentInfo(attachments []params.FilesystemAttachment) ([]params.ErrorResult, error) {
	return write(attachments, func(a params.FilesystemAttachment) error {
		return i.setAttached(a.FilesystemTag, a.MachineTag, AttachmentInfo{MountPoint: a.Info.MountPoint, ReadOnly: a.Info.ReadOnly})
	})
}

func (i *Inventory) setAttached(tag, machine string, info AttachmentInfo) error {
	return i.changeAttachment(tag, machine, func(a *Attachment) { a.Made, a.Attempted = &info, false })
}

// Life implements [storageprovisioner.LifecycleManager].
func (i *Inventory) Life(tags []names.Tag) ([]params.LifeResult, error) {
	return read(i, tags, func(e entry, err error) params.LifeResult {
		return params.LifeResult{Life: e.Life, Error: params.ServerError(err)}
	})
}

// AttachmentLife implements [storageprovisioner.LifecycleManager].
func (i *Inventory) AttachmentLife(ids []params.MachineStorageId) ([]params.LifeResult, error) {
	return read(i, ids, func(e entry, err error) params.LifeResult {
		return params.LifeResult{Life: e.attachment.Life, Error: params.ServerError(err)}
	})
}

// Remove implements [storageprovisioner.LifecycleManager]. To say that an item is not wanted any more, use
// Destroy.
func (i *Inventory) Remove(tags []names.Tag) ([]params.ErrorResult, error) {
	return write(tags, func(tag names.Tag) error {
		i.mu.Lock()
		defer i.mu.Unlock()
		item, ok := i.items[tag.String()]
		if !ok {
			return nil
		}
		if item.Life != life.Dead {
			return errors.Errorf("%s is %s: only what is dead can be removed", tag, item.Life)
		}
		return i.drop(tag.String())
	})
}

// RemoveAttachments implements [storageprovisioner.LifecycleManager].
func (i *Inventory) RemoveAttachments(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	return write(ids, func(id params.MachineStorageId) error {
		err := i.change(id.AttachmentTag, func(item *Item) error {
			if a, ok := item.Attachments[id.MachineTag]; ok && a.Life == life.Alive {
				return errors.Errorf("the attachment to %s is wanted", id.MachineTag)
			}
			delete(item.Attachments, id.MachineTag)
			return nil
		})
		if errors.Is(err, errors.NotFound) {
			return nil
		}
		return err
	})
}

// SetAttempts implements [storageprovisioner.AttemptAccessor].
func (i *Inventory) SetAttempts(attempts []params.Attempt) ([]params.ErrorResult, error) {
	return write(attempts, func(at params.Attempt) error {
		if at.Id.MachineTag != "" {
			return i.changeAttachment(at.Id.AttachmentTag, at.Id.MachineTag, func(a *Attachment) { a.Attempted = at.Attempted })
		}
		return i.change(at.Id.AttachmentTag, func(item *Item) error {
			item.Attempted = at.Attempted
			// An attempt to make a volume may also attach it.
			for machine, a := range item.Attachments {
				if a.Made == nil {
					a.Attempted = at.Attempted
					item.Attachments[machine] = a
				}
			}
			return nil
		})
	})
}

// Attempts implements [storageprovisioner.AttemptAccessor].
func (i *Inventory) Attempts(ids []params.MachineStorageId) ([]params.AttemptResult, error) {
	return read(i, ids, func(e entry, err error) params.AttemptResult {
		attempted := e.Attempted
		if e.machine != "" {
			attempted = e.attachment.Attempted
		}
		return params.AttemptResult{Attempted: attempted, Error: params.ServerError(err)}
	})
}

// InstanceIds implements [storageprovisioner.MachineAccessor].
func (i *Inventory) InstanceIds(machines []names.MachineTag) ([]params.StringResult, error) {
	results := make([]params.StringResult, len(machines))
	for n, machine := range machines {
		id, err := i.config.InstanceId(machine)
		results[n] = params.StringResult{Result: id, Error: params.ServerError(err)}
	}
	return results, nil
}

// SetStatus implements [storageprovisioner.StatusSetter].
func (i *Inventory) SetStatus(statuses []params.EntityStatusArgs) error {
	if i.config.Status != nil {
		for _, s := range statuses {
			i.config.Status(s)
		}
	}
	return nil
}
