package storageprovisioner_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// volume is a volume as the state has it; it is provisioned if it has info.
type volume struct {
	life    life.Value
	params  params.VolumeParams
	info    *params.VolumeInfo
	release bool
}

// filesystem is a filesystem as the state has it.
type filesystem struct {
	life    life.Value
	params  params.FilesystemParams
	info    *params.FilesystemInfo
	release bool
}

// volumeAttachment is a volume attachment as the state has it.
type volumeAttachment struct {
	life   life.Value
	params params.VolumeAttachmentParams
	info   *params.VolumeAttachmentInfo
}

// filesystemAttachment is a filesystem attachment as the state has it.
type filesystemAttachment struct {
	life   life.Value
	params params.FilesystemAttachmentParams
	info   *params.FilesystemAttachmentInfo
}

// fakeState is a model in memory. It implements all accessors but the optional
// ones; tests put entities into it, and feed its watchers.
type fakeState struct {
	*journal
	*script

	// busy tells that an accessor call is going on: accessors need not be safe
	// for concurrent use.
	busy       atomic.Int32
	concurrent atomic.Bool

	environWatcher              *fakeWatcher[struct{}]
	deviceWatcher               *fakeWatcher[struct{}]
	volumeWatcher               *fakeWatcher[[]string]
	filesystemWatcher           *fakeWatcher[[]string]
	volumeAttachmentWatcher     *fakeWatcher[[]params.MachineStorageId]
	filesystemAttachmentWatcher *fakeWatcher[[]params.MachineStorageId]

	mu                    sync.Mutex
	started               map[string]*tomb.Tomb
	machineWatchers       map[string]*fakeWatcher[struct{}]
	attrs                 map[string]any
	machines              map[string]string // instance ids; empty where not provisioned
	volumes               map[string]*volume
	filesystems           map[string]*filesystem
	volumeAttachments     map[params.MachineStorageId]*volumeAttachment
	filesystemAttachments map[params.MachineStorageId]*filesystemAttachment
	devices               map[params.MachineStorageId]storage.BlockDevice
}

var (
	_ storageprovisioner.VolumeAccessor     = (*fakeState)(nil)
	_ storageprovisioner.FilesystemAccessor = (*fakeState)(nil)
	_ storageprovisioner.MachineAccessor    = (*fakeState)(nil)
	_ storageprovisioner.LifecycleManager   = (*fakeState)(nil)
	_ storageprovisioner.StatusSetter       = (*fakeState)(nil)
	_ storageprovisioner.EnvironAccessor    = (*fakeState)(nil)

	_ storageprovisioner.VolumeRemovalAccessor     = removing{}
	_ storageprovisioner.FilesystemRemovalAccessor = removing{}
)

func newState(j *journal) *fakeState {
	return &fakeState{
		journal: j,
		script:  newScript(),

		environWatcher:              newWatcher[struct{}](0),
		deviceWatcher:               newWatcher[struct{}](0),
		volumeWatcher:               newWatcher[[]string](100),
		filesystemWatcher:           newWatcher[[]string](100),
		volumeAttachmentWatcher:     newWatcher[[]params.MachineStorageId](100),
		filesystemAttachmentWatcher: newWatcher[[]params.MachineStorageId](100),

		started:         make(map[string]*tomb.Tomb),
		machineWatchers: make(map[string]*fakeWatcher[struct{}]),
		attrs: map[string]any{
			"name": "site", "type": "bare", "uuid": "deadbeef-0bad-400d-8000-4b1d0d06f00d",
		},
		machines:              make(map[string]string),
		volumes:               make(map[string]*volume),
		filesystems:           make(map[string]*filesystem),
		volumeAttachments:     make(map[params.MachineStorageId]*volumeAttachment),
		filesystemAttachments: make(map[params.MachineStorageId]*filesystemAttachment),
		devices:               make(map[params.MachineStorageId]storage.BlockDevice),
	}
}

