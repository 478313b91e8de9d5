package modeltest

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/testing/watchertest"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/watcher/feed"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// Capability is an optional capability of accessors.
type Capability int

const (
	// Removal says whether to destroy or release: storageprovisioner.VolumeRemovalAccessor and
	// FilesystemRemovalAccessor.
	Removal Capability = 1 << iota
	// Plans are attachment plans: storageprovisioner.VolumeAttachmentPlanAccessor.
	Plans
	// Sizes are the wanted sizes of provisioned entities:
	// storageprovisioner.VolumeSizeAccessor and FilesystemSizeAccessor.
	Sizes
	// Owners are the owners of volumes and filesystems; the parameters of creations carry them
	// as resource tags.
	Owners
	// Attempts are the noted attempts of workers, as the agent's state keeps them:
	// storageprovisioner.AttemptAccessor.
	Attempts
)

// For returns accessors for one worker of a scope, with the given capabilities and no others.
//
// The accessors of a machine (names.MachineTag) show that machine's attachments and plans, and
// the volumes and filesystems that are attached to it or to nothing. Those of any other scope
// show everything. So the environment's worker and those of machines can share a model; each
// recognizes its own entities by their providers.
func (m *Model) For(scope names.Tag, with ...Capability) storageprovisioner.Accessors {
	a := &accessor{m: m}
	if machine, ok := scope.(names.MachineTag); ok {
		a.machine = machine.String()
	}
	var all Capability
	for _, c := range with {
		all |= c
	}
	a.owners = all&Owners != 0
	o := owned{a, owners{a}}
	r := remembering{a, attempts{a}}
	both := ownedRemembering{o, attempts{a}}
	switch all {
	case 0:
		return a
	case Removal:
		return struct {
			*accessor
			removal
		}{a, removal{a}}
	case Plans:
		return struct {
			*accessor
			plans
		}{a, plans{a}}
	case Removal | Plans:
		return struct {
			*accessor
			removal
			plans
		}{a, removal{a}, plans{a}}
	case Sizes:
		return struct {
			*accessor
			sizes
		}{a, sizes{a}}
	case Removal | Sizes:
		return struct {
			*accessor
			removal
			sizes
		}{a, removal{a}, sizes{a}}
	case Plans | Sizes:
		return struct {
			*accessor
			plans
			sizes
		}{a, plans{a}, sizes{a}}
	case Removal | Plans | Sizes:
		return struct {
			*accessor
			removal
			plans
			sizes
		}{a, removal{a}, plans{a}, sizes{a}}
	case Owners:
		return o
	case Owners | Removal:
		return struct {
			owned
			removal
		}{o, removal{a}}
	case Owners | Plans:
		return struct {
			owned
			plans
		}{o, plans{a}}
	case Owners | Removal | Plans:
		return struct {
			owned
			removal
			plans
		}{o, removal{a}, plans{a}}
	case Owners | Sizes:
		return struct {
			owned
			sizes
		}{o, sizes{a}}
	case Owners | Removal | Sizes:
		return struct {
			owned
			removal
			sizes
		}{o, removal{a}, sizes{a}}
	case Owners | Plans | Sizes:
		return struct {
			owned
			plans
			sizes
		}{o, plans{a}, sizes{a}}
	case Owners | Removal | Plans | Sizes:
		return struct {
			owned
			removal
			plans
			sizes
		}{o, removal{a}, plans{a}, sizes{a}}
	case Attempts:
		return r
	case Attempts | Removal:
		return struct {
			remembering
			removal
		}{r, removal{a}}
	case Attempts | Plans:
		return struct {
			remembering
			plans
		}{r, plans{a}}
	case Attempts | Removal | Plans:
		return struct {
			remembering
			removal
			plans
		}{r, removal{a}, plans{a}}
	case Attempts | Sizes:
		return struct {
			remembering
			sizes
		}{r, sizes{a}}
	case Attempts | Removal | Sizes:
		return struct {
			remembering
			removal
			sizes
		}{r, removal{a}, sizes{a}}
	case Attempts | Plans | Sizes:
		return struct {
			remembering
			plans
			sizes
		}{r, plans{a}, sizes{a}}
	case Attempts | Removal | Plans | Sizes:
		return struct {
			remembering
			removal
			plans
			sizes
		}{r, removal{a}, plans{a}, sizes{a}}
	case Owners | Attempts:
		return both
	case Owners | Attempts | Removal:
		return struct {
			ownedRemembering
			removal
		}{both, removal{a}}
	case Owners | Attempts | Plans:
		return struct {
			ownedRemembering
			plans
		}{both, plans{a}}
	case Owners | Attempts | Removal | Plans:
		return struct {
			ownedRemembering
			removal
			plans
		}{both, removal{a}, plans{a}}
	case Owners | Attempts | Sizes:
		return struct {
			ownedRemembering
			sizes
		}{both, sizes{a}}
	case Owners | Attempts | Removal | Sizes:
		return struct {
			ownedRemembering
			removal
			sizes
		}{both, removal{a}, sizes{a}}
	case Owners | Attempts | Plans | Sizes:
		return struct {
			ownedRemembering
			plans
			sizes
		}{both, plans{a}, sizes{a}}
	default:
		return struct {
			ownedRemembering
			removal
			plans
			sizes
		}{both, removal{a}, plans{a}, sizes{a}}
	}
}

