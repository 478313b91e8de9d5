package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/watcher/feed"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// inventory is the manager's own state: volumes that are wanted on one machine. The worker reads
// and writes it as storageprovisioner.Accessors. One in a database works in the same way, and
// sends to the feeds when a transaction has succeeded.
type inventory struct {
	storageprovisioner.NoFilesystems
	storageprovisioner.NoBlockDevices
	environ *config.Config

	mu       sync.Mutex
	instance string             // of the machine; empty until it has one, which its feed reports
	volumes  map[string]*volume // by tag

	volumeFeed     feed.IDs[string]
	attachmentFeed feed.IDs[params.MachineStorageId]
	machineFeed    feed.Notify
	changed        feed.Notify // for await
}

type volume struct {
	size             uint64
	life, attachment life.Value // attachment is that of the attachment; empty: it does not exist
	info             params.VolumeInfo
	attached         params.VolumeAttachmentInfo
}

// newInventory returns an inventory in which volumes are wanted, and attached to the machine.
func newInventory(environ *config.Config, wanted ...string) *inventory {
	i := &inventory{environ: environ, instance: "i-0", volumes: make(map[string]*volume)}
	for _, tag := range wanted {
		i.volumes[tag] = &volume{size: 1024, life: life.Alive, attachment: life.Alive}
	}
	return i
}

// remove says that a volume is no longer wanted.
func (i *inventory) remove(tag string) error {
	return i.change(tag, func(v *volume) { v.life, v.attachment = life.Dying, life.Dying })
}

// change changes a volume. It keeps the rule that protects data: a volume is dead, and the worker
// destroys it, only when it is not wanted and attached nowhere.
func (i *inventory) change(tag string, f func(*volume)) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	v, ok := i.volumes[tag]
	if !ok {
		return errors.NotFoundf("%s", tag)
	}
	if f(v); v.life == life.Dying && v.attachment == "" {
		v.life = life.Dead
	}
	i.volumeFeed.Send(tag[len("volume-"):])
	i.attachmentFeed.Send(params.MachineStorageId{MachineTag: machine.String(), AttachmentTag: tag})
	i.changed.Send()
	return nil
}

// await waits until the condition holds for all volumes.
func (i *inventory) await(ctx context.Context, holds func(map[string]*volume) bool) error {
	w := i.changed.Watch()
	defer func() {
		w.Kill()
		_ = w.Wait() // it does not fail
	}()
	for {
		select {
		case <-w.Changes():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		i.mu.Lock()
		ok := holds(i.volumes)
		i.mu.Unlock()
		if ok {
			return nil
		}
	}
}

func (i *inventory) WatchVolumes() (watcher.StringsWatcher, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var ids []string
	for tag := range i.volumes {
		ids = append(ids, tag[len("volume-"):])
	}
	return i.volumeFeed.Watch(ids), nil
}

func (i *inventory) WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var ids []params.MachineStorageId
	for tag := range i.volumes {
		ids = append(ids, params.MachineStorageId{MachineTag: machine.String(), AttachmentTag: tag})
	}
	return i.attachmentFeed.Watch(ids), nil
}

func (i *inventory) WatchMachine(names.MachineTag) (watcher.NotifyWatcher, error) {
	return i.machineFeed.Watch(), nil
}

func (i *inventory) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	return new(feed.Notify).Watch(), nil // it does not change
}

func (i *inventory) EnvironConfig() (*config.Config, error) { return i.environ, nil }

func (i *inventory) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	return read(i, tags, func(tag string, v volume, err error) params.VolumeResult {
		if err == nil && v.info.VolumeId == "" {
			err = errors.NotProvisionedf("%s", tag)
		}
		return params.VolumeResult{Result: params.Volume{VolumeTag: tag, Info: v.info}, Error: params.ServerError(err)}
	})
}

func (i *inventory) VolumeAttachments(ids []params.MachineStorageId) ([]params.VolumeAttachmentResult, error) {
	return read(i, ids, func(tag string, v volume, err error) params.VolumeAttachmentResult {
		if err == nil && v.attached == (params.VolumeAttachmentInfo{}) {
			err = errors.NotProvisionedf("attachment of %s", tag)
		}
		return params.VolumeAttachmentResult{Error: params.ServerError(err), Result: params.VolumeAttachment{
			VolumeTag: tag, MachineTag: machine.String(), Info: v.attached,
		}}
	})
}

