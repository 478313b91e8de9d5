package api

import (
	"context"
	"encoding/json"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/internal/agentwire"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
)

// Accessors implements storageprovisioner.Accessors with all its optional capabilities, and
// diskmanager.BlockDeviceUpdater, by calls to a server. It is safe for concurrent use. Packages
// worker/storageprovisioner and worker/diskmanager describe the methods.
type Accessors struct{ client *Client }

// accessorMethods are the methods of Accessors, in order.
var accessorMethods = []string{
	"AttachmentLife",
	"Attempts",
	"CreateVolumeAttachmentPlans",
	"EnvironConfig",
	"FilesystemAttachmentParams",
	"FilesystemAttachments",
	"FilesystemParams",
	"FilesystemSizes",
	"Filesystems",
	"InstanceIds",
	"Life",
	"Owners",
	"Remove",
	"RemoveAttachments",
	"RemoveFilesystemParams",
	"RemoveVolumeAttachmentPlan",
	"RemoveVolumeParams",
	"SetAttempts",
	"SetFilesystemAttachmentInfo",
	"SetFilesystemInfo",
	"SetMachineBlockDevices",
	"SetStatus",
	"SetVolumeAttachmentInfo",
	"SetVolumeAttachmentPlanBlockInfo",
	"SetVolumeContexts",
	"SetVolumeInfo",
	"UpdateMachineBlockDevices",
	"VolumeAttachmentParams",
	"VolumeAttachmentPlans",
	"VolumeAttachments",
	"VolumeBlockDevices",
	"VolumeContexts",
	"VolumeParams",
	"VolumeSizes",
	"Volumes",
	"WatchBlockDevices",
	"WatchFilesystemAttachments",
	"WatchFilesystems",
	"WatchForEnvironConfigChanges",
	"WatchFormats",
	"WatchMachine",
	"WatchRetries",
	"WatchVolumeAttachmentPlans",
	"WatchVolumeAttachments",
	"WatchVolumes",
}

// The methods of storageprovisioner.VolumeAccessor.

func (a Accessors) WatchBlockDevices(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return watchNotices(a.client, "WatchBlockDevices", machine.String())
}
func (a Accessors) WatchVolumes() (watcher.StringsWatcher, error) {
	return watchIDs[string](a.client, "WatchVolumes")
}
func (a Accessors) WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return watchIDs[params.MachineStorageId](a.client, "WatchVolumeAttachments")
}
func (a Accessors) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	return bulk[params.VolumeResult](a.client, "Volumes", texts(tags))
}
func (a Accessors) VolumeBlockDevices(ids []params.MachineStorageId) ([]params.BlockDeviceResult, error) {
	return bulk[params.BlockDeviceResult](a.client, "VolumeBlockDevices", ids)
}
func (a Accessors) VolumeAttachments(ids []params.MachineStorageId) ([]params.VolumeAttachmentResult, error) {
	return bulk[params.VolumeAttachmentResult](a.client, "VolumeAttachments", ids)
}
func (a Accessors) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	results, err := bulk[params.VolumeParamsResult](a.client, "NewVolumeParams", texts(tags))
	if errors.Is(err, errors.NotImplemented) { // an older server, whose volumes have no origins
		results, err = bulk[params.VolumeParamsResult](a.client, "VolumeParams", texts(tags))
	}
	return results, err
}
func (a Accessors) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	return bulk[params.VolumeAttachmentParamsResult](a.client, "VolumeAttachmentParams", ids)
}
func (a Accessors) SetVolumeInfo(all []params.Volume) ([]params.ErrorResult, error) {
	return bulk[params.ErrorResult](a.client, "SetVolumeInfo", all)
}
func (a Accessors) SetVolumeAttachmentInfo(all []params.VolumeAttachment) ([]params.ErrorResult, error) {
	return bulk[params.ErrorResult](a.client, "SetVolumeAttachmentInfo", all)
}

// The methods of storageprovisioner.FilesystemAccessor.