// update changes the model.
func (s *fakeState) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// begin starts an accessor call; the function it returns ends it.
func (s *fakeState) begin(name string, args any, subjects []string) (func(), error) {
	if s.busy.Add(1) > 1 {
		s.concurrent.Store(true)
	}
	end := func() { s.busy.Add(-1) }
	s.record(name, args, subjects)
	if err := s.enter(context.Background(), name); err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// bulk makes an accessor's bulk call.
func bulk[P, R any](s *fakeState, name string, args []P, subject func(P) string, one func(P) (R, error), fail func(error) R) ([]R, error) {
	subjects := make([]string, len(args))
	for i, p := range args {
		subjects[i] = subject(p)
	}
	end, err := s.begin(name, slices.Clone(args), subjects)
	if err != nil {
		return nil, err
	}
	defer end()
	s.mu.Lock()
	defer s.mu.Unlock()
	results := make([]R, len(args))
	for i, p := range args {
		err := s.item(name, subjects[i])
		if err == nil {
			results[i], err = one(p)
		}
		if err != nil {
			results[i] = fail(err)
		}
	}
	if s.isShort(name) {
		results = results[:len(results)-1]
	}
	return results, nil
}

func subjectOfTag[T names.Tag](tag T) string { return tag.String() }

func subjectOfId(id params.MachineStorageId) string { return id.AttachmentTag + " " + id.MachineTag }

func errorResult(err error) params.ErrorResult {
	return params.ErrorResult{Error: params.ServerError(err)}
}

// watch starts a watcher for an accessor.
func watch[T any](s *fakeState, name string, w *fakeWatcher[T], subjects ...string) (*fakeWatcher[T], error) {
	end, err := s.begin(name, nil, subjects)
	if err != nil {
		return nil, err
	}
	defer end()
	s.mu.Lock()
	defer s.mu.Unlock()
	w.start()
	s.started[fmt.Sprint(name, " ", len(s.started))] = &w.tomb
	return w, nil
}

// living returns the watchers that were started and not stopped.
func (s *fakeState) living() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var living []string
	for name, t := range s.started {
		if t.Alive() {
			living = append(living, name)
		}
	}
	slices.Sort(living)
	return living
}

func (s *fakeState) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	return watch(s, "WatchForEnvironConfigChanges", s.environWatcher)
}

func (s *fakeState) EnvironConfig() (*config.Config, error) {
	end, err := s.begin("EnvironConfig", nil, nil)
	if err != nil {
		return nil, err
	}
	defer end()
	s.mu.Lock()
	defer s.mu.Unlock()
	return config.New(s.attrs)
}

func (s *fakeState) WatchBlockDevices(tag names.MachineTag) (watcher.NotifyWatcher, error) {
	return watch(s, "WatchBlockDevices", s.deviceWatcher)
}

func (s *fakeState) WatchVolumes() (watcher.StringsWatcher, error) {
	return watch(s, "WatchVolumes", s.volumeWatcher)
}

func (s *fakeState) WatchFilesystems() (watcher.StringsWatcher, error) {
	return watch(s, "WatchFilesystems", s.filesystemWatcher)
}

func (s *fakeState) WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return watch(s, "WatchVolumeAttachments", s.volumeAttachmentWatcher)
}

func (s *fakeState) WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return watch(s, "WatchFilesystemAttachments", s.filesystemAttachmentWatcher)
}

func (s *fakeState) WatchMachine(tag names.MachineTag) (watcher.NotifyWatcher, error) {
	w := newWatcher[struct{}](0)
	w.first = func() struct{} { return struct{}{} }
	s.update(func() { s.machineWatchers[tag.String()] = w })
	return watch(s, "WatchMachine", w, tag.String())
}

