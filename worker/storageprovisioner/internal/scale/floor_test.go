package scale

import (
	"context"
	"strconv"
	"strings"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// floor does what the worker does, but knows in advance what that will be: it makes the same
// bulk calls with the same arguments, one after another, and nothing else. The cost of the
// worker is reported as a multiple of the floor.
type floor struct {
	measured
	world *world.World
	// state holds the accessors.
	state       storageprovisioner.Config
	ctx         envcontext.ProviderCallContext
	volumes     storage.VolumeSource
	filesystems storage.FilesystemSource
}

func newFloor(w *world.World) *floor {
	return &floor{
		world:       w,
		state:       w.Config(),
		ctx:         envcontext.New(context.Background()),
		volumes:     w.VolumeSource(),
		filesystems: w.FilesystemSource(),
	}
}

// timed measures calls.
func (f *floor) timed(calls func()) {
	f.phase("floor", f.world, func() error {
		calls()
		return f.err
	})
}

// volumesUp is comesUp for volumes.
func (f *floor) volumesUp() {
	f.comesUp(f.world.Volumes, f.attachVolumes)
}

// volumesLife is wholeLife for volumes.
func (f *floor) volumesLife() {
	f.volumesUp()
	f.goesAway(f.world.Volumes, f.detachVolumes, f.removeVolumes)
}

// filesystemsLife is wholeLife for filesystems.
func (f *floor) filesystemsLife() {
	f.comesUp(f.world.Filesystems, f.attachFilesystems)
	f.goesAway(f.world.Filesystems, f.detachFilesystems, f.removeFilesystems)
}

// comesUp makes and attaches all storage of a kind.
func (f *floor) comesUp(s *world.Storage, attach func([]string, []params.MachineStorageId)) {
	s.Appear()
	ids, attachments := s.IDs(), s.AttachmentIDs()
	f.timed(func() { attach(ids, attachments) })
}

// goesAway detaches and removes all storage of a kind.
func (f *floor) goesAway(s *world.Storage, detach func([]params.MachineStorageId), remove func([]string)) {
	ids, attachments := s.IDs(), s.AttachmentIDs()
	s.Detach()
	f.timed(func() { detach(attachments) })
	s.Die()
	f.timed(func() { remove(ids) })
}

// machinesUp makes the calls of machinesOneByOne.
func (f *floor) machinesUp() {
	for i := range f.world.Machines() {
		f.world.ProvisionMachine(i)
	}
	f.timed(func() {
		tags := make([]names.MachineTag, f.world.Machines())
		for i := range tags {
			tags[i] = names.NewMachineTag(strconv.Itoa(i))
		}
		try(f, f.state.Machines.InstanceIds, tags)
	})
	f.volumesUp()
}

// managedUp makes the calls of devicesOneByOne.
func (f *floor) managedUp() {
	f.volumesUp()
	devices := f.world.Volumes.AttachmentIDs()
	f.timed(func() {
		for range devices {
			f.world.ShowDevice()
		}
		try(f, f.state.Volumes.VolumeBlockDevices, devices)
	})
	f.comesUp(f.world.Filesystems, f.attachFilesystems)
}

// volumesAgain makes the calls of restart.
func (f *floor) volumesAgain() {
	f.comesUp(f.world.Volumes, f.attachVolumesAgain)
}

// setStatus sets the same status for all tags.
func setStatus[T names.Tag](f *floor, tags []T, s status.Status) {
	if f.err != nil {
		return
	}
	f.err = f.state.Status.SetStatus(convert(tags, func(tag T) params.EntityStatusArgs {
		return params.EntityStatusArgs{Tag: tag.String(), Status: string(s)}
	}))
}

// try makes a call, unless an earlier one has failed.
func try[A, R any](f *floor, call func([]A) ([]R, error), args []A) []R {
	if f.err != nil {
		return nil
	}
	results, err := call(args)
	f.err = err
	return results
}

// callWithRetry makes a call of a source, and another for the arguments that failed in the
// first.
func callWithRetry[A, R any](
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

// provided binds the context of a source's call, so that only the arguments are left.
func provided[A, R any](f *floor, call func(envcontext.ProviderCallContext, []A) ([]R, error)) func([]A) ([]R, error) {
	return func(args []A) ([]R, error) { return call(f.ctx, args) }
}

// convert applies one to each element.
func convert[A, B any](all []A, one func(A) B) []B {
	converted := make([]B, len(all))
	for i, a := range all {
		converted[i] = one(a)
	}
	return converted
}

func asTag[T names.Tag](tag T) names.Tag { return tag }

// idIn returns the ID in a tag.
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
