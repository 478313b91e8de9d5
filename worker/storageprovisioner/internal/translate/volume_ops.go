package translate

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// Backing receives the paths of the files of attached volumes, and the format requests that
// calls have used. It may hold a nil pointer for which SetFile and ForgetFile do nothing.
type Backing interface {
	SetFile(volume names.VolumeTag, path string)
	ForgetFile(names.VolumeTag)
	EndFormatRequest(names.VolumeTag)
}

// VolumeOperations returns the operations of a volume source. with holds the source and its
// provider, which may be qualifiers and deletion guards.
func VolumeOperations(source storage.VolumeSource, backing Backing, with []any) Operations {
	return volumeOperations{
		source:     source,
		qualifiers: Capabilities[storage.VolumeQualifier](with),
		guards:     Capabilities[storage.VolumeDeletionGuard](with),
		backing:    backing,
	}
}

// Capabilities returns the values that implement C, the interface of an optional capability.
func Capabilities[C any](values []any) []C {
	var with []C
	for _, value := range values {
		if c, ok := value.(C); ok {
			with = append(with, c)
		}
	}
	return with
}

type volumeOperations struct {
	source     storage.VolumeSource
	qualifiers []storage.VolumeQualifier
	guards     []storage.VolumeDeletionGuard
	backing    Backing
}

func (o volumeOperations) create(call Call, items []plan.Item) []plan.Result {
	cloner, canCopy := o.source.(storage.VolumeCloner)
	origin := func(args any) *storage.Origin { return args.(volumeCreation).origin }
	return createByOrigin(items, origin, canCopy, "volume", func(items []plan.Item, origins map[names.Tag]storage.Origin) []plan.Result {
		return o.createWith(call, items, origins == nil, func(args []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
			if origins == nil {
				return o.source.CreateVolumes(call.Ctx, args)
			}
			clones := make([]storage.VolumeCloneParams, len(args))
			for i, p := range args {
				clones[i] = storage.VolumeCloneParams{VolumeParams: p, Origin: origins[p.Tag]}
			}
			return cloner.CloneVolumes(call.Ctx, clones)
		})
	})
}

// createWith creates volumes, empty ones or copies, with a call of the source.
func (o volumeOperations) createWith(
	call Call, items []plan.Item, empty bool, source func([]storage.VolumeParams) ([]storage.CreateVolumesResult, error),
) []plan.Result {
	return create(call, items, arguments(items, volumeParams), o.qualifiers, storage.VolumeQualifier.ShouldCreateVolume, o.source.ValidateVolumeParams, source,
		func(p storage.VolumeParams, r storage.CreateVolumesResult) plan.Result {
			if r.Error != nil || r.Volume == nil {
				return plan.Result{Err: errorOrMissing(r.Error, "volume")}
			}
			if err := checkCreated(p.Tag, r.Volume.Tag, r.Volume.VolumeId); err != nil {
				return unknownResult(err)
			}
			wire := volumeInfoOnWire(r.Volume.VolumeInfo)
			wire.New = empty && o.isNew(call, p.Tag, r.Volume.VolumeId)
			result := plan.Result{ID: r.Volume.VolumeId, Info: wire, Size: r.Volume.Size}
			context, err := o.context(call, p.Tag, r.Volume.VolumeId)
			if err != nil {
				return unknownResult(err)
			}
			if len(context) > 0 {
				result.Info, result.Context = volumeInContext{wire, context}, context
			}
			if a := r.VolumeAttachment; a != nil {
				machine := a.Machine
				if p.Attachment != nil {
					machine = p.Attachment.Machine
				}
				if err := checkAttached(p.Tag, a.Volume, machine, a.Machine); err != nil {
					return unknownResult(err)
				}
				o.noteFile(call, p.Tag, r.Volume.VolumeId)
				result.Attached = &plan.Attached{
					Key: plan.Key{Kind: plan.VolumeAttachment, ID: TagID(p.Tag), Host: machine.String()},
					Info: storage.VolumeAttachment{
						Volume: p.Tag, Machine: machine, VolumeAttachmentInfo: a.VolumeAttachmentInfo,
					},
				}
			}
			return result
		})
}

func (o volumeOperations) attach(call Call, items []plan.Item) []plan.Result {
	return callSource(call, items, arguments(items, volumeAttachmentParams),
		func(args []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
			if source, ok := o.source.(storage.ContextSource); ok {
				return source.AttachVolumesIn(call.Ctx, args, arguments(items, func(item *plan.Item) map[string]string { return item.Context }))
			}
			return o.source.AttachVolumes(call.Ctx, args)
		},
		func(p storage.VolumeAttachmentParams, r storage.AttachVolumesResult) plan.Result {
			if r.Error != nil || r.VolumeAttachment == nil {
				return plan.Result{Err: errorOrMissing(r.Error, "volume attachment")}
			}
			if err := checkAttached(p.Volume, r.VolumeAttachment.Volume, p.Machine, r.VolumeAttachment.Machine); err != nil {
				return unknownResult(err)
			}
			o.noteFile(call, p.Volume, p.VolumeId)
			result := plan.Result{Info: storage.VolumeAttachment{
				Volume: p.Volume, Machine: p.Machine, VolumeAttachmentInfo: r.VolumeAttachment.VolumeAttachmentInfo,
			}}
			if remarker, ok := o.source.(storage.VolumeRemarker); ok {
				result.Remark = call.remark(p.Volume, func() string { return remarker.VolumeRemark(p.VolumeId) })
			}
			return result
		})
}

