package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// floor does what the worker does, knowing beforehand what that will be: the same
// bulk calls with the same arguments, one after another, and nothing else. What
// the worker costs is told as a multiple of that.
type floor struct {
	measured
	world *world.World
	// state has the accessors.
	state       storageprovisioner.Config
	ctx         envcontext.ProviderCallContext
	volumes     storage.VolumeSource
	filesystems storage.FilesystemSource
	// err is the first error of a call; none is made after it.
	err error
}

func newFloor(w *world.World) (*floor, error) {
	f := &floor{world: w, state: w.Config(), ctx: envcontext.New(context.Background())}
	registry, err := f.state.Registry(nil)
	if err != nil {
		return nil, errors.Trace(err)
	}
	provider, err := registry.StorageProvider(world.ProviderType)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if f.volumes, err = provider.VolumeSource(nil); err != nil {
		return nil, errors.Trace(err)
	}
	f.filesystems, err = provider.FilesystemSource(nil)
	return f, errors.Trace(err)
}

// timed measures calls.
func (f *floor) timed(calls func()) error {
	return f.phase("floor", f.world, func() error {
		calls()
		return f.err
	})
}

// volumesUp is comesUp for volumes.
func (f *floor) volumesUp() error {
	s := f.world.Volumes
	s.Appear()
	ids, attachments := s.IDs(), s.AttachmentIDs()
	return f.timed(func() { f.attachVolumes(ids, attachments) })
}

// volumesLife is wholeLife for volumes.
func (f *floor) volumesLife() error {
	if err := f.volumesUp(); err != nil {
		return err
	}
	return f.goAway(f.world.Volumes, f.detachVolumes, f.removeVolumes)
}

// filesystemsLife is wholeLife for filesystems.
func (f *floor) filesystemsLife() error {
	s := f.world.Filesystems
	s.Appear()
	ids, attachments := s.IDs(), s.AttachmentIDs()
	if err := f.timed(func() { f.attachFilesystems(ids, attachments) }); err != nil {
		return err
	}
	return f.goAway(s, f.detachFilesystems, f.removeFilesystems)
}

// goAway is what all storage comes to in the end.
func (f *floor) goAway(s *world.Storage, detach func([]params.MachineStorageId), remove func([]string)) error {
	ids, attachments := s.IDs(), s.AttachmentIDs()
	s.Detach()
	if err := f.timed(func() { detach(attachments) }); err != nil {
		return err
	}
	s.Die()
	return f.timed(func() { remove(ids) })
}

// machinesUp is machinesOneByOne.
func (f *floor) machinesUp() error {
	tags := make([]names.MachineTag, f.world.Machines())
	for i := range tags {
		f.world.ProvisionMachine(i)
	}
	if err := f.timed(func() {
		for i := range tags {
			tags[i] = names.NewMachineTag(strconv.Itoa(i))
		}
		try(f, f.state.Machines.InstanceIds, tags)
	}); err != nil {
		return err
	}
	return f.volumesUp()
}

// managedUp is devicesOneByOne.
func (f *floor) managedUp() error {
	if err := f.volumesUp(); err != nil {
		return err
	}
	s := f.world.Filesystems
	s.Appear()
	ids, attachments, devices := s.IDs(), s.AttachmentIDs(), f.world.Volumes.AttachmentIDs()
	return f.timed(func() {
		for range devices {
			f.world.ShowDevice()
		}
		try(f, f.state.Volumes.VolumeBlockDevices, devices)
		f.attachFilesystems(ids, attachments)
	})
}

// volumesAgain is restart.
func (f *floor) volumesAgain() error {
	s := f.world.Volumes
	s.Appear()
	ids, attachments := s.IDs(), s.AttachmentIDs()
	return f.timed(func() { f.attachVolumesAgain(ids, attachments) })
}

// setStatus sets one status for all.
func setStatus[T names.Tag](f *floor, tags []T, s status.Status) {
	if f.err != nil {
		return
	}
	f.err = f.state.Status.SetStatus(convert(tags, func(tag T) params.EntityStatusArgs {
		return params.EntityStatusArgs{Tag: tag.String(), Status: string(s)}
	}))
}

// try makes a call, unless one before has failed.
func try[A, R any](f *floor, call func([]A) ([]R, error), args []A) []R {
	if f.err != nil {
		return nil
	}
	results, err := call(args)
	f.err = err
	return results
}

// insist makes a call of a source, and another for what has failed in the first.
func insist[A, R any](
	f *floor, call func(envcontext.ProviderCallContext, []A) ([]R, error), args []A, failed func(R) bool,
) []R {
	results := try(f, provided(f, call), args)
	var places []int
	var again []A
	for i, r := range results {
		if failed(r) {
			places, again = append(places, i), append(again, args[i])
		}
	}
	if len(again) > 0 {
		for i, r := range try(f, provided(f, call), again) {
			results[places[i]] = r
		}
	}
	return results
}

// provided returns a call of a source as one that takes arguments alone.
func provided[A, R any](f *floor, call func(envcontext.ProviderCallContext, []A) ([]R, error)) func([]A) ([]R, error) {
	return func(args []A) ([]R, error) { return call(f.ctx, args) }
}

// convert converts each.
func convert[A, B any](all []A, one func(A) B) []B {
	converted := make([]B, len(all))
	for i, a := range all {
		converted[i] = one(a)
	}
	return converted
}

func asTag[T names.Tag](tag T) names.Tag { return tag }

// idIn returns the id in a tag.
func idIn(tag string) string {
	_, id, _ := strings.Cut(tag, "-")
	return id
}

func attachmentParams(provider, machine, instanceID string) storage.AttachmentParams {
	return storage.AttachmentParams{
		Provider:   storage.ProviderType(provider),
		Machine:    names.NewMachineTag(idIn(machine)),
		InstanceId: instance.Id(instanceID),
	}
}
