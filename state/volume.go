package state

import (
	"fmt"
	"strconv"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
)

// WatchVolumes returns a watcher of the scope's volumes. It reports those that are new, that
// have changed in life, that have been attached or detached, that are to grow, or that are
// removed.
func (a *Accessor) WatchVolumes() (watcher.StringsWatcher, error) {
	return a.st.watchEntities(indexPrefix(a.scope, volumeIndex))
}

// Volumes returns the recorded information of provisioned volumes.
func (a *Accessor) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	return viewEach(a, tags, func(r *reader, tag names.VolumeTag) (params.Volume, error) {
		i, e, err := a.readEntity(r, entityTag(tag.String()))
		if err != nil {
			return params.Volume{}, err
		}
		if e.Info == nil {
			return params.Volume{}, errors.NotProvisionedf("%s", e.Tag)
		}
		return params.Volume{VolumeTag: string(e.Tag), Info: params.VolumeInfo{
			VolumeId:   e.Info.ID,
			HardwareId: e.Info.HardwareID,
			WWN:        e.Info.WWN,
			Pool:       i.Pool,
			Size:       e.Info.Size,
			Persistent: e.Info.Persistent,
			New:        e.Info.New,
		}}, nil
	}, func(v params.Volume, err *params.Error) params.VolumeResult {
		return params.VolumeResult{Result: v, Error: err}
	})
}

// SetVolumeInfo records volumes that have been provisioned, or have grown. The ID of a volume
// does not change once it is recorded, and its size does not shrink.
func (a *Accessor) SetVolumeInfo(volumes []params.Volume) ([]params.ErrorResult, error) {
	return updateEach(a, volumes, func(tx *txn, v params.Volume) error {
		tag, err := parseTagOf(names.VolumeTagKind, v.VolumeTag)
		if err != nil {
			return err
		}
		return a.changeEntity(tx, tag, func(i *instance, e *entity) error {
			return errors.Annotatef(tx.setVolumeInfo(i, e, v.Info), "setting info of %s", tag)
		})
	})
}

func (tx *txn) setVolumeInfo(i *instance, e *entity, info params.VolumeInfo) error {
	grows := e.Info != nil && e.Info.Size < info.Size
	err := tx.recordProvisioned(i, e, entityInfo{
		ID:         info.VolumeId,
		HardwareID: info.HardwareId,
		WWN:        info.WWN,
		Size:       info.Size,
		Persistent: info.Persistent,
		New:        info.New,
	})
	if err == nil {
		tx.announceMatch(e)
	}
	if err == nil && grows {
		tx.announcePlan(e)
	}
	return err
}

// announcePlan lets the machine that has a volume look at the plan again, if there is one.
func (tx *txn) announcePlan(volume *entity) {
	a := volume.Attachment
	if a == nil || a.Plan == nil {
		return
	}
	tx.touch(planKey(a.Machine, volume.Tag))
}

// recordProvisioned records that a provider has made or grown an entity. The attachment of a
// new entity is known: it is attached where the state says, and nowhere else.
// recordProvisioned refuses the ID of another entity, because an operation on the one would
// affect the other.
func (tx *txn) recordProvisioned(i *instance, e *entity, info entityInfo) error {
	isNew := e.Info == nil
	if err := e.setInfo(info); err != nil {
		return err
	}
	if key := i.providerIDKey(e); isNew && key != "" {
		if other, ok := read[indexEntry](&tx.reader, key); ok {
			return errors.NewAlreadyExists(nil, "ID "+strconv.Quote(info.ID)+" already belongs to storage "+strconv.Quote(other.Storage))
		}
	}
	tx.setGeneration(e)
	if isNew {
		tx.setAttachmentGeneration(e)
	}
	return nil
}

// maxID is the longest ID of a provider, in bytes: the ID is part of a key.
const maxID = 4096

// setInfo records the entity's provisioned information.
func (e *entity) setInfo(info entityInfo) error {
	switch {
	case info.ID == "":
		return errors.NotValidf("empty id")
	case len(info.ID) > maxID:
		return errors.NewNotValid(nil, fmt.Sprintf("the ID of %d bytes is too long: at most %d bytes", len(info.ID), maxID))
	case e.Info != nil && e.Info.ID != info.ID:
		return errors.NewNotValid(nil, "it is provisioned as "+strconv.Quote(e.Info.ID)+", and cannot become "+strconv.Quote(info.ID))
	}
	if e.Info != nil {
		// The result of an earlier call may arrive after a later call has grown the entity. A
		// volume that is no longer new does not become new again.
		info.Size = max(info.Size, e.Info.Size)
		info.New = info.New && e.Info.New
	}
	e.Info = &info
	return nil
}

// VolumeSizes returns the wanted sizes of volumes, in MiB.
func (a *Accessor) VolumeSizes(tags []names.VolumeTag) ([]params.SizeResult, error) {
	return wantedSizes(a, tags)
}

func wantedSizes[T names.Tag](a *Accessor, tags []T) ([]params.SizeResult, error) {
	return viewEach(a, tags, func(r *reader, tag T) (uint64, error) {
		i, _, err := a.readEntity(r, entityTag(tag.String()))
		if err != nil {
			return 0, err
		}
		return i.Size, nil
	}, func(size uint64, err *params.Error) params.SizeResult {
		return params.SizeResult{Result: size, Error: err}
	})
}