// Config returns the configuration of a worker of a scope on [Model.For]'s accessors. The test
// sets the Clock, the StorageDir in a machine's scope, and whatever else it is about; above
// all the Registry.
func (m *Model) Config(scope names.Tag, with ...Capability) storageprovisioner.Config {
	return storageprovisioner.Config{Scope: scope}.WithAccessors(m.For(scope, with...))
}

// accessor implements everything that is not optional.
type accessor struct {
	m *Model
	// machine is the machine of the scope; empty for the environment.
	machine string
	// owners says that the accessor has the capability [Owners].
	owners bool
	busy   atomic.Int32
}

// begin begins a call. If it returns no error, the caller ends the call with the returned
// function.
func (a *accessor) begin(name string, args any, subjects ...string) (end func(), err error) {
	if a.busy.Add(1) > 1 {
		a.m.overlapped.Store(true)
	}
	noteEnd := a.m.RecordBegin(name, args, subjects...)
	over := func() {
		a.busy.Add(-1)
		noteEnd()
	}
	begun := false
	defer func() {
		if !begun { // it has failed, or the script does not let it return
			over()
		}
	}()
	if err := a.m.Begin(context.Background(), name); err != nil {
		return nil, err
	}
	begun = true
	a.m.mu.Lock()
	return func() {
		a.m.mu.Unlock()
		over()
	}, nil
}

// bulk makes a bulk call: one handles one argument, and result returns the place for its error
// in a result.
func bulk[P, R any](a *accessor, name string, args []P, subject func(P) string, one func(P) (R, error), result func(*R) **params.Error) ([]R, error) {
	subjects := make([]string, len(args))
	for i, p := range args {
		subjects[i] = subject(p)
	}
	end, err := a.begin(name, slices.Clone(args), subjects...)
	if err != nil {
		return nil, err
	}
	defer end()
	results := make([]R, len(args))
	for i, p := range args {
		err := a.m.Item(name, subjects[i])
		if err == nil {
			results[i], err = one(p)
		}
		*result(&results[i]) = params.ServerError(err)
	}
	if a.m.Short(name) && len(results) > 0 {
		results = results[:len(results)-1]
	}
	return results, nil
}

// bulkErrors makes a bulk call whose results are only errors.
func bulkErrors[P any](a *accessor, name string, args []P, subject func(P) string, one func(P) error) ([]params.ErrorResult, error) {
	return bulk(a, name, args, subject,
		func(p P) (params.ErrorResult, error) { return params.ErrorResult{}, one(p) },
		func(r *params.ErrorResult) **params.Error { return &r.Error })
}

func tagOf[T names.Tag](tag T) string { return tag.String() }

// watch returns a watcher: the one that the test feeds, if hand returns it, or the model's
// own.
func watch[W, T any](
	a *accessor, name string, hand func() *watchertest.Watcher[T], own func() *feed.Watcher[T], subjects ...string,
) (W, error) {
	var none W
	end, err := a.begin(name, nil, subjects...)
	if err != nil {
		return none, err
	}
	defer end()
	var w watchertest.Living
	if fed := hand(); fed != nil {
		w = fed
	} else {
		w = own()
	}
	for _, s := range subjects {
		name += " " + s
	}
	a.m.started.Add(name, w)
	return w.(W), nil
}