func (s *fakeState) InstanceIds(tags []names.MachineTag) ([]params.StringResult, error) {
	return bulk(s, "InstanceIds", tags, subjectOfTag,
		func(tag names.MachineTag) (params.StringResult, error) {
			instance, ok := s.machines[tag.String()]
			if !ok {
				return params.StringResult{}, errors.NotFoundf("%s", tag)
			}
			if instance == "" {
				return params.StringResult{}, errors.NotProvisionedf("%s", tag)
			}
			return params.StringResult{Result: instance}, nil
		},
		func(err error) params.StringResult { return params.StringResult{Error: params.ServerError(err)} },
	)
}

func (s *fakeState) SetStatus(args []params.EntityStatusArgs) error {
	var subjects []string
	for _, a := range args {
		subjects = append(subjects, a.Tag)
	}
	end, err := s.begin("SetStatus", slices.Clone(args), subjects)
	if err != nil {
		return err
	}
	end()
	return nil
}

func (s *fakeState) Life(tags []names.Tag) ([]params.LifeResult, error) {
	return bulk(s, "Life", tags, subjectOfTag,
		func(tag names.Tag) (params.LifeResult, error) {
			if v, ok := s.volumes[tag.String()]; ok {
				return params.LifeResult{Life: v.life}, nil
			}
			if f, ok := s.filesystems[tag.String()]; ok {
				return params.LifeResult{Life: f.life}, nil
			}
			return params.LifeResult{}, errors.NotFoundf("%s", tag)
		},
		func(err error) params.LifeResult { return params.LifeResult{Error: params.ServerError(err)} },
	)
}

func (s *fakeState) Remove(tags []names.Tag) ([]params.ErrorResult, error) {
	return bulk(s, "Remove", tags, subjectOfTag,
		func(tag names.Tag) (params.ErrorResult, error) {
			_, isVolume := s.volumes[tag.String()]
			_, isFilesystem := s.filesystems[tag.String()]
			if !isVolume && !isFilesystem {
				return params.ErrorResult{}, errors.NotFoundf("%s", tag)
			}
			delete(s.volumes, tag.String())
			delete(s.filesystems, tag.String())
			return params.ErrorResult{}, nil
		},
		errorResult,
	)
}

func (s *fakeState) AttachmentLife(ids []params.MachineStorageId) ([]params.LifeResult, error) {
	return bulk(s, "AttachmentLife", ids, subjectOfId,
		func(id params.MachineStorageId) (params.LifeResult, error) {
			if a, ok := s.volumeAttachments[id]; ok {
				return params.LifeResult{Life: a.life}, nil
			}
			if a, ok := s.filesystemAttachments[id]; ok {
				return params.LifeResult{Life: a.life}, nil
			}
			return params.LifeResult{}, errors.NotFoundf("attachment %v", id)
		},
		func(err error) params.LifeResult { return params.LifeResult{Error: params.ServerError(err)} },
	)
}

func (s *fakeState) RemoveAttachments(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	return bulk(s, "RemoveAttachments", ids, subjectOfId,
		func(id params.MachineStorageId) (params.ErrorResult, error) {
			_, isVolume := s.volumeAttachments[id]
			_, isFilesystem := s.filesystemAttachments[id]
			if !isVolume && !isFilesystem {
				return params.ErrorResult{}, errors.NotFoundf("attachment %v", id)
			}
			delete(s.volumeAttachments, id)
			delete(s.filesystemAttachments, id)
			return params.ErrorResult{}, nil
		},
		errorResult,
	)
}

func (s *fakeState) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	return bulk(s, "Volumes", tags, subjectOfTag,
		func(tag names.VolumeTag) (params.VolumeResult, error) {
			v, ok := s.volumes[tag.String()]
			if !ok {
				return params.VolumeResult{}, errors.NotFoundf("%s", tag)
			}
			if v.info == nil {
				return params.VolumeResult{}, errors.NotProvisionedf("%s", tag)
			}
			return params.VolumeResult{Result: params.Volume{VolumeTag: tag.String(), Info: *v.info}}, nil
		},
		func(err error) params.VolumeResult { return params.VolumeResult{Error: params.ServerError(err)} },
	)
}

