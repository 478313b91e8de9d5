package storageprovisioner

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/watcher/feed"
)

// NoFilesystems is a [FilesystemAccessor] of a state that has no filesystems, for embedding. The
// worker sees that there are none, and asks for none.
type NoFilesystems struct{}

// NoVolumes is a [VolumeAccessor] of a state that has no volumes, for embedding.
type NoVolumes struct{ NoBlockDevices }

// NoBlockDevices has the methods of a [VolumeAccessor] that only a machine's worker calls. A
// state of an environment alone embeds it.
type NoBlockDevices struct{}

var (
	_ FilesystemAccessor = NoFilesystems{}
	_ VolumeAccessor     = NoVolumes{}
)

// WatchBlockDevices implements [VolumeAccessor].
func (NoBlockDevices) WatchBlockDevices(names.MachineTag) (watcher.NotifyWatcher, error) {
	return new(feed.Notify).Watch(), nil
}

// VolumeBlockDevices implements [VolumeAccessor].
func (NoBlockDevices) VolumeBlockDevices(ids []params.MachineStorageId) ([]params.BlockDeviceResult, error) {
	return none(ids, func(e *params.Error) params.BlockDeviceResult { return params.BlockDeviceResult{Error: e} })
}

// WatchVolumes implements [VolumeAccessor].
func (NoVolumes) WatchVolumes() (watcher.StringsWatcher, error) {
	return new(feed.IDs[string]).Watch(nil), nil
}

// WatchVolumeAttachments implements [VolumeAccessor].
func (NoVolumes) WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return new(feed.IDs[params.MachineStorageId]).Watch(nil), nil
}

// Volumes implements [VolumeAccessor].
func (NoVolumes) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	return none(tags, func(e *params.Error) params.VolumeResult { return params.VolumeResult{Error: e} })
}

// VolumeAttachments implements [VolumeAccessor].
func (NoVolumes) VolumeAttachments(ids []params.MachineStorageId) ([]params.VolumeAttachmentResult, error) {
	return none(ids, func(e *params.Error) params.VolumeAttachmentResult { return params.VolumeAttachmentResult{Error: e} })
}

// VolumeParams implements [VolumeAccessor].
func (NoVolumes) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	return none(tags, func(e *params.Error) params.VolumeParamsResult { return params.VolumeParamsResult{Error: e} })
}

// VolumeAttachmentParams implements [VolumeAccessor].
func (NoVolumes) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	return none(ids, func(e *params.Error) params.VolumeAttachmentParamsResult {
		return params.VolumeAttachmentParamsResult{Error: e}
	})
}

// SetVolumeInfo implements [VolumeAccessor].
func (NoVolumes) SetVolumeInfo(volumes []params.Volume) ([]params.ErrorResult, error) {
	return none(volumes, func(e *params.Error) params.ErrorResult { return params.ErrorResult{Error: e} })
}

// SetVolumeAttachmentInfo implements [VolumeAccessor].
func (NoVolumes) SetVolumeAttachmentInfo(attachments []params.VolumeAttachment) ([]params.ErrorResult, error) {
	return none(attachments, func(e *params.Error) params.ErrorResult { return params.ErrorResult{Error: e} })
}

// WatchFilesystems implements [FilesystemAccessor].
func (NoFilesystems) WatchFilesystems() (watcher.StringsWatcher, error) {
	return new(feed.IDs[string]).Watch(nil), nil
}

// WatchFilesystemAttachments implements [FilesystemAccessor].
func (NoFilesystems) WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return new(feed.IDs[params.MachineStorageId]).Watch(nil), nil
}

// Filesystems implements [FilesystemAccessor].
func (NoFilesystems) Filesystems(tags []names.FilesystemTag) ([]params.FilesystemResult, error) {
	return none(tags, func(e *params.Error) params.FilesystemResult { return params.FilesystemResult{Error: e} })
}

// FilesystemAttachments implements [FilesystemAccessor].
func (NoFilesystems) FilesystemAttachments(ids []params.MachineStorageId) ([]params.FilesystemAttachmentResult, error) {
	return none(ids, func(e *params.Error) params.FilesystemAttachmentResult {
		return params.FilesystemAttachmentResult{Error: e}
	})
}

// FilesystemParams implements [FilesystemAccessor].
func (NoFilesystems) FilesystemParams(tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	return none(tags, func(e *params.Error) params.FilesystemParamsResult { return params.FilesystemParamsResult{Error: e} })
}

// FilesystemAttachmentParams implements [FilesystemAccessor].
func (NoFilesystems) FilesystemAttachmentParams(ids []params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error) {
	return none(ids, func(e *params.Error) params.FilesystemAttachmentParamsResult {
		return params.FilesystemAttachmentParamsResult{Error: e}
	})
}

// SetFilesystemInfo implements [FilesystemAccessor].
func (NoFilesystems) SetFilesystemInfo(filesystems []params.Filesystem) ([]params.ErrorResult, error) {
	return none(filesystems, func(e *params.Error) params.ErrorResult { return params.ErrorResult{Error: e} })
}

// SetFilesystemAttachmentInfo implements [FilesystemAccessor].
func (NoFilesystems) SetFilesystemAttachmentInfo(attachments []params.FilesystemAttachment) ([]params.ErrorResult, error) {
	return none(attachments, func(e *params.Error) params.ErrorResult { return params.ErrorResult{Error: e} })
}

// none returns, for each argument of a bulk call, a result that says that the entity does not
// exist.
func none[A, R any](args []A, failed func(*params.Error) R) ([]R, error) {
	results := make([]R, len(args))
	for i, arg := range args {
		results[i] = failed(params.ServerError(errors.NotFoundf("%v", arg)))
	}
	return results, nil
}