func (a Accessors) WatchFilesystems() (watcher.StringsWatcher, error) {
	return watchIDs[string](a.client, "WatchFilesystems")
}
func (a Accessors) WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return watchIDs[params.MachineStorageId](a.client, "WatchFilesystemAttachments")
}
func (a Accessors) Filesystems(tags []names.FilesystemTag) ([]params.FilesystemResult, error) {
	return bulk[params.FilesystemResult](a.client, "Filesystems", texts(tags))
}
func (a Accessors) FilesystemAttachments(ids []params.MachineStorageId) ([]params.FilesystemAttachmentResult, error) {
	return bulk[params.FilesystemAttachmentResult](a.client, "FilesystemAttachments", ids)
}
func (a Accessors) FilesystemParams(tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	results, err := bulk[params.FilesystemParamsResult](a.client, "NewFilesystemParams", texts(tags))
	if errors.Is(err, errors.NotImplemented) { // an older server, whose filesystems have no origins
		results, err = bulk[params.FilesystemParamsResult](a.client, "FilesystemParams", texts(tags))
	}
	return results, err
}
func (a Accessors) FilesystemAttachmentParams(ids []params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error) {
	return bulk[params.FilesystemAttachmentParamsResult](a.client, "FilesystemAttachmentParams", ids)
}
func (a Accessors) SetFilesystemInfo(all []params.Filesystem) ([]params.ErrorResult, error) {
	return bulk[params.ErrorResult](a.client, "SetFilesystemInfo", all)
}
func (a Accessors) SetFilesystemAttachmentInfo(all []params.FilesystemAttachment) ([]params.ErrorResult, error) {
	return bulk[params.ErrorResult](a.client, "SetFilesystemAttachmentInfo", all)
}

// The methods of storageprovisioner.VolumeRemovalAccessor.

func (a Accessors) RemoveVolumeParams(tags []names.VolumeTag) ([]params.RemoveVolumeParamsResult, error) {
	return bulk[params.RemoveVolumeParamsResult](a.client, "RemoveVolumeParams", texts(tags))
}

// The methods of storageprovisioner.FilesystemRemovalAccessor.

func (a Accessors) RemoveFilesystemParams(tags []names.FilesystemTag) ([]params.RemoveFilesystemParamsResult, error) {
	return bulk[params.RemoveFilesystemParamsResult](a.client, "RemoveFilesystemParams", texts(tags))
}

// The methods of storageprovisioner.VolumeSizeAccessor.

func (a Accessors) VolumeSizes(tags []names.VolumeTag) ([]params.SizeResult, error) {
	return bulk[params.SizeResult](a.client, "VolumeSizes", texts(tags))
}

// The methods of storageprovisioner.VolumeContextAccessor. An older server does not have them.

func (a Accessors) SetVolumeContexts(all []params.VolumeContext) ([]params.ErrorResult, error) {
	return bulk[params.ErrorResult](a.client, "SetVolumeContexts", all)
}
func (a Accessors) VolumeContexts(tags []names.VolumeTag) ([]params.VolumeContextResult, error) {
	return bulk[params.VolumeContextResult](a.client, "VolumeContexts", texts(tags))
}

// The methods of storageprovisioner.FilesystemSizeAccessor.

func (a Accessors) FilesystemSizes(tags []names.FilesystemTag) ([]params.SizeResult, error) {
	return bulk[params.SizeResult](a.client, "FilesystemSizes", texts(tags))
}

// The methods of storageprovisioner.RetryAccessor.

func (a Accessors) WatchRetries() (watcher.StringsWatcher, error) {
	return watchRequests(a.client, "WatchRetries")
}

// The methods of storageprovisioner.FormatAccessor.

func (a Accessors) WatchFormats() (watcher.StringsWatcher, error) {
	return watchRequests(a.client, "WatchFormats")
}

// The methods of storageprovisioner.VolumeAttachmentPlanAccessor.

func (a Accessors) WatchVolumeAttachmentPlans() (watcher.MachineStorageIdsWatcher, error) {
	return watchIDs[params.MachineStorageId](a.client, "WatchVolumeAttachmentPlans")
}
func (a Accessors) VolumeAttachmentPlans(ids []params.MachineStorageId) ([]params.VolumeAttachmentPlanResult, error) {
	return bulk[params.VolumeAttachmentPlanResult](a.client, "VolumeAttachmentPlans", ids)
}
func (a Accessors) CreateVolumeAttachmentPlans(all []params.VolumeAttachmentPlan) ([]params.ErrorResult, error) {
	return bulk[params.ErrorResult](a.client, "CreateVolumeAttachmentPlans", all)
}
func (a Accessors) RemoveVolumeAttachmentPlan(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	return bulk[params.ErrorResult](a.client, "RemoveVolumeAttachmentPlan", ids)
}
func (a Accessors) SetVolumeAttachmentPlanBlockInfo(all []params.VolumeAttachmentPlan) ([]params.ErrorResult, error) {
	return bulk[params.ErrorResult](a.client, "SetVolumeAttachmentPlanBlockInfo", all)
}

// The methods of storageprovisioner.AttemptAccessor.

