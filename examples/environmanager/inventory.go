package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// inventory is the environment manager's own state: machines, and the volumes that are wanted
// on them. The methods for users come first, followed by the methods by which the worker reads
// and writes it, as package storageprovisioner requires. The worker calls those from one
// goroutine, users call the others from other goroutines: hence the lock.
//
// An inventory in a database works in the same way: it reads and writes records, and notifies
// the watchers when a transaction has changed one.
type inventory struct {
	noFilesystems

	environ *config.Config
	// provider is the provider of all volumes of this environment.
	provider storage.ProviderType

	mu       sync.Mutex
	machines map[string]instance.Id // by tag; empty until the machine has an instance
	volumes  map[string]*volume     // by tag
	// changed is closed and replaced with each change.
	changed chan struct{}

	volumeFeeds     []*feed[[]string]
	attachmentFeeds []*feed[[]params.MachineStorageId]
	machineFeeds    map[string][]*feed[struct{}]
}

// volume is a wanted volume, and its recorded state.
type volume struct {
	size       uint64
	life       life.Value
	info       *params.VolumeInfo // nil until it is made
	attachment *attachment        // nil if it has been removed
}

type attachment struct {
	machine string
	life    life.Value
	info    *params.VolumeAttachmentInfo // nil until it is attached
}

var _ storageprovisioner.Accessors = (*inventory)(nil)

func newInventory(environ *config.Config, provider storage.ProviderType) *inventory {
	return &inventory{
		environ:      environ,
		provider:     provider,
		machines:     make(map[string]instance.Id),
		volumes:      make(map[string]*volume),
		changed:      make(chan struct{}),
		machineFeeds: make(map[string][]*feed[struct{}]),
	}
}

// addMachine adds a machine without an instance.
func (i *inventory) addMachine(machine names.MachineTag) { i.setInstance(machine, "") }

// setInstance sets the instance of a machine.
func (i *inventory) setInstance(machine names.MachineTag, id instance.Id) {
	i.change(func() {
		i.machines[machine.String()] = id
		send(i.machineFeeds[machine.String()], struct{}{})
	})
}

// addVolume requests a volume on a machine.
func (i *inventory) addVolume(tag names.VolumeTag, size uint64, machine names.MachineTag) {
	i.change(func() {
		i.volumes[tag.String()] = &volume{
			size:       size,
			life:       life.Alive,
			attachment: &attachment{machine: machine.String(), life: life.Alive},
		}
		i.volumeChanged(tag.String())
		i.attachmentChanged(tag.String(), machine.String())
	})
}

// removeVolumes requests the removal of all volumes. A volume becomes dying, and is dead when
// it is attached nowhere: then the worker destroys it. This rule keeps data safe: nothing that
// is attached is dead.
func (i *inventory) removeVolumes() {
	i.change(func() {
		for _, tag := range slices.Sorted(maps.Keys(i.volumes)) {
			v := i.volumes[tag]
			v.life = life.Dying
			if a := v.attachment; a != nil {
				a.life = life.Dying
				i.attachmentChanged(tag, a.machine)
			}
			i.settle(tag)
		}
	})
}

// settle makes a dying volume without an attachment dead.
func (i *inventory) settle(tag string) {
	if v := i.volumes[tag]; v.life == life.Dying && v.attachment == nil {
		v.life = life.Dead
	}
	i.volumeChanged(tag)
}

// await waits until the inventory is as wanted. It returns the context's cause if the context
// ends first.
func (i *inventory) await(ctx context.Context, asWanted func() bool) error {
	for {
		i.mu.Lock()
		ok, changed := asWanted(), i.changed
		i.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// allAttached is a condition for await, and so is empty.
func (i *inventory) allAttached() bool {
	for _, v := range i.volumes {
		if v.attachment == nil || v.attachment.info == nil {
			return false
		}
	}
	return true
}

func (i *inventory) empty() bool { return len(i.volumes) == 0 }

func (i *inventory) change(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f()
	close(i.changed)
	i.changed = make(chan struct{})
}

// Watchers send IDs of volumes ("0"), and tags of attachments.

func (i *inventory) volumeChanged(tag string) {
	volume, _ := names.ParseVolumeTag(tag)
	send(i.volumeFeeds, []string{volume.Id()})
}

func (i *inventory) attachmentChanged(tag, machine string) {
	send(i.attachmentFeeds, []params.MachineStorageId{{MachineTag: machine, AttachmentTag: tag}})
}

// WatchVolumes implements storageprovisioner.VolumeAccessor. The lock ensures that a
// concurrent change is in the watcher's first event, or in the next.
func (i *inventory) WatchVolumes() (watcher.StringsWatcher, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var ids []string
	for _, tag := range slices.Sorted(maps.Keys(i.volumes)) {
		volume, _ := names.ParseVolumeTag(tag)
		ids = append(ids, volume.Id())
	}
	f := newFeed(ids, join[string])
	i.volumeFeeds = append(living(i.volumeFeeds), f)
	return f, nil
}

// WatchVolumeAttachments implements storageprovisioner.VolumeAccessor.
func (i *inventory) WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var ids []params.MachineStorageId
	for _, tag := range slices.Sorted(maps.Keys(i.volumes)) {
		if a := i.volumes[tag].attachment; a != nil {
			ids = append(ids, params.MachineStorageId{MachineTag: a.machine, AttachmentTag: tag})
		}
	}
	f := newFeed(ids, join[params.MachineStorageId])
	i.attachmentFeeds = append(living(i.attachmentFeeds), f)
	return f, nil
}

// Volumes implements storageprovisioner.VolumeAccessor. Here and below, the code of the error
// says whether a volume does not exist, or is not made yet.
func (i *inventory) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	return each(i, tags, func(tag names.VolumeTag) (r params.VolumeResult) {
		v, err := i.volume(tag.String())
		if err == nil && v.info == nil {
			err = errors.NotProvisionedf("volume %s", tag.Id())
		}
		if err != nil {
			r.Error = params.ServerError(err)
			return r
		}
		r.Result = params.Volume{VolumeTag: tag.String(), Info: *v.info}
		return r
	})
}