func (i *inventory) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	return read(i, tags, func(tag string, v volume, err error) params.VolumeParamsResult {
		a := i.attachmentParams(tag, v)
		return params.VolumeParamsResult{Error: params.ServerError(err), Result: params.VolumeParams{
			VolumeTag: tag, Size: v.size, Provider: "cloud", Attachment: &a,
		}}
	})
}

func (i *inventory) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	return read(i, ids, func(tag string, v volume, err error) params.VolumeAttachmentParamsResult {
		return params.VolumeAttachmentParamsResult{Result: i.attachmentParams(tag, v), Error: params.ServerError(err)}
	})
}

// attachmentParams has empty IDs until they are known; the worker waits for them.
func (i *inventory) attachmentParams(tag string, v volume) params.VolumeAttachmentParams {
	return params.VolumeAttachmentParams{
		VolumeTag: tag, MachineTag: machine.String(), VolumeId: v.info.VolumeId, InstanceId: i.instance, Provider: "cloud",
	}
}

// SetVolumeInfo records a volume that must be destroyed some day, so a real inventory must keep it.
func (i *inventory) SetVolumeInfo(made []params.Volume) ([]params.ErrorResult, error) {
	return write(made, func(made params.Volume) error {
		return i.change(made.VolumeTag, func(v *volume) {
			v.info = made.Info
			fmt.Printf("inventory: %s is %s, %d MiB\n", made.VolumeTag, made.Info.VolumeId, made.Info.Size)
		})
	})
}

func (i *inventory) SetVolumeAttachmentInfo(made []params.VolumeAttachment) ([]params.ErrorResult, error) {
	return write(made, func(made params.VolumeAttachment) error {
		return i.change(made.VolumeTag, func(v *volume) {
			v.attached = made.Info
			fmt.Printf("inventory: %s is on %s: %s\n", made.VolumeTag, made.MachineTag, made.Info.DeviceLink)
		})
	})
}

func (i *inventory) Life(tags []names.Tag) ([]params.LifeResult, error) {
	return read(i, tags, func(_ string, v volume, err error) params.LifeResult {
		return params.LifeResult{Life: v.life, Error: params.ServerError(err)}
	})
}

func (i *inventory) AttachmentLife(ids []params.MachineStorageId) ([]params.LifeResult, error) {
	return read(i, ids, func(_ string, v volume, err error) params.LifeResult {
		return params.LifeResult{Life: v.attachment, Error: params.ServerError(err)}
	})
}

func (i *inventory) RemoveAttachments(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	return write(ids, func(id params.MachineStorageId) error {
		return i.change(id.AttachmentTag, func(v *volume) { v.attachment = "" })
	})
}

func (i *inventory) Remove(tags []names.Tag) ([]params.ErrorResult, error) {
	return write(tags, func(tag names.Tag) error {
		return i.change(tag.String(), func(*volume) {
			delete(i.volumes, tag.String())
			fmt.Printf("inventory: %s is gone\n", tag)
		})
	})
}

func (i *inventory) InstanceIds(machines []names.MachineTag) ([]params.StringResult, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	results := make([]params.StringResult, len(machines))
	for n, m := range machines {
		switch {
		case m != machine:
			results[n].Error = params.ServerError(errors.NotFoundf("%s", m))
		case i.instance == "":
			results[n].Error = params.ServerError(errors.NotProvisionedf("%s", m))
		}
		results[n].Result = i.instance
	}
	return results, nil
}

func (i *inventory) SetStatus(statuses []params.EntityStatusArgs) error {
	for _, s := range statuses {
		fmt.Println("status:   ", s.Tag, s.Status, s.Info)
	}
	return nil
}

// read makes a bulk call that reads volumes or their attachments: one result for each argument, in
// order. The error says what does not exist.
func read[A, R any](i *inventory, args []A, result func(tag string, v volume, err error) R) ([]R, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	results := make([]R, len(args))
	for n, arg := range args {
		id, attachment := any(arg).(params.MachineStorageId)
		tag := id.AttachmentTag
		if !attachment {
			tag = any(arg).(names.Tag).String()
		}
		if v, ok := i.volumes[tag]; ok && !(attachment && v.attachment == "") {
			results[n] = result(tag, *v, nil)
		} else {
			results[n] = result(tag, volume{}, errors.NotFoundf("%v", arg))
		}
	}
	return results, nil
}

// write makes a bulk call that writes.
func write[A any](args []A, one func(A) error) (results []params.ErrorResult, _ error) {
	for _, arg := range args {
		results = append(results, params.ErrorResult{Error: params.ServerError(one(arg))})
	}
	return results, nil
}