// seesAttachment reports whether an attachment is in the scope.
func (a *accessor) seesAttachment(id params.MachineStorageId) bool {
	return a.machine == "" || id.MachineTag == a.machine
}

// sees reports whether a volume or filesystem is in the scope.
func (a *accessor) sees(tag string) bool {
	ids := a.m.attachmentsOf(tag)
	return len(ids) == 0 || slices.ContainsFunc(ids, a.seesAttachment)
}

func (a *accessor) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	return watch[watcher.NotifyWatcher](a, "WatchForEnvironConfigChanges", once(&a.m.byHand.EnvironConfig),
		a.m.feeds.environ.Watch)
}

func (a *accessor) EnvironConfig() (*config.Config, error) {
	end, err := a.begin("EnvironConfig", nil)
	if err != nil {
		return nil, err
	}
	defer end()
	return config.New(a.m.attrs)
}

// WatchBlockDevices starts a watcher whose name does not include the machine, because a worker
// has only one.
func (a *accessor) WatchBlockDevices(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return watch[watcher.NotifyWatcher](a, "WatchBlockDevices", once(&a.m.byHand.BlockDevices),
		func() *feed.Watcher[struct{}] { return a.m.feeds.devices.of(machine.String()).Watch() })
}

func (a *accessor) WatchMachine(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return watch[watcher.NotifyWatcher](a, "WatchMachine",
		func() *watchertest.Notify {
			if a.m.byHand.Machine == nil {
				return nil
			}
			return a.m.byHand.Machine(machine)
		},
		func() *feed.Watcher[struct{}] { return a.m.feeds.machines.of(machine.String()).Watch() },
		machine.String())
}

func (a *accessor) WatchVolumes() (watcher.StringsWatcher, error) {
	return watch[watcher.StringsWatcher](a, "WatchVolumes", once(&a.m.byHand.Volumes),
		func() *feed.Watcher[[]string] {
			return a.m.feeds.volumes.WatchOnly(idsOf(a.m.volumes.keys), func(id string) bool {
				return a.sees(names.NewVolumeTag(id).String())
			})
		})
}

func (a *accessor) WatchFilesystems() (watcher.StringsWatcher, error) {
	return watch[watcher.StringsWatcher](a, "WatchFilesystems", once(&a.m.byHand.Filesystems),
		func() *feed.Watcher[[]string] {
			return a.m.feeds.filesystems.WatchOnly(idsOf(a.m.filesystems.keys), func(id string) bool {
				return a.sees(names.NewFilesystemTag(id).String())
			})
		})
}

func (a *accessor) WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return watch[watcher.MachineStorageIdsWatcher](a, "WatchVolumeAttachments", once(&a.m.byHand.VolumeAttachments),
		func() *feed.Watcher[[]params.MachineStorageId] {
			return a.m.feeds.volumeAttachments.WatchOnly(a.m.volumeAttachments.keys, a.seesAttachment)
		})
}

func (a *accessor) WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return watch[watcher.MachineStorageIdsWatcher](a, "WatchFilesystemAttachments", once(&a.m.byHand.FilesystemAttachments),
		func() *feed.Watcher[[]params.MachineStorageId] {
			return a.m.feeds.filesystemAttachments.WatchOnly(a.m.filesystemAttachments.keys, a.seesAttachment)
		})
}

func (a *accessor) InstanceIds(machines []names.MachineTag) ([]params.StringResult, error) {
	return bulk(a, "InstanceIds", machines, tagOf,
		func(machine names.MachineTag) (params.StringResult, error) {
			instance, ok := a.m.machines[machine.String()]
			switch {
			case !ok:
				return params.StringResult{}, errors.NotFoundf("%s", machine)
			case instance == "":
				return params.StringResult{}, errors.NotProvisionedf("%s", machine)
			}
			return params.StringResult{Result: instance}, nil
		},
		func(r *params.StringResult) **params.Error { return &r.Error })
}

func (a *accessor) SetStatus(statuses []params.EntityStatusArgs) error {
	var subjects []string
	for _, s := range statuses {
		subjects = append(subjects, s.Tag)
	}
	end, err := a.begin("SetStatus", slices.Clone(statuses), subjects...)
	if err != nil {
		return err
	}
	defer end()
	for _, s := range statuses {
		if err := a.m.Item("SetStatus", s.Tag); err != nil {
			return err
		}
		a.m.statuses[s.Tag] = append(a.m.statuses[s.Tag], s)
	}
	return nil
}

