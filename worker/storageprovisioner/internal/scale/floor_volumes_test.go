package scale

import (
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// readVolumes reads the lives and infos of volumes.
func (f *floor) readVolumes(tags []names.VolumeTag) {
	try(f, f.state.Life.Life, convert(tags, asTag))
	try(f, f.state.Volumes.Volumes, tags)
}

// readVolumeAttachments reads the lives, infos and parameters of attachments.
func (f *floor) readVolumeAttachments(ids []params.MachineStorageId) []params.VolumeAttachmentParamsResult {
	try(f, f.state.Life.AttachmentLife, ids)
	try(f, f.state.Volumes.VolumeAttachments, ids)
	return try(f, f.state.Volumes.VolumeAttachmentParams, ids)
}

// attachVolumes makes volumes and attaches them.
func (f *floor) attachVolumes(ids []string, attachments []params.MachineStorageId) {
	tags := convert(ids, names.NewVolumeTag)
	f.readVolumes(tags)
	try(f, f.state.Volumes.(storageprovisioner.VolumeSizeAccessor).VolumeSizes, tags)
	wanted := try(f, f.state.Volumes.VolumeParams, tags)
	f.readVolumeAttachments(attachments)

	creations := make([]storage.VolumeParams, len(wanted))
	for i, w := range wanted {
		p := w.Result
		creations[i] = storage.VolumeParams{
			Tag:      tags[i],
			Size:     p.Size,
			Provider: storage.ProviderType(p.Provider),
			Attachment: &storage.VolumeAttachmentParams{
				AttachmentParams: attachmentParams(p.Provider, p.Attachment.MachineTag, p.Attachment.InstanceId),
				Volume:           tags[i],
			},
		}
	}
	made := callWithRetry(f, f.volumes.CreateVolumes, creations, func(r storage.CreateVolumesResult) bool { return r.Error != nil })
	setStatus(f, tags, status.Attaching)
	infos := make([]params.Volume, len(made))
	attaching := make([]storage.VolumeAttachmentParams, len(made))
	for i, m := range made {
		infos[i] = params.Volume{
			VolumeTag: m.Volume.Tag.String(),
			Info:      params.VolumeInfo{VolumeId: m.Volume.VolumeId, Size: m.Volume.Size},
		}
		attaching[i] = *creations[i].Attachment
		attaching[i].VolumeId = m.Volume.VolumeId
	}
	try(f, f.state.Volumes.SetVolumeInfo, infos)
	f.attachMadeVolumes(tags, attaching)
}

// attachVolumesAgain attaches existing volumes that were attached before.
func (f *floor) attachVolumesAgain(ids []string, attachments []params.MachineStorageId) {
	tags := convert(ids, names.NewVolumeTag)
	f.readVolumes(tags)
	try(f, f.state.Volumes.(storageprovisioner.VolumeSizeAccessor).VolumeSizes, tags)
	f.attachMadeVolumes(tags, convert(f.readVolumeAttachments(attachments), volumeAttachmentParams))
}

func (f *floor) attachMadeVolumes(tags []names.VolumeTag, attaching []storage.VolumeAttachmentParams) {
	attached := callWithRetry(f, f.volumes.AttachVolumes, attaching, func(r storage.AttachVolumesResult) bool { return r.Error != nil })
	setStatus(f, tags, status.Attached)
	try(f, f.state.Volumes.SetVolumeAttachmentInfo, convert(attached, func(r storage.AttachVolumesResult) params.VolumeAttachment {
		return params.VolumeAttachment{
			VolumeTag:  r.VolumeAttachment.Volume.String(),
			MachineTag: r.VolumeAttachment.Machine.String(),
			Info:       params.VolumeAttachmentInfo{DeviceName: r.VolumeAttachment.DeviceName},
		}
	}))
}

// detachVolumes detaches volumes whose attachments are dying.
func (f *floor) detachVolumes(attachments []params.MachineStorageId) {
	detaching := convert(f.readVolumeAttachments(attachments), volumeAttachmentParams)
	try(f, provided(f, f.volumes.DetachVolumes), detaching)
	setStatus(f, convert(detaching, func(p storage.VolumeAttachmentParams) names.VolumeTag { return p.Volume }), status.Detached)
	try(f, f.state.Life.RemoveAttachments, attachments)
}

// removeVolumes destroys and removes dead volumes.
func (f *floor) removeVolumes(ids []string) {
	tags := convert(ids, names.NewVolumeTag)
	f.readVolumes(tags)
	removals := try(f, f.state.Volumes.(storageprovisioner.VolumeRemovalAccessor).RemoveVolumeParams, tags)
	try(f, provided(f, f.volumes.DestroyVolumes), convert(removals, func(r params.RemoveVolumeParamsResult) string {
		return r.Result.VolumeId
	}))
	try(f, f.state.Life.Remove, convert(tags, asTag))
}

func volumeAttachmentParams(wanted params.VolumeAttachmentParamsResult) storage.VolumeAttachmentParams {
	p := wanted.Result
	return storage.VolumeAttachmentParams{
		AttachmentParams: attachmentParams(p.Provider, p.MachineTag, p.InstanceId),
		Volume:           names.NewVolumeTag(idIn(p.VolumeTag)),
		VolumeId:         p.VolumeId,
	}
}
