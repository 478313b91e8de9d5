package agentapi

import (
	"encoding/json"
	"slices"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/internal/agentwire"
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
	"VolumeParams":           bulkTags(names.ParseVolumeTag, sp.VolumeAccessor.VolumeParams),
	"VolumeAttachmentParams": bulk(sp.VolumeAccessor.VolumeAttachmentParams),
	"RemoveVolumeParams":     bulkTags(names.ParseVolumeTag, sp.VolumeRemovalAccessor.RemoveVolumeParams),
	"VolumeSizes":            bulkTags(names.ParseVolumeTag, sp.VolumeSizeAccessor.VolumeSizes),

	"SetVolumeInfo":           bulk(sp.VolumeAccessor.SetVolumeInfo),
	"SetVolumeAttachmentInfo": bulk(sp.VolumeAccessor.SetVolumeAttachmentInfo),

	"Filesystems":                bulkTags(names.ParseFilesystemTag, sp.FilesystemAccessor.Filesystems),
	"FilesystemAttachments":      bulk(sp.FilesystemAccessor.FilesystemAttachments),
	"FilesystemParams":           bulkTags(names.ParseFilesystemTag, sp.FilesystemAccessor.FilesystemParams),
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

	"SetMachineBlockDevices": write(diskmanager.BlockDeviceSetter.SetMachineBlockDevices),
	"UpdateMachineBlockDevices": write(func(u diskmanager.BlockDeviceUpdater, all []agentwire.BlockDeviceChanges) error {
		for _, c := range all {
			if err := u.UpdateMachineBlockDevices(c.Changed, c.Gone); err != nil {
				return err
			}
		}
		return nil
	}),
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
	"WatchBlockDevices":            watchMachine(sp.VolumeAccessor.WatchBlockDevices),
	"WatchMachine":                 watchMachine(sp.MachineAccessor.WatchMachine),
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

// watchMachine returns a method that starts a watcher of a machine.
func watchMachine[I, E any, W changer[E]](do func(I, names.MachineTag) (W, error)) watchMethod {
	return watchMethod{offered: offers[I], start: func(agent sp.Accessors, args []string) (source, error) {
		if len(args) != 1 {
			return source{}, errors.NotValidf("%d arguments", len(args))
		}
		machine, err := names.ParseMachineTag(args[0])
		if err != nil {
			return source{}, errors.NewNotValid(err, "reading the request")
		}
		i, ok := capability[I](agent)
		if !ok {
			return source{}, errors.NotImplementedf("this watcher")
		}
		w, err := do(i, machine)
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
