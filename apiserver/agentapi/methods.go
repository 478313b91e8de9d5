package agentapi

import (
	"encoding/json"
	"slices"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/internal/agentwire"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/diskmanager"
	sp "github.com/stowage-io/stowage/worker/storageprovisioner"
)

// method is a method of the accessors, or of one of their optional capabilities.
type method struct {
	// offered reports whether the agent has the capability.
	offered func(sp.Accessors) bool
	// prepare reads the body of a request, and returns the call that it requests. Its error is
	// about the body.
	prepare func(sp.Accessors, []byte) (call func() (any, error), err error)
}

// methods are the methods with a request of their own, by name.
var methods = map[string]method{
	"Volumes":                bulkTags(names.ParseVolumeTag, sp.VolumeAccessor.Volumes),
	"VolumeBlockDevices":     bulk(sp.VolumeAccessor.VolumeBlockDevices),
	"VolumeAttachments":      bulk(sp.VolumeAccessor.VolumeAttachments),
	"VolumeParams":           bulkTags(names.ParseVolumeTag, emptyVolumeParams),
	"NewVolumeParams":        bulkTags(names.ParseVolumeTag, sp.VolumeAccessor.VolumeParams),
	"VolumeAttachmentParams": bulk(sp.VolumeAccessor.VolumeAttachmentParams),
	"RemoveVolumeParams":     bulkTags(names.ParseVolumeTag, sp.VolumeRemovalAccessor.RemoveVolumeParams),
	"VolumeSizes":            bulkTags(names.ParseVolumeTag, sp.VolumeSizeAccessor.VolumeSizes),

	"VolumeContexts":    bulkTags(names.ParseVolumeTag, sp.VolumeContextAccessor.VolumeContexts),
	"SetVolumeContexts": bulk(sp.VolumeContextAccessor.SetVolumeContexts),

	"SetVolumeInfo":           bulk(sp.VolumeAccessor.SetVolumeInfo),
	"SetVolumeAttachmentInfo": bulk(sp.VolumeAccessor.SetVolumeAttachmentInfo),

	"Filesystems":                bulkTags(names.ParseFilesystemTag, sp.FilesystemAccessor.Filesystems),
	"FilesystemAttachments":      bulk(sp.FilesystemAccessor.FilesystemAttachments),
	"FilesystemParams":           bulkTags(names.ParseFilesystemTag, emptyFilesystemParams),
	"NewFilesystemParams":        bulkTags(names.ParseFilesystemTag, sp.FilesystemAccessor.FilesystemParams),
	"FilesystemAttachmentParams": bulk(sp.FilesystemAccessor.FilesystemAttachmentParams),
	"RemoveFilesystemParams":     bulkTags(names.ParseFilesystemTag, sp.FilesystemRemovalAccessor.RemoveFilesystemParams),
	"FilesystemSizes":            bulkTags(names.ParseFilesystemTag, sp.FilesystemSizeAccessor.FilesystemSizes),

	"SetFilesystemInfo":           bulk(sp.FilesystemAccessor.SetFilesystemInfo),
	"SetFilesystemAttachmentInfo": bulk(sp.FilesystemAccessor.SetFilesystemAttachmentInfo),

	"VolumeAttachmentPlans":            bulk(sp.VolumeAttachmentPlanAccessor.VolumeAttachmentPlans),
	"CreateVolumeAttachmentPlans":      bulk(sp.VolumeAttachmentPlanAccessor.CreateVolumeAttachmentPlans),
	"RemoveVolumeAttachmentPlan":       bulk(sp.VolumeAttachmentPlanAccessor.RemoveVolumeAttachmentPlan),
	"SetVolumeAttachmentPlanBlockInfo": bulk(sp.VolumeAttachmentPlanAccessor.SetVolumeAttachmentPlanBlockInfo),

	"Life":              bulkTags(names.ParseTag, sp.LifecycleManager.Life),
	"Remove":            bulkTags(names.ParseTag, sp.LifecycleManager.Remove),
	"AttachmentLife":    bulk(sp.LifecycleManager.AttachmentLife),
	"RemoveAttachments": bulk(sp.LifecycleManager.RemoveAttachments),

	"SetAttempts": bulk(sp.AttemptAccessor.SetAttempts),
	"Attempts":    bulk(sp.AttemptAccessor.Attempts),
	"Owners":      bulkTags(names.ParseTag, sp.OwnerAccessor.Owners),
	"InstanceIds": bulkTags(names.ParseMachineTag, sp.MachineAccessor.InstanceIds),
	"SetStatus":   write(sp.StatusSetter.SetStatus),

	"EnvironConfig": newMethod(func(a sp.EnvironAccessor, _ []struct{}) (any, error) {
		config, err := a.EnvironConfig()
		if err != nil {
			return nil, err
		}
		return config.AllAttrs(), nil
	}),

	"Tasks": newMethod(func(a TaskAccessor, _ []struct{}) (any, error) { return a.Tasks() }),
	"BeginTask": write(each(func(a TaskAccessor, b agentwire.TaskBegin) error {
		return a.BeginTask(b.ID, b.Claim)
	})),
	"AnswerTask": write(each(func(a TaskAccessor, answer agentwire.TaskAnswer) error {
		return a.AnswerTask(answer.ID, answer.Result, answer.Error)
	})),

	"AskedVolumes":       bulk(AskedAccessor.AskedVolumes),
	"AttachAskedVolumes": bulk(AskedAccessor.AttachAskedVolumes),
	"DetachAskedVolumes": bulk(AskedAccessor.DetachAskedVolumes),
	"ResizeAskedVolumes": bulk(AskedAccessor.ResizeAskedVolumes),

	"SetMachineSpace": write(each(func(s SpaceSetter, space map[storage.ProviderType]machine.Space) error {
		return s.SetMachineSpace(space)
	})),

	"SetMachineDrivers": write(each(func(s DriverSetter, drivers map[storage.ProviderType]machine.Driver) error {
		return s.SetMachineDrivers(drivers)
	})),

	"SetMachineBlockDevices": write(diskmanager.BlockDeviceSetter.SetMachineBlockDevices),
	"UpdateMachineBlockDevices": write(each(func(u diskmanager.BlockDeviceUpdater, c agentwire.BlockDeviceChanges) error {
		return u.UpdateMachineBlockDevices(c.Changed, c.Gone)
	})),
}

