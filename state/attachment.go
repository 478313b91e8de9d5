package state

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/watcher"
)

// WatchVolumeAttachments returns a watcher of the attachments of the scope's volumes. It
// reports those that are new, that have changed in life, or that are removed.
func (a *Accessor) WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return a.st.watchAttachments(indexPrefix(a.scope, volumeAttachmentIndex))
}

// WatchFilesystemAttachments returns a watcher of the attachments of the scope's filesystems.
// It reports those that are new, that have changed in life, or that are removed.
func (a *Accessor) WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return a.st.watchAttachments(indexPrefix(a.scope, filesystemAttachmentIndex))
}

// AttachmentLife returns the lives of attachments.
func (a *Accessor) AttachmentLife(ids []params.MachineStorageId) ([]params.LifeResult, error) {
	return viewEach(a, ids, func(r *reader, id params.MachineStorageId) (life.Value, error) {
		machine, tag, err := a.parseAttachment(id, "")
		if err != nil {
			return "", err
		}
		entry, ok := read[indexEntry](r, attachmentKey(machine, tag))
		if !ok {
			return "", attachmentNotFound(machine, tag)
		}
		return entry.Life, nil
	}, func(l life.Value, err *params.Error) params.LifeResult {
		return params.LifeResult{Life: l, Error: err}
	})
}

// RemoveAttachments removes attachments that are being detached. Removing one that no longer
// exists is not an error.
func (a *Accessor) RemoveAttachments(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	return updateEach(a, ids, func(tx *txn, id params.MachineStorageId) error {
		err := a.changeAttachment(tx, id, "", func(_ *instance, e *entity) error {
			at := e.Attachment.Machine
			tx.setAttachmentGeneration(e)
			return errors.Annotatef(e.removeAttachment(tx.now), "removing attachment of %s to %s", e.Tag, at)
		})
		return ignoreNotFound(err)
	})
}

// VolumeAttachments returns the recorded results of attaching volumes.
func (a *Accessor) VolumeAttachments(ids []params.MachineStorageId) ([]params.VolumeAttachmentResult, error) {
	return viewEach(a, ids, func(r *reader, id params.MachineStorageId) (params.VolumeAttachment, error) {
		_, e, err := a.readAttachment(r, id, names.VolumeTagKind)
		if err != nil {
			return params.VolumeAttachment{}, err
		}
		info := e.Attachment.Info
		if info == nil {
			return params.VolumeAttachment{}, errors.NotProvisionedf("%s", e.describeAttachment())
		}
		return params.VolumeAttachment{
			VolumeTag:  string(e.Tag),
			MachineTag: id.MachineTag,
			Info: params.VolumeAttachmentInfo{
				DeviceName: info.DeviceName,
				DeviceLink: info.DeviceLink,
				BusAddress: info.BusAddress,
				ReadOnly:   info.ReadOnly,
				PlanInfo:   info.PlanInfo.wire(),
			},
		}, nil
	}, func(va params.VolumeAttachment, err *params.Error) params.VolumeAttachmentResult {
		return params.VolumeAttachmentResult{Result: va, Error: err}
	})
}

// FilesystemAttachments returns the recorded results of attaching filesystems.
func (a *Accessor) FilesystemAttachments(ids []params.MachineStorageId) ([]params.FilesystemAttachmentResult, error) {
	return viewEach(a, ids, func(r *reader, id params.MachineStorageId) (params.FilesystemAttachment, error) {
		_, e, err := a.readAttachment(r, id, names.FilesystemTagKind)
		if err != nil {
			return params.FilesystemAttachment{}, err
		}
		info := e.Attachment.Info
		if info == nil {
			return params.FilesystemAttachment{}, errors.NotProvisionedf("%s", e.describeAttachment())
		}
		return params.FilesystemAttachment{
			FilesystemTag: string(e.Tag),
			MachineTag:    id.MachineTag,
			Info:          params.FilesystemAttachmentInfo{MountPoint: info.MountPoint, ReadOnly: info.ReadOnly},
		}, nil
	}, func(fa params.FilesystemAttachment, err *params.Error) params.FilesystemAttachmentResult {
		return params.FilesystemAttachmentResult{Result: fa, Error: err}
	})
}

