package simulation

import (
	"fmt"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/watcher"
)

// accessors are the accessors of the state with a gate before each call and often one after
// it, so that what is read may be outdated when it arrives.
type accessors struct {
	*state.Accessor
	in *incarnation
}

var errInjected = &params.Error{Message: "injected"}

// reading makes a bulk call that reads.
func reading[A, R any](in *incarnation, name string, args []A, call func([]A) ([]R, error), failed func(*params.Error) R) ([]R, error) {
	l := in.pass(fmt.Sprint(name, args))
	switch {
	case l.lost:
		return nil, errCrashed
	case l.once(300):
		return nil, in.broken(name)
	}
	results, err := call(args)
	for i := range results {
		if l.once(30) {
			results[i] = failed(errInjected)
		}
	}
	if len(results) > 0 && l.once(400) {
		in.excuse()
		results = results[:len(results)-1]
	}
	if l.once(4) && in.pass(name+" has read").lost {
		return nil, errCrashed
	}
	return results, err
}

// writing makes a bulk call that writes all or some of the arguments. It calls told with each
// argument that reached the state, and the error.
func writing[A any](
	in *incarnation, name string, args []A, call func([]A) ([]params.ErrorResult, error), told func(A, *params.Error),
) ([]params.ErrorResult, error) {
	if name != "SetAttempts" {
		// What failed for good is attempted again at each resync.
		in.world.deeds.Add(1)
	}
	l := in.pass(name)
	if l.late || l.lost && l.once(2) {
		return nil, errCrashed
	}
	whole := !l.lost && l.once(200)
	if whole && l.once(2) {
		return nil, in.broken(name)
	}
	results := make([]params.ErrorResult, len(args))
	var some []A
	var places []int
	for i, arg := range args {
		if l.once(12) {
			results[i].Error = errInjected
			continue
		}
		some = append(some, arg)
		places = append(places, i)
	}
	got, err := call(some)
	if err != nil {
		return nil, err
	}
	for i, r := range got {
		results[places[i]] = r
		told(some[i], r.Error)
	}
	switch {
	case l.lost:
		return nil, errCrashed
	case whole:
		return nil, in.broken(name + ", which the state has taken")
	case l.once(400) && len(results) > 0:
		in.excuse()
		return results[1:], nil
	case l.once(4) && in.pass(name+" has written").lost:
		return nil, errCrashed
	}
	return results, nil
}

// The keys by which the simulation knows entities.
func attachmentKey(id params.MachineStorageId) string { return id.AttachmentTag + "@" + id.MachineTag }
func planKey(id params.MachineStorageId) string       { return planOf + attachmentKey(id) }

const planOf = "plan of "

func (a accessors) Life(tags []names.Tag) ([]params.LifeResult, error) {
	results, err := reading(a.in, "Life", tags, a.hastyLife, func(err *params.Error) params.LifeResult {
		return params.LifeResult{Error: err}
	})
	for i, r := range results {
		a.in.hear(tags[i].String(), r.Life, r.Error)
	}
	return results, err
}

func (a accessors) AttachmentLife(ids []params.MachineStorageId) ([]params.LifeResult, error) {
	results, err := reading(a.in, "AttachmentLife", ids, a.hastyAttachmentLife, func(err *params.Error) params.LifeResult {
		return params.LifeResult{Error: err}
	})
	for i, r := range results {
		a.in.hear(attachmentKey(ids[i]), r.Life, r.Error)
	}
	return results, err
}

func (a accessors) VolumeAttachmentPlans(ids []params.MachineStorageId) ([]params.VolumeAttachmentPlanResult, error) {
	results, err := reading(a.in, "VolumeAttachmentPlans", ids, a.hastyPlans,
		func(err *params.Error) params.VolumeAttachmentPlanResult {
			return params.VolumeAttachmentPlanResult{Error: err}
		})
	for i, r := range results {
		a.in.hear(planKey(ids[i]), r.Result.Life, r.Error)
	}
	return results, err
}

func (a accessors) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	results, err := reading(a.in, "Volumes", tags, a.Accessor.Volumes, func(err *params.Error) params.VolumeResult {
		return params.VolumeResult{Error: err}
	})
	for i, r := range results {
		a.in.learn(tags[i], r.Result.Info.VolumeId, r.Error)
	}
	return results, err
}