// emptyVolumeParams returns the parameters of volumes for agents that ignore the origin of a volume: such
// an agent would make an empty one.
func emptyVolumeParams(volumes sp.VolumeAccessor, tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	results, err := volumes.VolumeParams(tags)
	for i := range results {
		if results[i].Result.Origin != nil {
			results[i] = params.VolumeParamsResult{Error: ignoresOrigins("volumes")}
		}
	}
	return results, err
}

// emptyFilesystemParams is emptyVolumeParams for filesystems.
func emptyFilesystemParams(filesystems sp.FilesystemAccessor, tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	results, err := filesystems.FilesystemParams(tags)
	for i := range results {
		if results[i].Result.Origin != nil {
			results[i] = params.FilesystemParamsResult{Error: ignoresOrigins("filesystems")}
		}
	}
	return results, err
}

// ignoresOrigins returns the error for what an older agent cannot make.
func ignoresOrigins(what string) *params.Error {
	return params.ServerError(errors.NewNotSupported(nil, "the agent of the machine cannot make "+what+" with the contents of others: install the version of the server"))
}

// SpaceSetter is an optional capability of an agent's accessors.
type SpaceSetter interface {
	// SetMachineSpace records the space that the machine has for the storage of its providers.
	SetMachineSpace(map[storage.ProviderType]machine.Space) error
}

// DriverSetter is an optional capability of an agent's accessors.
type DriverSetter interface {
	// SetMachineDrivers records what the CSI drivers of the machine say about it, by provider. What it
	// recorded of other providers stays.
	SetMachineDrivers(map[storage.ProviderType]machine.Driver) error
}