// VolumeAttachments implements storageprovisioner.VolumeAccessor.
func (i *inventory) VolumeAttachments(ids []params.MachineStorageId) ([]params.VolumeAttachmentResult, error) {
	return each(i, ids, func(id params.MachineStorageId) (r params.VolumeAttachmentResult) {
		_, a, err := i.attachment(id)
		if err == nil && a.info == nil {
			err = errors.NotProvisionedf("%s on %s", id.AttachmentTag, id.MachineTag)
		}
		if err != nil {
			r.Error = params.ServerError(err)
			return r
		}
		r.Result = params.VolumeAttachment{VolumeTag: id.AttachmentTag, MachineTag: id.MachineTag, Info: *a.info}
		return r
	})
}

// VolumeParams implements storageprovisioner.VolumeAccessor.
func (i *inventory) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	return each(i, tags, func(tag names.VolumeTag) (r params.VolumeParamsResult) {
		v, err := i.volume(tag.String())
		if err != nil {
			r.Error = params.ServerError(err)
			return r
		}
		r.Result = params.VolumeParams{VolumeTag: tag.String(), Size: v.size, Provider: string(i.provider)}
		if v.attachment != nil {
			a := i.attachmentParams(tag.String(), v)
			r.Result.Attachment = &a
		}
		return r
	})
}

// VolumeAttachmentParams implements storageprovisioner.VolumeAccessor.
func (i *inventory) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	return each(i, ids, func(id params.MachineStorageId) (r params.VolumeAttachmentParamsResult) {
		v, _, err := i.attachment(id)
		if err != nil {
			r.Error = params.ServerError(err)
			return r
		}
		r.Result = i.attachmentParams(id.AttachmentTag, v)
		return r
	})
}

// attachmentParams leaves out IDs that are not known yet; the worker waits for them.
func (i *inventory) attachmentParams(tag string, v *volume) params.VolumeAttachmentParams {
	p := params.VolumeAttachmentParams{
		VolumeTag:  tag,
		MachineTag: v.attachment.machine,
		InstanceId: string(i.machines[v.attachment.machine]),
		Provider:   string(i.provider),
	}
	if v.info != nil {
		p.VolumeId = v.info.VolumeId
	}
	return p
}

// SetVolumeInfo implements storageprovisioner.VolumeAccessor. From now on there is a volume
// that must be destroyed some day, so a real inventory must store the record durably.
func (i *inventory) SetVolumeInfo(volumes []params.Volume) ([]params.ErrorResult, error) {
	return record(i, volumes, func(made params.Volume) error {
		v, err := i.volume(made.VolumeTag)
		if err != nil {
			return err
		}
		v.info = &made.Info
		fmt.Printf("inventory: %s is %s, %d MiB\n", made.VolumeTag, made.Info.VolumeId, made.Info.Size)
		return nil
	})
}

// SetVolumeAttachmentInfo implements storageprovisioner.VolumeAccessor.
func (i *inventory) SetVolumeAttachmentInfo(attachments []params.VolumeAttachment) ([]params.ErrorResult, error) {
	return record(i, attachments, func(made params.VolumeAttachment) error {
		_, a, err := i.attachment(params.MachineStorageId{MachineTag: made.MachineTag, AttachmentTag: made.VolumeTag})
		if err != nil {
			return err
		}
		a.info = &made.Info
		fmt.Printf("inventory: %s is on %s: %s\n", made.VolumeTag, made.MachineTag, made.Info.DeviceLink)
		return nil
	})
}

// Life implements storageprovisioner.LifecycleManager.
func (i *inventory) Life(tags []names.Tag) ([]params.LifeResult, error) {
	return each(i, tags, func(tag names.Tag) params.LifeResult {
		v, err := i.volume(tag.String())
		if err != nil {
			return params.LifeResult{Error: params.ServerError(err)}
		}
		return params.LifeResult{Life: v.life}
	})
}

