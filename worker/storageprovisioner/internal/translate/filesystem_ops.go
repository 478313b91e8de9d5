package translate

import (
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// FilesystemOperations returns the operations of a filesystem source. with holds the source
// and its provider, which may be qualifiers and deletion guards. backing is nil unless the
// filesystems are managed.
func FilesystemOperations(source storage.FilesystemSource, backing Backing, with []any) Operations {
	return filesystemOperations{
		source:     source,
		qualifiers: Capabilities[storage.FilesystemQualifier](with),
		guards:     Capabilities[storage.FilesystemDeletionGuard](with),
		backing:    backing,
	}
}

type filesystemOperations struct {
	source     storage.FilesystemSource
	qualifiers []storage.FilesystemQualifier
	guards     []storage.FilesystemDeletionGuard
	backing    Backing
}

func (o filesystemOperations) create(call Call, items []plan.Item) []plan.Result {
	cloner, canCopy := o.source.(storage.FilesystemCloner)
	origin := func(args any) *storage.Origin { return args.(filesystemCreation).origin }
	return createByOrigin(items, origin, canCopy, "filesystem", func(items []plan.Item, origins map[names.Tag]storage.Origin) []plan.Result {
		return o.createWith(call, items, func(args []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
			if origins == nil {
				defer o.endFormatRequests(args)
				return o.source.CreateFilesystems(call.Ctx, args)
			}
			clones := make([]storage.FilesystemCloneParams, len(args))
			for i, p := range args {
				clones[i] = storage.FilesystemCloneParams{FilesystemParams: p, Origin: origins[p.Tag]}
			}
			return cloner.CloneFilesystems(call.Ctx, clones)
		})
	})
}

// createWith creates filesystems with a call of the source.
func (o filesystemOperations) createWith(
	call Call, items []plan.Item, source func([]storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error),
) []plan.Result {
	return create(call, items, arguments(items, filesystemParams), o.qualifiers, storage.FilesystemQualifier.ShouldCreateFilesystem,
		o.source.ValidateFilesystemParams, source,
		func(p storage.FilesystemParams, r storage.CreateFilesystemsResult) plan.Result {
			if r.Error != nil || r.Filesystem == nil {
				return plan.Result{Err: errorOrMissing(r.Error, "filesystem")}
			}
			if err := checkCreated(p.Tag, r.Filesystem.Tag, r.Filesystem.FilesystemId); err != nil {
				return unknownResult(err)
			}
			return plan.Result{
				ID: r.Filesystem.FilesystemId,
				Info: FilesystemInfo{Filesystem: storage.Filesystem{
					Tag: p.Tag, Volume: p.Volume, FilesystemInfo: r.Filesystem.FilesystemInfo,
				}},
				Size: r.Filesystem.Size,
			}
		})
}

// endFormatRequests ends the users' requests to format the volumes of a call: each request is
// for one call.
func (o filesystemOperations) endFormatRequests(args []storage.FilesystemParams) {
	if o.backing == nil {
		return
	}
	for _, p := range args {
		o.backing.EndFormatRequest(p.Volume)
	}
}

func (o filesystemOperations) attach(call Call, items []plan.Item) []plan.Result {
	return callSource(call, items, arguments(items, filesystemAttachmentParams),
		func(args []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
			return o.source.AttachFilesystems(call.Ctx, args)
		},
		func(p storage.FilesystemAttachmentParams, r storage.AttachFilesystemsResult) plan.Result {
			if r.Error != nil || r.FilesystemAttachment == nil {
				return plan.Result{Err: errorOrMissing(r.Error, "filesystem attachment")}
			}
			a := r.FilesystemAttachment
			if err := checkAttached(p.Filesystem, a.Filesystem, p.Machine, a.Machine); err != nil {
				return unknownResult(err)
			}
			result := plan.Result{Info: storage.FilesystemAttachment{
				Filesystem: p.Filesystem, Machine: p.Machine,
				FilesystemAttachmentInfo: a.FilesystemAttachmentInfo,
			}, MountPoint: a.Path}
			if remarker, ok := o.source.(storage.FilesystemRemarker); ok {
				result.Remark = call.remark(p.Filesystem, func() string { return remarker.FilesystemRemark(p.FilesystemId) })
			}
			return result
		})
}

func (o filesystemOperations) detach(call Call, items []plan.Item) []plan.Result {
	return callSource(call, items, arguments(items, filesystemAttachmentParams), func(args []storage.FilesystemAttachmentParams) ([]error, error) {
		return o.source.DetachFilesystems(call.Ctx, args)
	}, errorResult)
}

func (o filesystemOperations) check(call Call, items []plan.Item) []plan.Result {
	checker, _ := o.source.(storage.FilesystemChecker)
	return check(call, items, checker != nil, func(ids []string) ([]error, error) { return checker.CheckFilesystems(call.Ctx, ids) })
}

func (o filesystemOperations) destroy(call Call, items []plan.Item) []plan.Result {
	return destroyOrRelease(call, items, o.guards, storage.FilesystemDeletionGuard.ShouldDestroyFilesystem,
		func(ids []string) ([]error, error) { return o.source.DestroyFilesystems(call.Ctx, ids) },
		func(ids []string) ([]error, error) { return o.source.ReleaseFilesystems(call.Ctx, ids) })
}

func (o filesystemOperations) owners(call Call) ([]storage.OwnedObject, bool, error) {
	lister, ok := o.source.(storage.FilesystemOwnerLister)
	if !ok {
		return nil, false, nil
	}
	objects, err := lister.ListFilesystemOwners(call.Ctx)
	return objects, true, err
}

func (o filesystemOperations) resize(call Call, items []plan.Item) []plan.Result {
	resizer, ok := o.source.(storage.FilesystemResizer)
	if !ok {
		return FailAll(items, cannotGrow("filesystems"))
	}
	return callSource(call, items, arguments(items, func(item *plan.Item) filesystemGrowth { return item.Args.(filesystemGrowth) }),
		func(growths []filesystemGrowth) ([]storage.ResizeFilesystemsResult, error) {
			args := make([]storage.FilesystemResizeParams, len(growths))
			for i, g := range growths {
				args[i] = g.FilesystemResizeParams
			}
			return resizer.ResizeFilesystems(call.Ctx, args)
		},
		func(g filesystemGrowth, r storage.ResizeFilesystemsResult) plan.Result {
			if r.Error != nil || r.FilesystemInfo == nil {
				return plan.Result{Err: errorOrMissing(r.Error, "filesystem")}
			}
			g.recorded.Size = r.FilesystemInfo.Size
			return growResult(g.recorded, r.FilesystemInfo.Size, g.Size)
		})
}

// filesystemParams returns the parameters for creating a filesystem.
func filesystemParams(item *plan.Item) storage.FilesystemParams {
	args := item.Args.(filesystemCreation)
	p := args.params
	if args.attached {
		a := args.attachment
		p.Attachment = &storage.FilesystemAttachmentParams{AttachmentParams: a.AttachmentParams, Filesystem: p.Tag, Path: a.path}
		p.Attachment.InstanceId = instance.Id(item.Instance)
	}
	return p
}

// filesystemAttachmentParams returns the parameters for attaching or detaching a filesystem.
// An attachment that the state has dropped since it was made has no parameters, and is
// detached by its key alone.
func filesystemAttachmentParams(item *plan.Item) storage.FilesystemAttachmentParams {
	a, ok := item.Args.(filesystemAttachment)
	if !ok {
		a.Machine, _ = names.ParseTag(item.Key().Host)
	}
	a.InstanceId = instance.Id(item.Instance)
	return storage.FilesystemAttachmentParams{
		AttachmentParams: a.AttachmentParams, Filesystem: item.Tag().(names.FilesystemTag), FilesystemId: item.ID, Path: a.path,
	}
}