func (a Accessors) SetAttempts(all []params.Attempt) ([]params.ErrorResult, error) {
	return bulk[params.ErrorResult](a.client, "SetAttempts", all)
}
func (a Accessors) Attempts(ids []params.MachineStorageId) ([]params.AttemptResult, error) {
	return bulk[params.AttemptResult](a.client, "Attempts", ids)
}

// The methods of storageprovisioner.OwnerAccessor.

func (a Accessors) Owners(tags []names.Tag) ([]params.OwnerResult, error) {
	return bulk[params.OwnerResult](a.client, "Owners", texts(tags))
}

// The methods of storageprovisioner.MachineAccessor.

func (a Accessors) WatchMachine(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return watchNotices(a.client, "WatchMachine", machine.String())
}
func (a Accessors) InstanceIds(tags []names.MachineTag) ([]params.StringResult, error) {
	return bulk[params.StringResult](a.client, "InstanceIds", texts(tags))
}

// The methods of storageprovisioner.LifecycleManager.

func (a Accessors) Life(tags []names.Tag) ([]params.LifeResult, error) {
	return bulk[params.LifeResult](a.client, "Life", texts(tags))
}
func (a Accessors) Remove(tags []names.Tag) ([]params.ErrorResult, error) {
	return bulk[params.ErrorResult](a.client, "Remove", texts(tags))
}
func (a Accessors) AttachmentLife(ids []params.MachineStorageId) ([]params.LifeResult, error) {
	return bulk[params.LifeResult](a.client, "AttachmentLife", ids)
}
func (a Accessors) RemoveAttachments(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	return bulk[params.ErrorResult](a.client, "RemoveAttachments", ids)
}

// The methods of storageprovisioner.StatusSetter.

func (a Accessors) SetStatus(all []params.EntityStatusArgs) error {
	return write(a.client, "SetStatus", all)
}

// The methods of storageprovisioner.EnvironAccessor.

func (a Accessors) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	return watchNotices(a.client, "WatchForEnvironConfigChanges")
}
func (a Accessors) EnvironConfig() (*config.Config, error) {
	attrs, err := call[map[string]any](a.client, "EnvironConfig", []byte(`{"args":[]}`))
	if err != nil {
		return nil, err
	}
	return config.New(attrs)
}

// texts returns the texts of tags.
func texts[T names.Tag](tags []T) []string {
	all := make([]string, len(tags))
	for i, tag := range tags {
		all[i] = tag.String()
	}
	return all
}

// bulk makes a bulk call, as several if it has many arguments.
func bulk[R, A any](c *Client, method string, args []A) ([]R, error) {
	results := make([]R, 0, len(args))
	err := batches(args, func(body []byte, n int) error {
		some, err := call[[]R](c, method, body)
		_, writes := any(some).([]params.ErrorResult)
		switch {
		case err != nil:
			return err
		case some == nil && writes:
			some = make([]R, n) // everything has succeeded
		case len(some) != n:
			return errors.Errorf("%s: the server returns %d results for %d arguments", method, len(some), n)
		}
		results = append(results, some...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// write makes a call without results. It makes all its parts, and returns the first error.
func write[A any](c *Client, method string, args []A) (first error) {
	err := batches(args, func(body []byte, _ int) error {
		_, err := call[json.RawMessage](c, method, body)
		if first == nil {
			first = err
		}
		if errors.Is(err, ErrRefused) || c.ctx.Err() != nil {
			return err
		}
		return nil
	})
	if first == nil {
		first = err
	}
	return first
}

func watchNotices(c *Client, method string, args ...string) (changer[struct{}], error) {
	return startWatch(context.Background(), c, method, args, mergeNotices)
}

func watchIDs[T comparable](c *Client, method string) (changer[[]T], error) {
	return startWatch(context.Background(), c, method, nil, mergeIDs[T]())
}

func watchRequests(c *Client, method string) (changer[[]string], error) {
	return startWatch(context.Background(), c, method, nil, mergeRequests)
}

// replace makes a call without results, which cannot be split.
func replace[A any](c *Client, method string, args []A) error {
	body, err := encode(args)
	if err != nil {
		return err
	}
	_, err = call[json.RawMessage](c, method, body)
	return err
}

// The methods of diskmanager.BlockDeviceUpdater.

// SetMachineBlockDevices records all block devices of the agent's machine.
func (a Accessors) SetMachineBlockDevices(devices []storage.BlockDevice) error {
	return replace(a.client, "SetMachineBlockDevices", devices)
}

// UpdateMachineBlockDevices records what has changed.
func (a Accessors) UpdateMachineBlockDevices(changed []storage.BlockDevice, gone []string) error {
	return replace(a.client, "UpdateMachineBlockDevices", []agentwire.BlockDeviceChanges{{Changed: changed, Gone: gone}})
}