// SetVolumeAttachmentInfo records that volumes have been attached.
func (a *Accessor) SetVolumeAttachmentInfo(attachments []params.VolumeAttachment) ([]params.ErrorResult, error) {
	return updateEach(a, attachments, func(tx *txn, va params.VolumeAttachment) error {
		id := params.MachineStorageId{MachineTag: va.MachineTag, AttachmentTag: va.VolumeTag}
		return a.setAttachmentInfo(tx, id, names.VolumeTagKind, newVolumeAttachmentInfo(va.Info))
	})
}

func newVolumeAttachmentInfo(info params.VolumeAttachmentInfo) attachmentInfo {
	return attachmentInfo{
		DeviceName: info.DeviceName,
		DeviceLink: info.DeviceLink,
		BusAddress: info.BusAddress,
		ReadOnly:   info.ReadOnly,
		PlanInfo:   newPlanInfo(info.PlanInfo),
	}
}

// SetFilesystemAttachmentInfo records that filesystems have been attached.
func (a *Accessor) SetFilesystemAttachmentInfo(attachments []params.FilesystemAttachment) ([]params.ErrorResult, error) {
	return updateEach(a, attachments, func(tx *txn, fa params.FilesystemAttachment) error {
		id := params.MachineStorageId{MachineTag: fa.MachineTag, AttachmentTag: fa.FilesystemTag}
		return a.setAttachmentInfo(tx, id, names.FilesystemTagKind, attachmentInfo{
			MountPoint: fa.Info.MountPoint,
			ReadOnly:   fa.Info.ReadOnly,
		})
	})
}

func (a *Accessor) setAttachmentInfo(tx *txn, id params.MachineStorageId, kind string, info attachmentInfo) error {
	machine, tag, err := a.ownAttachment(id, kind)
	if err != nil {
		return err
	}
	return tx.setAttachmentInfo(machine, tag, info)
}

func (tx *txn) setAttachmentInfo(machine machineTag, tag entityTag, info attachmentInfo) error {
	return tx.changeAttachment(machine, tag, func(_ *instance, e *entity) error {
		if e.Info == nil {
			return errors.NotProvisionedf("%s", e.Tag)
		}
		e.Attachment.Info = &info
		tx.setGeneration(e)
		tx.setAttachmentGeneration(e)
		if tag.kind() == names.VolumeTagKind {
			tx.announceMatch(e)
		}
		return nil
	})
}

// VolumeAttachmentParams returns the parameters with which to attach and detach volumes.
func (a *Accessor) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	return viewEach(a, ids, func(r *reader, id params.MachineStorageId) (params.VolumeAttachmentParams, error) {
		i, e, err := a.readAttachment(r, id, names.VolumeTagKind)
		if err != nil {
			return params.VolumeAttachmentParams{}, err
		}
		return volumeAttachmentParams(r, i, e), nil
	}, func(p params.VolumeAttachmentParams, err *params.Error) params.VolumeAttachmentParamsResult {
		return params.VolumeAttachmentParamsResult{Result: p, Error: err}
	})
}

func volumeAttachmentParams(r *reader, i *instance, e *entity) params.VolumeAttachmentParams {
	machine := e.Attachment.Machine
	return params.VolumeAttachmentParams{
		VolumeTag:  string(e.Tag),
		MachineTag: string(machine),
		VolumeId:   e.providerID(),
		InstanceId: r.instanceID(machine),
		Provider:   i.Provider,
		ReadOnly:   i.ReadOnly,
		Pool:       r.wirePool(i),
	}
}