func (s *fakeState) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	return bulk(s, "VolumeParams", tags, subjectOfTag,
		func(tag names.VolumeTag) (params.VolumeParamsResult, error) {
			v, ok := s.volumes[tag.String()]
			if !ok {
				return params.VolumeParamsResult{}, errors.NotFoundf("%s", tag)
			}
			p := v.params
			for id, a := range s.volumeAttachments {
				if id.AttachmentTag == tag.String() {
					attachment := s.completeVolume(a.params)
					p.Attachment = &attachment
				}
			}
			return params.VolumeParamsResult{Result: p}, nil
		},
		func(err error) params.VolumeParamsResult {
			return params.VolumeParamsResult{Error: params.ServerError(err)}
		},
	)
}

// completeVolume fills in what is known of the volume and of the machine.
func (s *fakeState) completeVolume(p params.VolumeAttachmentParams) params.VolumeAttachmentParams {
	p.InstanceId = s.machines[p.MachineTag]
	if v := s.volumes[p.VolumeTag]; v != nil && v.info != nil {
		p.VolumeId = v.info.VolumeId
	}
	return p
}

func (s *fakeState) VolumeAttachments(ids []params.MachineStorageId) ([]params.VolumeAttachmentResult, error) {
	return bulk(s, "VolumeAttachments", ids, subjectOfId,
		func(id params.MachineStorageId) (params.VolumeAttachmentResult, error) {
			a, ok := s.volumeAttachments[id]
			if !ok {
				return params.VolumeAttachmentResult{}, errors.NotFoundf("attachment %v", id)
			}
			if a.info == nil {
				return params.VolumeAttachmentResult{}, errors.NotProvisionedf("attachment %v", id)
			}
			return params.VolumeAttachmentResult{Result: params.VolumeAttachment{
				VolumeTag: id.AttachmentTag, MachineTag: id.MachineTag, Info: *a.info,
			}}, nil
		},
		func(err error) params.VolumeAttachmentResult {
			return params.VolumeAttachmentResult{Error: params.ServerError(err)}
		},
	)
}

func (s *fakeState) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	return bulk(s, "VolumeAttachmentParams", ids, subjectOfId,
		func(id params.MachineStorageId) (params.VolumeAttachmentParamsResult, error) {
			a, ok := s.volumeAttachments[id]
			if !ok {
				return params.VolumeAttachmentParamsResult{}, errors.NotFoundf("attachment %v", id)
			}
			return params.VolumeAttachmentParamsResult{Result: s.completeVolume(a.params)}, nil
		},
		func(err error) params.VolumeAttachmentParamsResult {
			return params.VolumeAttachmentParamsResult{Error: params.ServerError(err)}
		},
	)
}

func (s *fakeState) VolumeBlockDevices(ids []params.MachineStorageId) ([]params.BlockDeviceResult, error) {
	return bulk(s, "VolumeBlockDevices", ids, subjectOfId,
		func(id params.MachineStorageId) (params.BlockDeviceResult, error) {
			device, ok := s.devices[id]
			if !ok {
				return params.BlockDeviceResult{}, errors.NotFoundf("block device of %v", id)
			}
			return params.BlockDeviceResult{Result: device}, nil
		},
		func(err error) params.BlockDeviceResult {
			return params.BlockDeviceResult{Error: params.ServerError(err)}
		},
	)
}

func (s *fakeState) SetVolumeInfo(volumes []params.Volume) ([]params.ErrorResult, error) {
	return bulk(s, "SetVolumeInfo", volumes,
		func(v params.Volume) string { return v.VolumeTag },
		func(v params.Volume) (params.ErrorResult, error) {
			entity, ok := s.volumes[v.VolumeTag]
			if !ok {
				return params.ErrorResult{}, errors.NotFoundf("%s", v.VolumeTag)
			}
			entity.info = &v.Info
			return params.ErrorResult{}, nil
		},
		errorResult,
	)
}

