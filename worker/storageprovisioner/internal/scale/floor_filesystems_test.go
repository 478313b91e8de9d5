package scale

import (
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// readFilesystems reads the lives and infos of filesystems.
func (f *floor) readFilesystems(tags []names.FilesystemTag) {
	try(f, f.state.Life.Life, convert(tags, asTag))
	try(f, f.state.Filesystems.Filesystems, tags)
}

// readFilesystemAttachments reads the lives, infos and parameters of attachments.
func (f *floor) readFilesystemAttachments(ids []params.MachineStorageId) []params.FilesystemAttachmentParamsResult {
	try(f, f.state.Life.AttachmentLife, ids)
	try(f, f.state.Filesystems.FilesystemAttachments, ids)
	return try(f, f.state.Filesystems.FilesystemAttachmentParams, ids)
}

// attachFilesystems makes filesystems and attaches them.
func (f *floor) attachFilesystems(ids []string, attachments []params.MachineStorageId) {
	tags := convert(ids, names.NewFilesystemTag)
	f.readFilesystems(tags)
	try(f, f.state.Filesystems.(storageprovisioner.FilesystemSizeAccessor).FilesystemSizes, tags)
	wanted := try(f, f.state.Filesystems.FilesystemParams, tags)
	f.readFilesystemAttachments(attachments)

	creations := make([]storage.FilesystemParams, len(wanted))
	for i, w := range wanted {
		p := w.Result
		creations[i] = storage.FilesystemParams{
			Tag:      tags[i],
			Size:     p.Size,
			Provider: storage.ProviderType(p.Provider),
			Attachment: &storage.FilesystemAttachmentParams{
				AttachmentParams: attachmentParams(p.Provider, p.Attachment.MachineTag, p.Attachment.InstanceId),
				Filesystem:       tags[i],
				Path:             p.Attachment.MountPoint,
			},
		}
		if p.VolumeTag != "" {
			creations[i].Volume = names.NewVolumeTag(idIn(p.VolumeTag))
		}
	}
	made := try(f, provided(f, f.filesystems.CreateFilesystems), creations)
	setStatus(f, tags, status.Attaching)
	infos := make([]params.Filesystem, len(made))
	attaching := make([]storage.FilesystemAttachmentParams, len(made))
	for i, m := range made {
		infos[i] = params.Filesystem{
			FilesystemTag: m.Filesystem.Tag.String(),
			VolumeTag:     wanted[i].Result.VolumeTag,
			Info:          params.FilesystemInfo{FilesystemId: m.Filesystem.FilesystemId, Size: m.Filesystem.Size},
		}
		attaching[i] = *creations[i].Attachment
		attaching[i].FilesystemId = m.Filesystem.FilesystemId
	}
	try(f, f.state.Filesystems.SetFilesystemInfo, infos)

	attached := try(f, provided(f, f.filesystems.AttachFilesystems), attaching)
	setStatus(f, tags, status.Attached)
	try(f, f.state.Filesystems.SetFilesystemAttachmentInfo,
		convert(attached, func(r storage.AttachFilesystemsResult) params.FilesystemAttachment {
			return params.FilesystemAttachment{
				FilesystemTag: r.FilesystemAttachment.Filesystem.String(),
				MachineTag:    r.FilesystemAttachment.Machine.String(),
				Info:          params.FilesystemAttachmentInfo{MountPoint: r.FilesystemAttachment.Path},
			}
		}))
}

// detachFilesystems detaches filesystems whose attachments are dying.
func (f *floor) detachFilesystems(attachments []params.MachineStorageId) {
	detaching := convert(f.readFilesystemAttachments(attachments), filesystemAttachmentParams)
	try(f, provided(f, f.filesystems.DetachFilesystems), detaching)
	setStatus(f, convert(detaching, func(p storage.FilesystemAttachmentParams) names.FilesystemTag {
		return p.Filesystem
	}), status.Detached)
	try(f, f.state.Life.RemoveAttachments, attachments)
}

// removeFilesystems destroys and removes dead filesystems.
func (f *floor) removeFilesystems(ids []string) {
	tags := convert(ids, names.NewFilesystemTag)
	f.readFilesystems(tags)
	removals := try(f, f.state.Filesystems.(storageprovisioner.FilesystemRemovalAccessor).RemoveFilesystemParams, tags)
	try(f, provided(f, f.filesystems.DestroyFilesystems), convert(removals, func(r params.RemoveFilesystemParamsResult) string {
		return r.Result.FilesystemId
	}))
	try(f, f.state.Life.Remove, convert(tags, asTag))
}

func filesystemAttachmentParams(wanted params.FilesystemAttachmentParamsResult) storage.FilesystemAttachmentParams {
	p := wanted.Result
	return storage.FilesystemAttachmentParams{
		AttachmentParams: attachmentParams(p.Provider, p.MachineTag, p.InstanceId),
		Filesystem:       names.NewFilesystemTag(idIn(p.FilesystemTag)),
		FilesystemId:     p.FilesystemId,
		Path:             p.MountPoint,
	}
}