// TaskAccessor is an optional capability of an agent's accessors: what the agent is asked to do besides
// provisioning.
type TaskAccessor interface {
	// WatchTasks returns a watcher that notifies when a task of the machine changes.
	WatchTasks() (watcher.NotifyWatcher, error)
	// Tasks returns the tasks that may be begun, or have been begun and not answered.
	Tasks() ([]task.Task, error)
	// BeginTask begins a task. claim identifies the run of the agent, which alone may begin the task
	// again. The error satisfies errors.IsNotFound if the task can no longer be begun.
	BeginTask(id, claim string) error
	// AnswerTask ends a task that was begun. The first answer counts.
	AnswerTask(id string, result task.Result, failure *params.Error) error
}

// AskedAccessor is an optional capability of an agent's accessors: storage that other programs ask for, as
// the machine needs it that uses it. It is identified by the UUIDs of its volumes, or of filesystems that are
// not on volumes.
type AskedAccessor interface {
	// WatchAskedVolume returns a watcher that notifies when a volume may have changed. It does not report
	// changes of block devices.
	WatchAskedVolume(id string) (watcher.NotifyWatcher, error)
	// AskedVolumes returns volumes that the machine may use.
	AskedVolumes(ids []string) ([]params.AskedVolumeResult, error)
	// AttachAskedVolumes requests that volumes be attached to the machine, DetachAskedVolumes that they be
	// detached from it, and ResizeAskedVolumes that volumes which are attached to it grow.
	AttachAskedVolumes(ids []string) ([]params.ErrorResult, error)
	DetachAskedVolumes(ids []string) ([]params.ErrorResult, error)
	ResizeAskedVolumes(sizes []params.AskedVolumeSize) ([]params.ErrorResult, error)
}

// capability returns the accessors of an agent as an interface I.
func capability[I any](agent sp.Accessors) (I, bool) {
	i, ok := agent.(I)
	return i, ok
}

func offers[I any](agent sp.Accessors) bool {
	_, ok := capability[I](agent)
	return ok
}

// newMethod returns a method of the interface I whose arguments have the type A on the wire.
func newMethod[I, A any](do func(I, []A) (any, error)) method {
	return newMethodWith(func(arg A) (A, error) { return arg, nil }, do)
}

// newMethodWith is newMethod with a function that converts an argument.
func newMethodWith[I, W, A any](convert func(W) (A, error), do func(I, []A) (any, error)) method {
	return method{
		offered: offers[I],
		prepare: func(agent sp.Accessors, body []byte) (func() (any, error), error) {
			i, ok := capability[I](agent)
			if !ok {
				return nil, errors.NotImplementedf("this method")
			}
			var call agentwire.Call[W]
			if err := json.Unmarshal(body, &call); err != nil {
				return nil, errors.NewNotValid(err, "reading the request")
			}
			args := make([]A, len(call.Args))
			for n, arg := range call.Args {
				var err error
				if args[n], err = convert(arg); err != nil {
					return nil, errors.NewNotValid(err, "reading the request")
				}
			}
			return func() (any, error) { return do(i, args) }, nil
		},
	}
}

// bulk returns a method whose arguments are sent as they are.
func bulk[I, A, R any](do func(I, []A) ([]R, error)) method {
	return newMethod(func(i I, args []A) (any, error) { return do(i, args) })
}

// bulkTags returns a method whose arguments are tags, which are sent as texts.
func bulkTags[I, A, R any](parse func(string) (A, error), do func(I, []A) ([]R, error)) method {
	return newMethodWith(parse, func(i I, args []A) (any, error) { return do(i, args) })
}

// write returns a method without results.
func write[I, A any](do func(I, []A) error) method {
	return newMethod(func(i I, args []A) (any, error) { return nil, do(i, args) })
}