func (a *accessor) Life(tags []names.Tag) ([]params.LifeResult, error) {
	return bulk(a, "Life", tags, tagOf,
		func(tag names.Tag) (params.LifeResult, error) {
			if !a.m.has(tag.String()) {
				return params.LifeResult{}, errors.NotFoundf("%s", tag)
			}
			return params.LifeResult{Life: *a.m.life(tag.String())}, nil
		},
		func(r *params.LifeResult) **params.Error { return &r.Error })
}

func (a *accessor) AttachmentLife(ids []params.MachineStorageId) ([]params.LifeResult, error) {
	return bulk(a, "AttachmentLife", ids, subject,
		func(id params.MachineStorageId) (params.LifeResult, error) {
			if !a.m.hasAttachment(id) {
				return params.LifeResult{}, noAttachment(id)
			}
			return params.LifeResult{Life: *a.m.attachmentLife(id)}, nil
		},
		func(r *params.LifeResult) **params.Error { return &r.Error })
}

func noAttachment(id params.MachineStorageId) error {
	return errors.NotFoundf("attachment of %s to %s", id.AttachmentTag, id.MachineTag)
}

func (a *accessor) Remove(tags []names.Tag) ([]params.ErrorResult, error) {
	return bulkErrors(a, "Remove", tags, tagOf, func(tag names.Tag) error {
		if !a.m.remove(tag.String()) {
			return errors.NotFoundf("%s", tag)
		}
		a.m.removed = append(a.m.removed, tag.String())
		return nil
	})
}

func (a *accessor) RemoveAttachments(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	return bulkErrors(a, "RemoveAttachments", ids, subject, func(id params.MachineStorageId) error {
		if !a.m.removeAttachment(id) {
			return noAttachment(id)
		}
		a.m.removed = append(a.m.removed, subject(id))
		a.m.attachmentChanged(id)
		a.m.settle(id.AttachmentTag)
		return nil
	})
}

func (a *accessor) VolumeBlockDevices(ids []params.MachineStorageId) ([]params.BlockDeviceResult, error) {
	return bulk(a, "VolumeBlockDevices", ids, subject,
		func(id params.MachineStorageId) (params.BlockDeviceResult, error) {
			device, ok := a.m.devices[id]
			if !ok {
				return params.BlockDeviceResult{}, errors.NotFoundf("block device of %s on %s", id.AttachmentTag, id.MachineTag)
			}
			return params.BlockDeviceResult{Result: device}, nil
		},
		func(r *params.BlockDeviceResult) **params.Error { return &r.Error })
}

// recorded returns the recorded info of an entity.
func recorded[K comparable, P, I any](t *table[K, entity[P, I]], key K, what string) (I, error) {
	var none I
	e, ok := t.rows[key]
	switch {
	case !ok:
		return none, errors.NotFoundf("%s", what)
	case e.info == nil:
		return none, errors.NotProvisionedf("%s", what)
	}
	return *e.info, nil
}

// wanted returns the parameters of an entity.
func wanted[K comparable, P, I any](t *table[K, entity[P, I]], key K, what string) (P, error) {
	e, ok := t.rows[key]
	if !ok {
		var none P
		return none, errors.NotFoundf("%s", what)
	}
	return e.params, nil
}

// record records info of an entity, and reports whether it differs from the recorded info.
func record[K comparable, P any, I comparable](t *table[K, entity[P, I]], key K, what string, info I) (bool, error) {
	e, ok := t.rows[key]
	if !ok {
		return false, errors.NotFoundf("%s", what)
	}
	news := e.info == nil || *e.info != info
	e.info = &info
	return news, nil
}

func (a *accessor) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	return bulk(a, "Volumes", tags, tagOf,
		func(tag names.VolumeTag) (params.VolumeResult, error) {
			info, err := recorded(&a.m.volumes, tag.String(), tag.String())
			return params.VolumeResult{Result: params.Volume{VolumeTag: tag.String(), Info: info}}, err
		},
		func(r *params.VolumeResult) **params.Error { return &r.Error })
}