func (o volumeOperations) detach(call Call, items []plan.Item) []plan.Result {
	return callSource(call, items, arguments(items, volumeAttachmentParams), func(args []storage.VolumeAttachmentParams) ([]error, error) {
		return o.source.DetachVolumes(call.Ctx, args)
	}, func(p storage.VolumeAttachmentParams, err error) plan.Result {
		if err == nil {
			o.backing.ForgetFile(p.Volume)
		}
		return plan.Result{Err: err}
	})
}

// context asks the source for the context of a volume that it has created.
func (o volumeOperations) context(call Call, tag names.VolumeTag, id string) (context map[string]string, err error) {
	if source, ok := o.source.(storage.ContextSource); ok {
		err = call.Guard.Call(guard.Provider, func() string { return "asking for the context of " + names.ReadableString(tag) }, func() {
			context = source.VolumeContext(id)
		})
	}
	return context, err
}

// isNew asks the source whether a created volume is new. It returns false if the source cannot
// say.
func (o volumeOperations) isNew(call Call, tag names.VolumeTag, id string) (isNew bool) {
	if source, ok := o.source.(storage.NewVolumes); ok {
		err := call.Guard.Call(guard.Provider, func() string { return "asking whether " + names.ReadableString(tag) + " is new" }, func() {
			isNew = source.IsNewVolume(id)
		})
		return isNew && err == nil
	}
	return false
}

// noteFile remembers the file of an attached volume, if its source knows it. Without the file,
// more of the device is read before it is formatted.
func (o volumeOperations) noteFile(call Call, tag names.VolumeTag, id string) {
	if files, ok := o.source.(storage.FileVolumes); ok {
		_ = call.Guard.Call(guard.Provider, func() string { return "getting the file of " + names.ReadableString(tag) }, func() {
			o.backing.SetFile(tag, files.VolumeFile(id))
		})
	}
}

func (o volumeOperations) destroy(call Call, items []plan.Item) []plan.Result {
	return destroyOrRelease(call, items, o.guards, storage.VolumeDeletionGuard.ShouldDestroyVolume,
		func(ids []string) ([]error, error) { return o.source.DestroyVolumes(call.Ctx, ids) },
		func(ids []string) ([]error, error) { return o.source.ReleaseVolumes(call.Ctx, ids) })
}

func (o volumeOperations) check(call Call, items []plan.Item) []plan.Result {
	checker, _ := o.source.(storage.VolumeChecker)
	return check(call, items, checker != nil, func(ids []string) ([]error, error) { return checker.CheckVolumes(call.Ctx, ids) })
}

func (o volumeOperations) owners(call Call) ([]storage.OwnedObject, bool, error) {
	lister, ok := o.source.(storage.VolumeOwnerLister)
	if !ok {
		return nil, false, nil
	}
	objects, err := lister.ListVolumeOwners(call.Ctx)
	return objects, true, err
}

func (o volumeOperations) resize(call Call, items []plan.Item) []plan.Result {
	resizer, ok := o.source.(storage.VolumeResizer)
	if !ok {
		return FailAll(items, cannotGrow("volumes"))
	}
	return callSource(call, items, arguments(items, func(item *plan.Item) volumeGrowth { return item.Args.(volumeGrowth) }),
		func(growths []volumeGrowth) ([]storage.ResizeVolumesResult, error) {
			args := make([]storage.VolumeResizeParams, len(growths))
			for i, g := range growths {
				args[i] = g.VolumeResizeParams
			}
			return resizer.ResizeVolumes(call.Ctx, args)
		},
		func(g volumeGrowth, r storage.ResizeVolumesResult) plan.Result {
			if r.Error != nil || r.VolumeInfo == nil {
				return plan.Result{Err: errorOrMissing(r.Error, "volume")}
			}
			g.recorded.Size = r.VolumeInfo.Size
			return growResult(g.recorded, r.VolumeInfo.Size, g.Size)
		})
}

// errorOrMissing returns the error of a result that has either an error or no value.
func errorOrMissing(err error, what string) error {
	if err != nil {
		return err
	}
	return errors.Errorf("provider returned neither a %s nor an error", what)
}

// volumeParams returns the parameters for creating a volume.
func volumeParams(item *plan.Item) storage.VolumeParams {
	args := item.Args.(volumeCreation)
	p := args.params
	if args.attached {
		p.Attachment = &storage.VolumeAttachmentParams{AttachmentParams: args.attachment, Volume: p.Tag}
		p.Attachment.InstanceId = instance.Id(item.Instance)
	}
	return p
}

// volumeAttachmentParams returns the parameters for attaching or detaching a volume. An
// attachment that the state has dropped since it was made has no parameters, and is detached
// by its key alone.
func volumeAttachmentParams(item *plan.Item) storage.VolumeAttachmentParams {
	p, ok := item.Args.(storage.AttachmentParams)
	if !ok {
		p.Machine, _ = names.ParseTag(item.Key().Host)
	}
	p.InstanceId = instance.Id(item.Instance)
	return storage.VolumeAttachmentParams{AttachmentParams: p, Volume: item.Tag().(names.VolumeTag), VolumeId: item.ID}
}