// each returns a function that calls do for each argument, until it fails.
func each[I, A any](do func(I, A) error) func(I, []A) error {
	return func(i I, args []A) error {
		for _, arg := range args {
			if err := do(i, arg); err != nil {
				return err
			}
		}
		return nil
	}
}

// watchMethod is a method that starts a watcher.
type watchMethod struct {
	offered func(sp.Accessors) bool
	start   func(sp.Accessors, []string) (source, error)
}

// source is a watcher of any kind.
type source struct {
	worker.Worker
	// next waits for the next event until stop is closed. If the watcher has failed, or stop
	// is closed, ok is false.
	next func(stop <-chan struct{}) (event any, ok bool)
}

// watchMethods are the methods that start watchers, by name.
var watchMethods = map[string]watchMethod{
	"WatchVolumes":                 watch(sp.VolumeAccessor.WatchVolumes),
	"WatchVolumeAttachments":       watch(sp.VolumeAccessor.WatchVolumeAttachments),
	"WatchFilesystems":             watch(sp.FilesystemAccessor.WatchFilesystems),
	"WatchFilesystemAttachments":   watch(sp.FilesystemAccessor.WatchFilesystemAttachments),
	"WatchVolumeAttachmentPlans":   watch(sp.VolumeAttachmentPlanAccessor.WatchVolumeAttachmentPlans),
	"WatchRetries":                 watch(sp.RetryAccessor.WatchRetries),
	"WatchFormats":                 watch(sp.FormatAccessor.WatchFormats),
	"WatchForEnvironConfigChanges": watch(sp.EnvironAccessor.WatchForEnvironConfigChanges),
	"WatchTasks":                   watch(TaskAccessor.WatchTasks),
	"WatchBlockDevices":            watchOne(names.ParseMachineTag, sp.VolumeAccessor.WatchBlockDevices),
	"WatchMachine":                 watchOne(names.ParseMachineTag, sp.MachineAccessor.WatchMachine),
	"WatchAskedVolume":             watchOne(asText, AskedAccessor.WatchAskedVolume),
}

// changer is a watcher whose events have the type E.
type changer[E any] interface {
	worker.Worker
	Changes() <-chan E
}

// watch returns a method that starts a watcher without arguments.
func watch[I, E any, W changer[E]](do func(I) (W, error)) watchMethod {
	return watchMethod{offered: offers[I], start: func(agent sp.Accessors, args []string) (source, error) {
		if len(args) != 0 {
			return source{}, errors.NotValidf("%d arguments", len(args))
		}
		i, ok := capability[I](agent)
		if !ok {
			return source{}, errors.NotImplementedf("this watcher")
		}
		w, err := do(i)
		return newSource[E](w, err)
	}}
}

func asText(text string) (string, error) { return text, nil }

// watchOne returns a method that starts a watcher of what its argument names.
func watchOne[I, A, E any, W changer[E]](parse func(string) (A, error), do func(I, A) (W, error)) watchMethod {
	return watchMethod{offered: offers[I], start: func(agent sp.Accessors, args []string) (source, error) {
		if len(args) != 1 {
			return source{}, errors.NotValidf("%d arguments", len(args))
		}
		of, err := parse(args[0])
		if err != nil {
			return source{}, errors.NewNotValid(err, "reading the request")
		}
		i, ok := capability[I](agent)
		if !ok {
			return source{}, errors.NotImplementedf("this watcher")
		}
		w, err := do(i, of)
		return newSource[E](w, err)
	}}
}

func newSource[E any](w changer[E], err error) (source, error) {
	if err != nil {
		return source{}, err
	}
	return source{w, func(stop <-chan struct{}) (any, bool) {
		select {
		case event, ok := <-w.Changes():
			return event, ok
		case <-stop:
			return nil, false
		}
	}}, nil
}

// offeredMethods returns the names of the methods that an agent may call, in order.
func offeredMethods(agent sp.Accessors) []string {
	var found []string
	for name, m := range methods {
		if m.offered(agent) {
			found = append(found, name)
		}
	}
	for name, m := range watchMethods {
		if m.offered(agent) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}