func (s *fakeState) SetVolumeAttachmentInfo(attachments []params.VolumeAttachment) ([]params.ErrorResult, error) {
	return bulk(s, "SetVolumeAttachmentInfo", attachments,
		func(a params.VolumeAttachment) string { return a.VolumeTag + " " + a.MachineTag },
		func(a params.VolumeAttachment) (params.ErrorResult, error) {
			entity, ok := s.volumeAttachments[params.MachineStorageId{MachineTag: a.MachineTag, AttachmentTag: a.VolumeTag}]
			if !ok {
				return params.ErrorResult{}, errors.NotFoundf("attachment of %s to %s", a.VolumeTag, a.MachineTag)
			}
			entity.info = &a.Info
			return params.ErrorResult{}, nil
		},
		errorResult,
	)
}

func (s *fakeState) Filesystems(tags []names.FilesystemTag) ([]params.FilesystemResult, error) {
	return bulk(s, "Filesystems", tags, subjectOfTag,
		func(tag names.FilesystemTag) (params.FilesystemResult, error) {
			f, ok := s.filesystems[tag.String()]
			if !ok {
				return params.FilesystemResult{}, errors.NotFoundf("%s", tag)
			}
			if f.info == nil {
				return params.FilesystemResult{}, errors.NotProvisionedf("%s", tag)
			}
			return params.FilesystemResult{Result: params.Filesystem{
				FilesystemTag: tag.String(), VolumeTag: f.params.VolumeTag, Info: *f.info,
			}}, nil
		},
		func(err error) params.FilesystemResult {
			return params.FilesystemResult{Error: params.ServerError(err)}
		},
	)
}

func (s *fakeState) FilesystemParams(tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	return bulk(s, "FilesystemParams", tags, subjectOfTag,
		func(tag names.FilesystemTag) (params.FilesystemParamsResult, error) {
			f, ok := s.filesystems[tag.String()]
			if !ok {
				return params.FilesystemParamsResult{}, errors.NotFoundf("%s", tag)
			}
			p := f.params
			for id, a := range s.filesystemAttachments {
				if id.AttachmentTag == tag.String() {
					attachment := s.completeFilesystem(a.params)
					p.Attachment = &attachment
				}
			}
			return params.FilesystemParamsResult{Result: p}, nil
		},
		func(err error) params.FilesystemParamsResult {
			return params.FilesystemParamsResult{Error: params.ServerError(err)}
		},
	)
}

// completeFilesystem fills in what is known of the filesystem and of the machine.
func (s *fakeState) completeFilesystem(p params.FilesystemAttachmentParams) params.FilesystemAttachmentParams {
	p.InstanceId = s.machines[p.MachineTag]
	if f := s.filesystems[p.FilesystemTag]; f != nil && f.info != nil {
		p.FilesystemId = f.info.FilesystemId
	}
	return p
}

func (s *fakeState) FilesystemAttachments(ids []params.MachineStorageId) ([]params.FilesystemAttachmentResult, error) {
	return bulk(s, "FilesystemAttachments", ids, subjectOfId,
		func(id params.MachineStorageId) (params.FilesystemAttachmentResult, error) {
			a, ok := s.filesystemAttachments[id]
			if !ok {
				return params.FilesystemAttachmentResult{}, errors.NotFoundf("attachment %v", id)
			}
			if a.info == nil {
				return params.FilesystemAttachmentResult{}, errors.NotProvisionedf("attachment %v", id)
			}
			return params.FilesystemAttachmentResult{Result: params.FilesystemAttachment{
				FilesystemTag: id.AttachmentTag, MachineTag: id.MachineTag, Info: *a.info,
			}}, nil
		},
		func(err error) params.FilesystemAttachmentResult {
			return params.FilesystemAttachmentResult{Error: params.ServerError(err)}
		},
	)
}

