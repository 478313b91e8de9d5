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

// WatchVolumes tells which volumes of the scope are new, have moved on in life, have
// been attached or detached, are wanted larger, or are gone.
func (a *Accessor) WatchVolumes() (watcher.StringsWatcher, error) {
	return a.st.watchEntities(indexPrefix(a.scope, volumeIndex))
}

// Volumes returns what is provisioned of volumes.
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

// SetVolumeInfo records volumes that have been provisioned, or have grown. The id of a
// volume does not change once it is recorded, and its size does not become less.
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
	return err
}

// recordProvisioned records what a provider has made, or made larger. What is new is attached as the
// state says, and nowhere else.
// An ID that is another's is refused: what would be done to the one would be done to the
// other.
func (tx *txn) recordProvisioned(i *instance, e *entity, info entityInfo) error {
	isNew := e.Info == nil
	if err := e.setInfo(info); err != nil {
		return err
	}
	if key := i.providerIDKey(e); isNew && key != "" {
		if other, ok := read[indexEntry](&tx.reader, key); ok {
			return errors.NewAlreadyExists(nil, "ID "+strconv.Quote(info.ID)+" is that of storage "+strconv.Quote(other.Storage))
		}
	}
	tx.setGeneration(e)
	if isNew {
		tx.setAttachmentGeneration(e)
	}
	return nil
}

// maxID is how long a provider's ID may be, in bytes: it is part of a key.
const maxID = 4096

// setInfo records what the entity is provisioned as.
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
		// The result of an earlier call may arrive after a later call has made the
		// entity larger. What is not new any more does not become new again.
		info.Size = max(info.Size, e.Info.Size)
		info.New = info.New && e.Info.New
	}
	e.Info = &info
	return nil
}

// VolumeSizes returns the sizes, in MiB, that volumes are wanted with.
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

// VolumeParams returns what volumes are to be created with. They stay the same for
// the volume's whole life, but for where it is to be attached and for a size that is
// raised.
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
	}
	if e.Attachment != nil && !e.Attachment.detaching() {
		attachment := volumeAttachmentParams(r, i, e)
		// What is only looked for, to be removed, does not wait for a machine.
		if e.Life == life.Alive || attachment.InstanceId != "" {
			p.Attachment = &attachment
		}
	}
	return p
}

// RemoveVolumeParams returns how volumes are to be taken away.
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

// provisionedInfo returns what an entity is provisioned as, nil where it is not. A filesystem on a
// volume that is dead, and that somebody set out to make, is destroyed as if that had been
// recorded: it goes with its volume, but what was noted of it does not. The ID of such
// a filesystem is made of its tag and UUID.
func (i *instance) provisionedInfo(e *entity) *entityInfo {
	if e.Info == nil && e.Attempted && e.Life == life.Dead && e == i.Filesystem && i.Volume != nil {
		return &entityInfo{ID: e.derivedID()}
	}
	return e.Info
}

// WatchBlockDevices tells when the machine's block devices change, or which of them a
// volume is.
func (a *Accessor) WatchBlockDevices(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	if err := a.checkMachine(machine); err != nil {
		return nil, errors.Trace(err)
	}
	return a.st.WatchBlockDevices(machine)
}

// VolumeBlockDevices returns the block devices that attached volumes are on their
// machines.
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

// announceMatch tells the watchers of a machine's block devices that a volume, which
// another worker attaches, may now be found among them. The machine's own worker
// knows of what it attaches itself.
func (tx *txn) announceMatch(volume *entity) {
	if volume.Attachment == nil || volume.Tag.scope() != environScope || !tx.has(machineKey(volume.Attachment.Machine)) {
		return
	}
	tx.increment(matchesKey(volume.Attachment.Machine))
}