func (a accessors) Filesystems(tags []names.FilesystemTag) ([]params.FilesystemResult, error) {
	results, err := reading(a.in, "Filesystems", tags, a.Accessor.Filesystems, func(err *params.Error) params.FilesystemResult {
		return params.FilesystemResult{Error: err}
	})
	for i, r := range results {
		a.in.learn(tags[i], r.Result.Info.FilesystemId, r.Error)
	}
	return results, err
}

func (a accessors) VolumeAttachments(ids []params.MachineStorageId) ([]params.VolumeAttachmentResult, error) {
	return reading(a.in, "VolumeAttachments", ids, a.Accessor.VolumeAttachments,
		func(err *params.Error) params.VolumeAttachmentResult {
			return params.VolumeAttachmentResult{Error: err}
		})
}

func (a accessors) FilesystemAttachments(ids []params.MachineStorageId) ([]params.FilesystemAttachmentResult, error) {
	return reading(a.in, "FilesystemAttachments", ids, a.Accessor.FilesystemAttachments,
		func(err *params.Error) params.FilesystemAttachmentResult {
			return params.FilesystemAttachmentResult{Error: err}
		})
}

func (a accessors) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	return reading(a.in, "VolumeParams", tags, a.Accessor.VolumeParams, func(err *params.Error) params.VolumeParamsResult {
		return params.VolumeParamsResult{Error: err}
	})
}

func (a accessors) FilesystemParams(tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	return reading(a.in, "FilesystemParams", tags, a.Accessor.FilesystemParams,
		func(err *params.Error) params.FilesystemParamsResult {
			return params.FilesystemParamsResult{Error: err}
		})
}

func (a accessors) RemoveVolumeParams(tags []names.VolumeTag) ([]params.RemoveVolumeParamsResult, error) {
	return reading(a.in, "RemoveVolumeParams", tags, a.hastyRemoval,
		func(err *params.Error) params.RemoveVolumeParamsResult {
			return params.RemoveVolumeParamsResult{Error: err}
		})
}

func (a accessors) RemoveFilesystemParams(tags []names.FilesystemTag) ([]params.RemoveFilesystemParamsResult, error) {
	return reading(a.in, "RemoveFilesystemParams", tags, a.Accessor.RemoveFilesystemParams,
		func(err *params.Error) params.RemoveFilesystemParamsResult {
			return params.RemoveFilesystemParamsResult{Error: err}
		})
}

func (a accessors) VolumeSizes(tags []names.VolumeTag) ([]params.SizeResult, error) {
	return reading(a.in, "VolumeSizes", tags, a.Accessor.VolumeSizes, func(err *params.Error) params.SizeResult {
		return params.SizeResult{Error: err}
	})
}

func (a accessors) FilesystemSizes(tags []names.FilesystemTag) ([]params.SizeResult, error) {
	return reading(a.in, "FilesystemSizes", tags, a.Accessor.FilesystemSizes, func(err *params.Error) params.SizeResult {
		return params.SizeResult{Error: err}
	})
}

func (a accessors) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	return reading(a.in, "VolumeAttachmentParams", ids, a.Accessor.VolumeAttachmentParams,
		func(err *params.Error) params.VolumeAttachmentParamsResult {
			return params.VolumeAttachmentParamsResult{Error: err}
		})
}

func (a accessors) FilesystemAttachmentParams(ids []params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error) {
	return reading(a.in, "FilesystemAttachmentParams", ids, a.Accessor.FilesystemAttachmentParams,
		func(err *params.Error) params.FilesystemAttachmentParamsResult {
			return params.FilesystemAttachmentParamsResult{Error: err}
		})
}

func (a accessors) VolumeBlockDevices(ids []params.MachineStorageId) ([]params.BlockDeviceResult, error) {
	return reading(a.in, "VolumeBlockDevices", ids, a.Accessor.VolumeBlockDevices,
		func(err *params.Error) params.BlockDeviceResult { return params.BlockDeviceResult{Error: err} })
}

func (a accessors) InstanceIds(machines []names.MachineTag) ([]params.StringResult, error) {
	return reading(a.in, "InstanceIds", machines, a.Accessor.InstanceIds, func(err *params.Error) params.StringResult {
		return params.StringResult{Error: err}
	})
}