// AttachmentLife implements storageprovisioner.LifecycleManager.
func (i *inventory) AttachmentLife(ids []params.MachineStorageId) ([]params.LifeResult, error) {
	return each(i, ids, func(id params.MachineStorageId) params.LifeResult {
		_, a, err := i.attachment(id)
		if err != nil {
			return params.LifeResult{Error: params.ServerError(err)}
		}
		return params.LifeResult{Life: a.life}
	})
}

// Remove implements storageprovisioner.LifecycleManager. The volumes have been destroyed.
func (i *inventory) Remove(tags []names.Tag) ([]params.ErrorResult, error) {
	return record(i, tags, func(tag names.Tag) error {
		if _, err := i.volume(tag.String()); err != nil {
			return err
		}
		delete(i.volumes, tag.String())
		i.volumeChanged(tag.String())
		fmt.Printf("inventory: %s is gone\n", tag)
		return nil
	})
}

// RemoveAttachments implements storageprovisioner.LifecycleManager. The volumes have been
// detached.
func (i *inventory) RemoveAttachments(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	return record(i, ids, func(id params.MachineStorageId) error {
		v, _, err := i.attachment(id)
		if err != nil {
			return err
		}
		v.attachment = nil
		i.attachmentChanged(id.AttachmentTag, id.MachineTag)
		i.settle(id.AttachmentTag)
		return nil
	})
}

// WatchMachine implements storageprovisioner.MachineAccessor.
func (i *inventory) WatchMachine(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	f := newFeed(struct{}{}, latest)
	i.change(func() {
		i.machineFeeds[machine.String()] = append(living(i.machineFeeds[machine.String()]), f)
	})
	return f, nil
}

// InstanceIds implements storageprovisioner.MachineAccessor.
func (i *inventory) InstanceIds(machines []names.MachineTag) ([]params.StringResult, error) {
	return each(i, machines, func(machine names.MachineTag) (r params.StringResult) {
		switch id, ok := i.machines[machine.String()]; {
		case !ok:
			r.Error = params.ServerError(errors.NotFoundf("machine %s", machine.Id()))
		case id == "":
			r.Error = params.ServerError(errors.NotProvisionedf("machine %s", machine.Id()))
		default:
			r.Result = string(id)
		}
		return r
	})
}

// SetStatus implements storageprovisioner.StatusSetter. This inventory stores no statuses.
func (i *inventory) SetStatus(statuses []params.EntityStatusArgs) error {
	for _, s := range statuses {
		if s.Info != "" {
			s.Status += " (" + s.Info + ")"
		}
		fmt.Printf("status:    %s %s\n", s.Tag, s.Status)
	}
	return nil
}

// WatchForEnvironConfigChanges implements storageprovisioner.EnvironAccessor. The
// configuration of this environment does not change.
func (i *inventory) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	return newFeed(struct{}{}, latest), nil
}

// EnvironConfig implements storageprovisioner.EnvironAccessor.
func (i *inventory) EnvironConfig() (*config.Config, error) { return i.environ, nil }

// WatchBlockDevices implements storageprovisioner.VolumeAccessor. Only a machine's worker uses
// block devices.
func (i *inventory) WatchBlockDevices(names.MachineTag) (watcher.NotifyWatcher, error) {
	return nil, errors.NotSupportedf("block devices in an environment manager")
}

// VolumeBlockDevices implements storageprovisioner.VolumeAccessor.
func (i *inventory) VolumeBlockDevices([]params.MachineStorageId) ([]params.BlockDeviceResult, error) {
	return nil, errors.NotSupportedf("block devices in an environment manager")
}

// The functions below are called with the lock held.

func (i *inventory) volume(tag string) (*volume, error) {
	if v, ok := i.volumes[tag]; ok {
		return v, nil
	}
	return nil, errors.NotFoundf("%s", tag)
}

func (i *inventory) attachment(id params.MachineStorageId) (*volume, *attachment, error) {
	v, ok := i.volumes[id.AttachmentTag]
	if !ok || v.attachment == nil || v.attachment.machine != id.MachineTag {
		return nil, nil, errors.NotFoundf("%s on %s", id.AttachmentTag, id.MachineTag)
	}
	return v, v.attachment, nil
}

// each makes a bulk call that reads: one result for each argument, in order. An error of the
// call as a whole would end the worker.
func each[A, R any](i *inventory, args []A, result func(A) R) ([]R, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	results := make([]R, len(args))
	for n, arg := range args {
		results[n] = result(arg)
	}
	return results, nil
}

// record makes a bulk call that writes.
func record[A any](i *inventory, args []A, write func(A) error) (results []params.ErrorResult, _ error) {
	i.change(func() {
		for _, arg := range args {
			results = append(results, params.ErrorResult{Error: params.ServerError(write(arg))})
		}
	})
	return results, nil
}

// noFilesystems implements the accessors of filesystems: the worker sees that there are none,
// and never asks for one.
type noFilesystems struct {
	storageprovisioner.FilesystemAccessor
}

func (noFilesystems) WatchFilesystems() (watcher.StringsWatcher, error) {
	return newFeed(nil, join[string]), nil
}

func (noFilesystems) WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return newFeed(nil, join[params.MachineStorageId]), nil
}