// VolumeParams returns the parameters with which to create volumes. They stay the same for the
// volume's whole life, except for the attachment and for a raised size.
func (a *Accessor) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	return viewEach(a, tags, func(r *reader, tag names.VolumeTag) (params.VolumeParams, error) {
		i, e, resourceTags, err := a.readWithTags(r, entityTag(tag.String()))
		if err != nil {
			return params.VolumeParams{}, err
		}
		return volumeParams(r, i, e, resourceTags), nil
	}, func(p params.VolumeParams, err *params.Error) params.VolumeParamsResult {
		return params.VolumeParamsResult{Result: p, Error: err}
	})
}

func volumeParams(r *reader, i *instance, e *entity, tags map[string]string) params.VolumeParams {
	p := params.VolumeParams{
		VolumeTag:  string(e.Tag),
		Size:       i.Size,
		Provider:   i.Provider,
		Attributes: i.Attributes,
		Tags:       tags,
		Pool:       r.wirePool(i),
		Origin:     i.volumeOrigin(),
	}
	if e.Attachment != nil && !e.Attachment.detaching() {
		attachment := volumeAttachmentParams(r, i, e)
		// A creation that only looks for a volume, to remove it, does not wait for a machine.
		if e.Life == life.Alive || attachment.InstanceId != "" {
			p.Attachment = &attachment
		}
	}
	return p
}

// RemoveVolumeParams returns the parameters with which to destroy or release volumes.
func (a *Accessor) RemoveVolumeParams(tags []names.VolumeTag) ([]params.RemoveVolumeParamsResult, error) {
	return viewEach(a, tags, func(r *reader, tag names.VolumeTag) (params.RemoveVolumeParams, error) {
		i, e, err := a.readEntity(r, entityTag(tag.String()))
		if err != nil {
			return params.RemoveVolumeParams{}, err
		}
		id, err := i.removalID(e)
		return params.RemoveVolumeParams{Provider: i.Provider, VolumeId: id, Destroy: !i.Release, Pool: r.wirePool(i)}, err
	}, func(p params.RemoveVolumeParams, err *params.Error) params.RemoveVolumeParamsResult {
		return params.RemoveVolumeParamsResult{Result: p, Error: err}
	})
}

// removalID returns the provider's ID of an entity that is to be removed.
func (i *instance) removalID(e *entity) (string, error) {
	info := i.provisionedInfo(e)
	switch {
	case e.Life != life.Dead:
		return "", errors.NewNotValid(nil, e.Tag.String()+" is "+string(e.Life)+", not dead")
	case info == nil:
		return "", errors.NotProvisionedf("%s", e.Tag)
	}
	return info.ID, nil
}

// provisionedInfo returns the recorded information of an entity, or nil if it is not
// provisioned. A dead filesystem on a volume that a worker has attempted to make counts as
// provisioned, so that it is destroyed: destroying its volume does not remove what was noted
// about it. Its ID is made of its tag and UUID.
func (i *instance) provisionedInfo(e *entity) *entityInfo {
	if e.Info == nil && e.Attempted && e.Life == life.Dead && e == i.Filesystem && i.Volume != nil {
		return &entityInfo{ID: e.derivedID()}
	}
	return e.Info
}

// WatchBlockDevices returns a watcher that notifies when the machine's block devices change,
// or when it changes which of them is a volume.
func (a *Accessor) WatchBlockDevices(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	if err := a.checkMachine(machine); err != nil {
		return nil, errors.Trace(err)
	}
	return a.st.WatchBlockDevices(machine)
}

// VolumeBlockDevices returns the block devices of attached volumes on their machines.
func (a *Accessor) VolumeBlockDevices(ids []params.MachineStorageId) ([]params.BlockDeviceResult, error) {
	return viewEach(a, ids, func(r *reader, id params.MachineStorageId) (storage.BlockDevice, error) {
		_, e, err := a.readAttachment(r, id, names.VolumeTagKind)
		if err != nil {
			return storage.BlockDevice{}, err
		}
		if e.Info == nil {
			return storage.BlockDevice{}, errors.NotProvisionedf("%s", e.Tag)
		}
		if e.Attachment.Info == nil {
			return storage.BlockDevice{}, errors.NotProvisionedf("%s", e.describeAttachment())
		}
		device, ok := r.findDevice(e)
		if !ok {
			return storage.BlockDevice{}, errors.NotFoundf("block device of %s", e.describeAttachment())
		}
		return device, nil
	}, func(d storage.BlockDevice, err *params.Error) params.BlockDeviceResult {
		return params.BlockDeviceResult{Result: d, Error: err}
	})
}

// announceMatch notifies the watchers of a machine's block devices that a volume, which
// another worker attaches, may now match one of them. The machine's own worker knows the
// volumes that it attaches itself.
func (tx *txn) announceMatch(volume *entity) {
	if volume.Attachment == nil || volume.Tag.scope() != environScope || !tx.has(machineKey(volume.Attachment.Machine)) {
		return
	}
	tx.increment(matchesKey(volume.Attachment.Machine))
}