func (a accessors) EnvironConfig() (*config.Config, error) {
	l := a.in.pass("EnvironConfig")
	if l.lost {
		return nil, errCrashed
	}
	if l.once(100) {
		return nil, a.in.broken("EnvironConfig")
	}
	return a.Accessor.EnvironConfig()
}

func (a accessors) SetVolumeInfo(volumes []params.Volume) ([]params.ErrorResult, error) {
	return writing(a.in, "SetVolumeInfo", volumes, a.Accessor.SetVolumeInfo, func(v params.Volume, err *params.Error) {
		a.in.recorded(v.VolumeTag, v.Info.VolumeId, err)
	})
}

func (a accessors) SetFilesystemInfo(filesystems []params.Filesystem) ([]params.ErrorResult, error) {
	return writing(a.in, "SetFilesystemInfo", filesystems, a.Accessor.SetFilesystemInfo, func(f params.Filesystem, err *params.Error) {
		a.in.recorded(f.FilesystemTag, f.Info.FilesystemId, err)
	})
}

func (a accessors) SetVolumeAttachmentInfo(all []params.VolumeAttachment) ([]params.ErrorResult, error) {
	return writing(a.in, "SetVolumeAttachmentInfo", all, a.Accessor.SetVolumeAttachmentInfo,
		func(v params.VolumeAttachment, err *params.Error) {
			a.in.removed(attachmentKey(params.MachineStorageId{MachineTag: v.MachineTag, AttachmentTag: v.VolumeTag}), err)
		})
}

func (a accessors) SetFilesystemAttachmentInfo(all []params.FilesystemAttachment) ([]params.ErrorResult, error) {
	return writing(a.in, "SetFilesystemAttachmentInfo", all, a.Accessor.SetFilesystemAttachmentInfo,
		func(f params.FilesystemAttachment, err *params.Error) {
			a.in.removed(attachmentKey(params.MachineStorageId{MachineTag: f.MachineTag, AttachmentTag: f.FilesystemTag}), err)
		})
}

func (a accessors) CreateVolumeAttachmentPlans(all []params.VolumeAttachmentPlan) ([]params.ErrorResult, error) {
	return writing(a.in, "CreateVolumeAttachmentPlans", all, a.Accessor.CreateVolumeAttachmentPlans,
		func(p params.VolumeAttachmentPlan, err *params.Error) {
			a.in.removed(attachmentKey(params.MachineStorageId{MachineTag: p.MachineTag, AttachmentTag: p.VolumeTag}), err)
		})
}

func (a accessors) SetVolumeAttachmentPlanBlockInfo(all []params.VolumeAttachmentPlan) ([]params.ErrorResult, error) {
	return writing(a.in, "SetVolumeAttachmentPlanBlockInfo", all, a.Accessor.SetVolumeAttachmentPlanBlockInfo,
		func(p params.VolumeAttachmentPlan, err *params.Error) {
			a.in.removed(planKey(params.MachineStorageId{MachineTag: p.MachineTag, AttachmentTag: p.VolumeTag}), err)
		})
}

func (a accessors) RemoveVolumeAttachmentPlan(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	return writing(a.in, "RemoveVolumeAttachmentPlan", ids, a.Accessor.RemoveVolumeAttachmentPlan,
		func(params.MachineStorageId, *params.Error) {})
}

func (a accessors) Remove(tags []names.Tag) ([]params.ErrorResult, error) {
	return writing(a.in, "Remove", tags, a.Accessor.Remove, func(names.Tag, *params.Error) {})
}

func (a accessors) RemoveAttachments(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	return writing(a.in, "RemoveAttachments", ids, a.Accessor.RemoveAttachments, func(params.MachineStorageId, *params.Error) {})
}

func (a accessors) Attempts(ids []params.MachineStorageId) ([]params.AttemptResult, error) {
	return reading(a.in, "Attempts", ids, a.Accessor.Attempts, func(err *params.Error) params.AttemptResult {
		return params.AttemptResult{Error: err}
	})
}

func (a accessors) Owners(tags []names.Tag) ([]params.OwnerResult, error) {
	return reading(a.in, "Owners", tags, a.Accessor.Owners, func(err *params.Error) params.OwnerResult {
		return params.OwnerResult{Error: err}
	})
}