func (a *accessor) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	return bulk(a, "VolumeParams", tags, tagOf,
		func(tag names.VolumeTag) (params.VolumeParamsResult, error) {
			p, err := wanted(&a.m.volumes, tag.String(), tag.String())
			if err != nil {
				return params.VolumeParamsResult{}, err
			}
			p.Tags = a.resourceTags(tag.String(), p.Tags)
			if id, ok := a.attachment(tag.String()); ok {
				attachment := a.volumeAttachmentParams(a.m.volumeAttachments.rows[id].params)
				p.Attachment = &attachment
			}
			return params.VolumeParamsResult{Result: p}, nil
		},
		func(r *params.VolumeParamsResult) **params.Error { return &r.Error })
}

// attachment returns the attachment that a volume or filesystem is created for, if any. It
// prefers one that is alive and in the scope, and then one in the scope.
func (a *accessor) attachment(tag string) (params.MachineStorageId, bool) {
	ids := a.m.attachmentsOf(tag)
	for _, fits := range []func(params.MachineStorageId) bool{
		func(id params.MachineStorageId) bool {
			return a.seesAttachment(id) && *a.m.attachmentLife(id) == life.Alive
		},
		a.seesAttachment,
		func(params.MachineStorageId) bool { return true },
	} {
		if i := slices.IndexFunc(ids, fits); i >= 0 {
			return ids[i], true
		}
	}
	return params.MachineStorageId{}, false
}

// volumeAttachmentParams fills in the known IDs and the pool.
func (a *accessor) volumeAttachmentParams(p params.VolumeAttachmentParams) params.VolumeAttachmentParams {
	p.InstanceId = a.m.machines[p.MachineTag]
	if info, ok := info(&a.m.volumes, p.VolumeTag); ok {
		p.VolumeId = info.VolumeId
	}
	if v, ok := a.m.volumes.rows[p.VolumeTag]; ok {
		p.Pool = cmp.Or(p.Pool, v.params.Pool)
	}
	return p
}

func (a *accessor) VolumeAttachments(ids []params.MachineStorageId) ([]params.VolumeAttachmentResult, error) {
	return bulk(a, "VolumeAttachments", ids, subject,
		func(id params.MachineStorageId) (params.VolumeAttachmentResult, error) {
			info, err := recorded(&a.m.volumeAttachments, id, noun(id))
			return params.VolumeAttachmentResult{Result: params.VolumeAttachment{
				VolumeTag: id.AttachmentTag, MachineTag: id.MachineTag, Info: info,
			}}, err
		},
		func(r *params.VolumeAttachmentResult) **params.Error { return &r.Error })
}

func noun(id params.MachineStorageId) string {
	return "attachment of " + id.AttachmentTag + " to " + id.MachineTag
}

func (a *accessor) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	return bulk(a, "VolumeAttachmentParams", ids, subject,
		func(id params.MachineStorageId) (params.VolumeAttachmentParamsResult, error) {
			p, err := wanted(&a.m.volumeAttachments, id, noun(id))
			return params.VolumeAttachmentParamsResult{Result: a.volumeAttachmentParams(p)}, err
		},
		func(r *params.VolumeAttachmentParamsResult) **params.Error { return &r.Error })
}

func (a *accessor) SetVolumeInfo(volumes []params.Volume) ([]params.ErrorResult, error) {
	return bulkErrors(a, "SetVolumeInfo", volumes,
		func(v params.Volume) string { return v.VolumeTag },
		func(v params.Volume) error {
			news, err := record(&a.m.volumes, v.VolumeTag, v.VolumeTag, v.Info)
			if news {
				a.m.feeds.volumes.changed(v.VolumeTag)
			}
			delete(a.m.unchecked, v.VolumeTag)
			return err
		})
}

func (a *accessor) SetVolumeAttachmentInfo(attachments []params.VolumeAttachment) ([]params.ErrorResult, error) {
	return bulkErrors(a, "SetVolumeAttachmentInfo", attachments,
		func(v params.VolumeAttachment) string { return subject(at(v.MachineTag, v.VolumeTag)) },
		func(v params.VolumeAttachment) error {
			id := at(v.MachineTag, v.VolumeTag)
			news, err := record(&a.m.volumeAttachments, id, noun(id), v.Info)
			if news {
				a.m.feeds.volumeAttachments.Send(id)
			}
			delete(a.m.unchecked, v.VolumeTag)
			return err
		})
}