func (s *fakeState) FilesystemAttachmentParams(ids []params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error) {
	return bulk(s, "FilesystemAttachmentParams", ids, subjectOfId,
		func(id params.MachineStorageId) (params.FilesystemAttachmentParamsResult, error) {
			a, ok := s.filesystemAttachments[id]
			if !ok {
				return params.FilesystemAttachmentParamsResult{}, errors.NotFoundf("attachment %v", id)
			}
			return params.FilesystemAttachmentParamsResult{Result: s.completeFilesystem(a.params)}, nil
		},
		func(err error) params.FilesystemAttachmentParamsResult {
			return params.FilesystemAttachmentParamsResult{Error: params.ServerError(err)}
		},
	)
}

func (s *fakeState) SetFilesystemInfo(filesystems []params.Filesystem) ([]params.ErrorResult, error) {
	return bulk(s, "SetFilesystemInfo", filesystems,
		func(f params.Filesystem) string { return f.FilesystemTag },
		func(f params.Filesystem) (params.ErrorResult, error) {
			entity, ok := s.filesystems[f.FilesystemTag]
			if !ok {
				return params.ErrorResult{}, errors.NotFoundf("%s", f.FilesystemTag)
			}
			entity.info = &f.Info
			return params.ErrorResult{}, nil
		},
		errorResult,
	)
}

func (s *fakeState) SetFilesystemAttachmentInfo(attachments []params.FilesystemAttachment) ([]params.ErrorResult, error) {
	return bulk(s, "SetFilesystemAttachmentInfo", attachments,
		func(a params.FilesystemAttachment) string { return a.FilesystemTag + " " + a.MachineTag },
		func(a params.FilesystemAttachment) (params.ErrorResult, error) {
			entity, ok := s.filesystemAttachments[params.MachineStorageId{MachineTag: a.MachineTag, AttachmentTag: a.FilesystemTag}]
			if !ok {
				return params.ErrorResult{}, errors.NotFoundf("attachment of %s to %s", a.FilesystemTag, a.MachineTag)
			}
			entity.info = &a.Info
			return params.ErrorResult{}, nil
		},
		errorResult,
	)
}

// removing is a state that says how to remove volumes and filesystems.
type removing struct {
	*fakeState
}

func (s removing) RemoveVolumeParams(tags []names.VolumeTag) ([]params.RemoveVolumeParamsResult, error) {
	return bulk(s.fakeState, "RemoveVolumeParams", tags, subjectOfTag,
		func(tag names.VolumeTag) (params.RemoveVolumeParamsResult, error) {
			v, ok := s.volumes[tag.String()]
			if !ok {
				return params.RemoveVolumeParamsResult{}, errors.NotFoundf("%s", tag)
			}
			if v.info == nil {
				return params.RemoveVolumeParamsResult{}, errors.NotProvisionedf("%s", tag)
			}
			return params.RemoveVolumeParamsResult{Result: params.RemoveVolumeParams{
				Provider: v.params.Provider, VolumeId: v.info.VolumeId, Destroy: !v.release,
			}}, nil
		},
		func(err error) params.RemoveVolumeParamsResult {
			return params.RemoveVolumeParamsResult{Error: params.ServerError(err)}
		},
	)
}

func (s removing) RemoveFilesystemParams(tags []names.FilesystemTag) ([]params.RemoveFilesystemParamsResult, error) {
	return bulk(s.fakeState, "RemoveFilesystemParams", tags, subjectOfTag,
		func(tag names.FilesystemTag) (params.RemoveFilesystemParamsResult, error) {
			f, ok := s.filesystems[tag.String()]
			if !ok {
				return params.RemoveFilesystemParamsResult{}, errors.NotFoundf("%s", tag)
			}
			if f.info == nil {
				return params.RemoveFilesystemParamsResult{}, errors.NotProvisionedf("%s", tag)
			}
			return params.RemoveFilesystemParamsResult{Result: params.RemoveFilesystemParams{
				Provider: f.params.Provider, FilesystemId: f.info.FilesystemId, Destroy: !f.release,
			}}, nil
		},
		func(err error) params.RemoveFilesystemParamsResult {
			return params.RemoveFilesystemParamsResult{Error: params.ServerError(err)}
		},
	)
}