func (a accessors) SetAttempts(all []params.Attempt) ([]params.ErrorResult, error) {
	return writing(a.in, "SetAttempts", all, a.Accessor.SetAttempts, func(at params.Attempt, err *params.Error) {
		key := at.Id.AttachmentTag
		if at.Id.MachineTag != "" {
			key = attachmentKey(at.Id)
		}
		a.in.removed(key, err)
		a.in.world.mu.Lock()
		defer a.in.world.mu.Unlock()
		a.in.world.attempted[key] = err == nil && at.Attempted
	})
}

func (a accessors) SetStatus(all []params.EntityStatusArgs) error {
	l := a.in.pass("SetStatus")
	if l.late || l.lost && l.once(2) {
		return errCrashed
	}
	failed := l.once(20)
	var err error
	if failed {
		err = errors.New("injected: SetStatus")
	} else if err = a.Accessor.SetStatus(all); err != nil && !errors.Is(err, errors.NotFound) {
		failed = true
	}
	a.in.world.mu.Lock()
	defer a.in.world.mu.Unlock()
	for _, s := range all {
		a.in.world.untold[s.Tag] = failed
		if !failed {
			delete(a.in.world.lostStatus, s.Tag)
		}
	}
	return err
}

func (a accessors) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	return a.in.notify("the environment", a.Accessor.WatchForEnvironConfigChanges)
}

func (a accessors) WatchMachine(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return a.in.notify(machine.String(), func() (watcher.NotifyWatcher, error) { return a.Accessor.WatchMachine(machine) })
}

func (a accessors) WatchBlockDevices(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return a.in.notify("block devices", func() (watcher.NotifyWatcher, error) { return a.Accessor.WatchBlockDevices(machine) })
}

func (a accessors) WatchVolumes() (watcher.StringsWatcher, error) {
	return a.in.strings("volumes", a.Accessor.WatchVolumes)
}

func (a accessors) WatchFilesystems() (watcher.StringsWatcher, error) {
	return a.in.strings("filesystems", a.Accessor.WatchFilesystems)
}

func (a accessors) WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return a.in.ids("volume attachments", a.Accessor.WatchVolumeAttachments)
}

func (a accessors) WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return a.in.ids("filesystem attachments", a.Accessor.WatchFilesystemAttachments)
}

func (a accessors) WatchVolumeAttachmentPlans() (watcher.MachineStorageIdsWatcher, error) {
	return a.in.ids("plans", a.Accessor.WatchVolumeAttachmentPlans)
}

// gone is the life of an entity that a worker knows the state does not have.
const gone life.Value = "gone"

// hear notes the life of an entity as the state returned it to a worker. The worker knows that
// life once the job that asked has ended.
func (in *incarnation) hear(key string, l life.Value, err *params.Error) {
	in.world.mu.Lock()
	defer in.world.mu.Unlock()
	switch {
	case err == nil:
		in.hearing[key] = l
	case params.IsCodeNotFound(err):
		in.hearing[key] = gone
	}
}

// learn notes the ID of a volume or filesystem as the state returned it to a worker.
func (in *incarnation) learn(tag names.Tag, id string, err *params.Error) {
	in.world.mu.Lock()
	defer in.world.mu.Unlock()
	if err == nil {
		in.learning[tag.String()] = id
	}
}

// removed notes what a worker learns from a write about an entity that is not there.
func (in *incarnation) removed(key string, err *params.Error) {
	if err != nil && params.IsCodeNotFound(err) {
		in.hear(key, "", err)
	}
}

// recorded notes the answer of the state to the info of a volume or filesystem.
func (in *incarnation) recorded(tag, id string, err *params.Error) {
	in.removed(tag, err)
	if err == nil {
		in.world.mu.Lock()
		defer in.world.mu.Unlock()
		in.world.recorded[tag] = id
		in.known[tag] = id
		if t := in.world.things[tag]; t != nil {
			t.stray = false
		}
		if r := in.world.requests[tag]; r != nil {
			r.stray = false
		}
		if tagOf(id) != tag {
			in.world.fail("%s: %s is recorded as %s", in.name, tag, id)
		}
	}
}
