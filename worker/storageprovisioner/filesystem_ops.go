package storageprovisioner

import (
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// filesystemOps are the operations of a filesystem source.
type filesystemOps struct {
	source     storage.FilesystemSource
	qualifiers []storage.FilesystemQualifier
	guards     []storage.FilesystemDeletionGuard
	// backing has what users have asked to be formatted; nil where no filesystem is on a volume.
	backing *backing
}

func (o filesystemOps) create(call providerCall, items []plan.Item) []plan.Result {
	return create(call, items, arguments(items, filesystemParams), o.qualifiers, storage.FilesystemQualifier.ShouldCreateFilesystem,
		o.source.ValidateFilesystemParams,
		func(args []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
			defer o.endFormatRequests(args)
			return o.source.CreateFilesystems(call.ctx, args)
		},
		func(p storage.FilesystemParams, r storage.CreateFilesystemsResult) plan.Result {
			if r.Error != nil || r.Filesystem == nil {
				return plan.Result{Err: errorOrMissing(r.Error, "filesystem")}
			}
			if err := checkCreated(p.Tag, r.Filesystem.Tag, r.Filesystem.FilesystemId); err != nil {
				return unknownResult(err)
			}
			return plan.Result{
				ID: r.Filesystem.FilesystemId,
				Info: filesystemInfo{Filesystem: storage.Filesystem{
					Tag: p.Tag, Volume: p.Volume, FilesystemInfo: r.Filesystem.FilesystemInfo,
				}},
				Size: r.Filesystem.Size,
			}
		})
}

// endFormatRequests makes what users have asked to be formatted be formatted by this call
// alone.
func (o filesystemOps) endFormatRequests(args []storage.FilesystemParams) {
	if o.backing == nil {
		return
	}
	for _, p := range args {
		o.backing.endFormatRequest(p.Volume.Id())
	}
}

func (o filesystemOps) attach(call providerCall, items []plan.Item) []plan.Result {
	return callSource(call, items, arguments(items, filesystemAttachmentParams),
		func(args []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
			return o.source.AttachFilesystems(call.ctx, args)
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
			}}
			if remarker, ok := o.source.(storage.FilesystemRemarker); ok {
				result.Remark = call.remark(p.Filesystem, func() string { return remarker.FilesystemRemark(p.FilesystemId) })
			}
			return result
		})
}

func (o filesystemOps) detach(call providerCall, items []plan.Item) []plan.Result {
	return callSource(call, items, arguments(items, filesystemAttachmentParams), func(args []storage.FilesystemAttachmentParams) ([]error, error) {
		return o.source.DetachFilesystems(call.ctx, args)
	}, errorResult)
}

func (o filesystemOps) check(call providerCall, items []plan.Item) []plan.Result {
	checker, _ := o.source.(storage.FilesystemChecker)
	return check(call, items, checker != nil, func(ids []string) ([]error, error) { return checker.CheckFilesystems(call.ctx, ids) })
}

func (o filesystemOps) destroy(call providerCall, items []plan.Item) []plan.Result {
	return destroyOrRelease(call, items, o.guards, storage.FilesystemDeletionGuard.ShouldDestroyFilesystem,
		func(ids []string) ([]error, error) { return o.source.DestroyFilesystems(call.ctx, ids) },
		func(ids []string) ([]error, error) { return o.source.ReleaseFilesystems(call.ctx, ids) })
}

func (o filesystemOps) owners(call providerCall) ([]storage.OwnedObject, bool, error) {
	lister, ok := o.source.(storage.FilesystemOwnerLister)
	if !ok {
		return nil, false, nil
	}
	objects, err := lister.ListFilesystemOwners(call.ctx)
	return objects, true, err
}

func (o filesystemOps) resize(call providerCall, items []plan.Item) []plan.Result {
	resizer, ok := o.source.(storage.FilesystemResizer)
	if !ok {
		return failAll(items, cannotGrow("filesystems"))
	}
	return callSource(call, items, arguments(items, func(item plan.Item) filesystemGrowth { return item.Args.(filesystemGrowth) }),
		func(growths []filesystemGrowth) ([]storage.ResizeFilesystemsResult, error) {
			args := make([]storage.FilesystemResizeParams, len(growths))
			for i, g := range growths {
				args[i] = g.FilesystemResizeParams
			}
			return resizer.ResizeFilesystems(call.ctx, args)
		},
		func(g filesystemGrowth, r storage.ResizeFilesystemsResult) plan.Result {
			if r.Error != nil || r.FilesystemInfo == nil {
				return plan.Result{Err: errorOrMissing(r.Error, "filesystem")}
			}
			g.recorded.Size = r.FilesystemInfo.Size
			return growResult(g.recorded, r.FilesystemInfo.Size, g.Size)
		})
}

// filesystemParams returns the parameters of a creation.
func filesystemParams(item plan.Item) storage.FilesystemParams {
	p := item.Args.(storage.FilesystemParams)
	if p.Attachment != nil {
		attachment := *p.Attachment
		attachment.InstanceId = instance.Id(item.Instance)
		p.Attachment = &attachment
	}
	return p
}

// filesystemAttachmentParams returns the parameters of an attachment. What has
// been attached for a state that has since dropped it is detached by its key
// alone.
func filesystemAttachmentParams(item plan.Item) storage.FilesystemAttachmentParams {
	p, ok := item.Args.(storage.FilesystemAttachmentParams)
	if !ok {
		p.Machine, _ = names.ParseTag(item.Key.Host)
	}
	p.Filesystem = item.Tag.(names.FilesystemTag)
	p.FilesystemId = item.ID
	p.InstanceId = instance.Id(item.Instance)
	return p
}