func (a *accessor) Filesystems(tags []names.FilesystemTag) ([]params.FilesystemResult, error) {
	return bulk(a, "Filesystems", tags, tagOf,
		func(tag names.FilesystemTag) (params.FilesystemResult, error) {
			p, err := wanted(&a.m.filesystems, tag.String(), tag.String())
			if err != nil {
				return params.FilesystemResult{}, err
			}
			info, err := recorded(&a.m.filesystems, tag.String(), tag.String())
			return params.FilesystemResult{Result: params.Filesystem{
				FilesystemTag: tag.String(), VolumeTag: p.VolumeTag, Info: info,
			}}, err
		},
		func(r *params.FilesystemResult) **params.Error { return &r.Error })
}

func (a *accessor) FilesystemParams(tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	return bulk(a, "FilesystemParams", tags, tagOf,
		func(tag names.FilesystemTag) (params.FilesystemParamsResult, error) {
			p, err := wanted(&a.m.filesystems, tag.String(), tag.String())
			if err != nil {
				return params.FilesystemParamsResult{}, err
			}
			p.Tags = a.resourceTags(tag.String(), p.Tags)
			if id, ok := a.attachment(tag.String()); ok {
				attachment := a.filesystemAttachmentParams(a.m.filesystemAttachments.rows[id].params)
				p.Attachment = &attachment
			}
			return params.FilesystemParamsResult{Result: p}, nil
		},
		func(r *params.FilesystemParamsResult) **params.Error { return &r.Error })
}

// filesystemAttachmentParams fills in the known IDs and the pool.
func (a *accessor) filesystemAttachmentParams(p params.FilesystemAttachmentParams) params.FilesystemAttachmentParams {
	p.InstanceId = a.m.machines[p.MachineTag]
	if info, ok := info(&a.m.filesystems, p.FilesystemTag); ok {
		p.FilesystemId = info.FilesystemId
	}
	if f, ok := a.m.filesystems.rows[p.FilesystemTag]; ok {
		p.Pool = cmp.Or(p.Pool, f.params.Pool)
	}
	return p
}

func (a *accessor) FilesystemAttachments(ids []params.MachineStorageId) ([]params.FilesystemAttachmentResult, error) {
	return bulk(a, "FilesystemAttachments", ids, subject,
		func(id params.MachineStorageId) (params.FilesystemAttachmentResult, error) {
			info, err := recorded(&a.m.filesystemAttachments, id, noun(id))
			return params.FilesystemAttachmentResult{Result: params.FilesystemAttachment{
				FilesystemTag: id.AttachmentTag, MachineTag: id.MachineTag, Info: info,
			}}, err
		},
		func(r *params.FilesystemAttachmentResult) **params.Error { return &r.Error })
}

func (a *accessor) FilesystemAttachmentParams(ids []params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error) {
	return bulk(a, "FilesystemAttachmentParams", ids, subject,
		func(id params.MachineStorageId) (params.FilesystemAttachmentParamsResult, error) {
			p, err := wanted(&a.m.filesystemAttachments, id, noun(id))
			return params.FilesystemAttachmentParamsResult{Result: a.filesystemAttachmentParams(p)}, err
		},
		func(r *params.FilesystemAttachmentParamsResult) **params.Error { return &r.Error })
}

func (a *accessor) SetFilesystemInfo(filesystems []params.Filesystem) ([]params.ErrorResult, error) {
	return bulkErrors(a, "SetFilesystemInfo", filesystems,
		func(f params.Filesystem) string { return f.FilesystemTag },
		func(f params.Filesystem) error {
			news, err := record(&a.m.filesystems, f.FilesystemTag, f.FilesystemTag, f.Info)
			if news {
				a.m.feeds.filesystems.changed(f.FilesystemTag)
			}
			delete(a.m.unchecked, f.FilesystemTag)
			return err
		})
}

func (a *accessor) SetFilesystemAttachmentInfo(attachments []params.FilesystemAttachment) ([]params.ErrorResult, error) {
	return bulkErrors(a, "SetFilesystemAttachmentInfo", attachments,
		func(f params.FilesystemAttachment) string { return subject(at(f.MachineTag, f.FilesystemTag)) },
		func(f params.FilesystemAttachment) error {
			id := at(f.MachineTag, f.FilesystemTag)
			news, err := record(&a.m.filesystemAttachments, id, noun(id), f.Info)
			if news {
				a.m.feeds.filesystemAttachments.Send(id)
			}
			delete(a.m.unchecked, f.FilesystemTag)
			return err
		})
}
