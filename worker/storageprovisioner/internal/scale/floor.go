package main

import (
	"context"
	"strings"
	"time"

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
	world   *world.World
	state   storageprovisioner.Config // for its accessors
	ctx     envcontext.ProviderCallContext
	volumes storage.VolumeSource

	took time.Duration
	used usage
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
	f.volumes, err = provider.VolumeSource(nil)
	return f, errors.Trace(err)
}

// timed adds the time that something takes to that of the floor.
func (f *floor) timed(do func() error) error {
	before := usageIn(f.world)
	began := time.Now()
	err := do()
	f.took += time.Since(began)
	f.used = f.used.plus(usageIn(f.world).since(before))
	return errors.Trace(err)
}

// volumesLife is wholeLife for volumes.
func (f *floor) volumesLife() error {
	s := f.world.Volumes
	s.Appear()
	ids, attachments := s.IDs(), s.AttachmentIDs()
	if err := f.timed(func() error { return f.attachVolumes(ids, attachments) }); err != nil {
		return err
	}
	s.Detach()
	if err := f.timed(func() error { return f.detachVolumes(attachments) }); err != nil {
		return err
	}
	s.Die()
	return f.timed(func() error { return f.removeVolumes(ids) })
}

// attachVolumes makes volumes and attaches them.
func (f *floor) attachVolumes(ids []string, attachments []params.MachineStorageId) error {
	tags := convert(ids, names.NewVolumeTag)
	var e doing
	try(&e, f.state.Life.Life, convert(tags, asTag))
	try(&e, f.state.Volumes.Volumes, tags)
	try(&e, f.state.Volumes.(storageprovisioner.VolumeSizeAccessor).VolumeSizes, tags)
	wanted := try(&e, f.state.Volumes.VolumeParams, tags)
	try(&e, f.state.Life.AttachmentLife, attachments)
	try(&e, f.state.Volumes.VolumeAttachments, attachments)
	try(&e, f.state.Volumes.VolumeAttachmentParams, attachments)

	creations := make([]storage.VolumeParams, len(wanted))
	for i, w := range wanted {
		p := w.Result
		creations[i] = storage.VolumeParams{
			Tag:      tags[i],
			Size:     p.Size,
			Provider: storage.ProviderType(p.Provider),
			Attachment: &storage.VolumeAttachmentParams{
				AttachmentParams: attachmentParams(p.Provider, p.Attachment.MachineTag, p.Attachment.InstanceId),
				Volume:           tags[i],
			},
		}
	}
	made := try(&e, provided(f.ctx, f.volumes.CreateVolumes), creations)
	f.setStatus(&e, tags, status.Attaching)
	infos := make([]params.Volume, len(made))
	attaching := make([]storage.VolumeAttachmentParams, len(made))
	for i, m := range made {
		infos[i] = params.Volume{
			VolumeTag: m.Volume.Tag.String(),
			Info:      params.VolumeInfo{VolumeId: m.Volume.VolumeId, Size: m.Volume.Size},
		}
		attaching[i] = *creations[i].Attachment
		attaching[i].VolumeId = m.Volume.VolumeId
	}
	try(&e, f.state.Volumes.SetVolumeInfo, infos)

	attached := try(&e, provided(f.ctx, f.volumes.AttachVolumes), attaching)
	f.setStatus(&e, tags, status.Attached)
	recorded := make([]params.VolumeAttachment, len(attached))
	for i, a := range attached {
		recorded[i] = params.VolumeAttachment{
			VolumeTag:  a.VolumeAttachment.Volume.String(),
			MachineTag: a.VolumeAttachment.Machine.String(),
			Info:       params.VolumeAttachmentInfo{DeviceName: a.VolumeAttachment.DeviceName},
		}
	}
	try(&e, f.state.Volumes.SetVolumeAttachmentInfo, recorded)
	return e.err
}

// detachVolumes detaches volumes whose attachments are dying.
func (f *floor) detachVolumes(attachments []params.MachineStorageId) error {
	var e doing
	try(&e, f.state.Life.AttachmentLife, attachments)
	try(&e, f.state.Volumes.VolumeAttachments, attachments)
	wanted := try(&e, f.state.Volumes.VolumeAttachmentParams, attachments)
	tags := make([]names.VolumeTag, len(wanted))
	detaching := make([]storage.VolumeAttachmentParams, len(wanted))
	for i, w := range wanted {
		p := w.Result
		tags[i] = names.NewVolumeTag(strings.TrimPrefix(p.VolumeTag, names.VolumeTagKind+"-"))
		detaching[i] = storage.VolumeAttachmentParams{
			AttachmentParams: attachmentParams(p.Provider, p.MachineTag, p.InstanceId),
			Volume:           tags[i],
			VolumeId:         p.VolumeId,
		}
	}
	try(&e, provided(f.ctx, f.volumes.DetachVolumes), detaching)
	f.setStatus(&e, tags, status.Detached)
	try(&e, f.state.Life.RemoveAttachments, attachments)
	return e.err
}

// removeVolumes destroys volumes that are dead.
func (f *floor) removeVolumes(ids []string) error {
	volumes := convert(ids, names.NewVolumeTag)
	tags := convert(volumes, asTag)
	var e doing
	try(&e, f.state.Life.Life, tags)
	try(&e, f.state.Volumes.Volumes, volumes)
	removals := try(&e, f.state.Volumes.(storageprovisioner.VolumeRemovalAccessor).RemoveVolumeParams, volumes)
	try(&e, provided(f.ctx, f.volumes.DestroyVolumes), convert(removals, func(r params.RemoveVolumeParamsResult) string {
		return r.Result.VolumeId
	}))
	try(&e, f.state.Life.Remove, tags)
	return e.err
}

// setStatus sets one status for all.
func (f *floor) setStatus(e *doing, tags []names.VolumeTag, s status.Status) {
	if e.err != nil {
		return
	}
	e.err = f.state.Status.SetStatus(convert(tags, func(tag names.VolumeTag) params.EntityStatusArgs {
		return params.EntityStatusArgs{Tag: tag.String(), Status: string(s)}
	}))
}

func attachmentParams(provider, machine, instanceID string) storage.AttachmentParams {
	return storage.AttachmentParams{
		Provider:   storage.ProviderType(provider),
		Machine:    names.NewMachineTag(strings.TrimPrefix(machine, names.MachineTagKind+"-")),
		InstanceId: instance.Id(instanceID),
	}
}

// doing keeps the first error of several calls.
type doing struct{ err error }

// try makes a call, unless one before has failed.
func try[A, R any](e *doing, call func([]A) ([]R, error), args []A) []R {
	if e.err != nil {
		return nil
	}
	results, err := call(args)
	e.err = err
	return results
}

// provided returns a call of a source as one that takes arguments alone.
func provided[A, R any](
	ctx envcontext.ProviderCallContext, call func(envcontext.ProviderCallContext, []A) ([]R, error),
) func([]A) ([]R, error) {
	return func(args []A) ([]R, error) { return call(ctx, args) }
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