// FilesystemAttachmentParams returns the parameters with which to attach and detach
// filesystems.
func (a *Accessor) FilesystemAttachmentParams(ids []params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error) {
	return viewEach(a, ids, func(r *reader, id params.MachineStorageId) (params.FilesystemAttachmentParams, error) {
		i, e, err := a.readAttachment(r, id, names.FilesystemTagKind)
		if err != nil {
			return params.FilesystemAttachmentParams{}, err
		}
		return filesystemAttachmentParams(r, i, e), nil
	}, func(p params.FilesystemAttachmentParams, err *params.Error) params.FilesystemAttachmentParamsResult {
		return params.FilesystemAttachmentParamsResult{Result: p, Error: err}
	})
}

func filesystemAttachmentParams(r *reader, i *instance, e *entity) params.FilesystemAttachmentParams {
	machine := e.Attachment.Machine
	return params.FilesystemAttachmentParams{
		FilesystemTag: string(e.Tag),
		MachineTag:    string(machine),
		FilesystemId:  e.providerID(),
		InstanceId:    r.instanceID(machine),
		Provider:      i.Provider,
		MountPoint:    i.MountPoint,
		ReadOnly:      i.ReadOnly,
		Pool:          r.wirePool(i),
	}
}

// providerID returns the provider's ID of the entity; it is empty until the entity is
// provisioned.
func (e *entity) providerID() string {
	if e.Info == nil {
		return ""
	}
	return e.Info.ID
}

// parseAttachment returns the machine and entity that an ID names. If kind is not empty, the
// entity must be of that kind. The machine must be in the scope, and the volume or filesystem
// must be one that a machine of the scope may have.
func (a *Accessor) parseAttachment(id params.MachineStorageId, kind string) (machineTag, entityTag, error) {
	machine, err := parseMachineTag(id.MachineTag)
	if err != nil {
		return "", "", err
	}
	tag, err := parseEntityTag(id.AttachmentTag)
	if err != nil {
		return "", "", err
	}
	if kind != "" && tag.kind() != kind {
		return "", "", wrongKind(tag, kind)
	}
	if err := a.ownsMachine(machine); err != nil {
		return "", "", err
	}
	if !a.owns(tag) && tag.scope() != environScope {
		return "", "", unauthorized(tag)
	}
	return machine, tag, nil
}

// readAttachment returns the volume or filesystem of an attachment that the accessor may read,
// with its instance.
func (a *Accessor) readAttachment(r *reader, id params.MachineStorageId, kind string) (*instance, *entity, error) {
	machine, tag, err := a.parseAttachment(id, kind)
	if err != nil {
		return nil, nil, err
	}
	entry, ok := read[indexEntry](r, attachmentKey(machine, tag))
	if !ok {
		return nil, nil, attachmentNotFound(machine, tag)
	}
	return r.resolve(entry, tag)
}

// changeAttachment applies fn to the volume or filesystem of an attachment in the scope, and
// to its instance. If kind is not empty, the entity must be of that kind.
func (a *Accessor) changeAttachment(
	tx *txn, id params.MachineStorageId, kind string, fn func(*instance, *entity) error,
) error {
	machine, tag, err := a.ownAttachment(id, kind)
	if err != nil {
		return err
	}
	return tx.changeAttachment(machine, tag, fn)
}

// ownAttachment returns the machine and entity of an attachment in the scope.
func (a *Accessor) ownAttachment(id params.MachineStorageId, kind string) (machineTag, entityTag, error) {
	machine, tag, err := a.parseAttachment(id, kind)
	if err == nil && !a.owns(tag) {
		err = unauthorized(tag)
	}
	return machine, tag, err
}

// changeAttachment applies fn to the volume or filesystem of an attachment, and to
// its instance.
func (tx *txn) changeAttachment(machine machineTag, tag entityTag, fn func(*instance, *entity) error) error {
	entry, ok := read[indexEntry](&tx.reader, attachmentKey(machine, tag))
	if !ok {
		return attachmentNotFound(machine, tag)
	}
	return tx.changeEntry(entry, tag, fn)
}

func attachmentNotFound(machine machineTag, tag entityTag) error {
	return errors.NotFoundf("attachment of %s to %s", tag, machine)
}

func (e *entity) describeAttachment() string {
	return "attachment of " + e.Tag.String() + " to " + e.Attachment.Machine.String()
}
