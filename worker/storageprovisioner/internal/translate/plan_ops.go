package translate

import (
	"context"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// maxConcurrentPlans caps how many plans of one device type are carried out at once. Each
// mostly waits for the machine.
const maxConcurrentPlans = 8

// PlanOperations returns the operations that carry out and undo the attachment plans of one
// device type.
func PlanOperations(p plans.Plan, grown MountedVolumes) Operations { return planOperations{p, grown} }

// MountedVolumes receives how to act on the growth of volumes that are filesystems on this machine.
type MountedVolumes interface {
	SetMounted(volume names.VolumeTag, grown func(ctx context.Context, size uint64) error)
	ForgetMounted(names.VolumeTag)
}

type planOperations struct {
	plan    plans.Plan
	mounted MountedVolumes
}

func (o planOperations) create(_ Call, items []plan.Item) []plan.Result {
	return FailAll(items, errors.NotSupportedf("creating attachment plans"))
}

func (o planOperations) destroy(_ Call, items []plan.Item) []plan.Result {
	return FailAll(items, errors.NotSupportedf("destroying attachment plans"))
}

func (o planOperations) resize(_ Call, items []plan.Item) []plan.Result {
	return FailAll(items, errors.NotSupportedf("growing attachment plans"))
}

func (o planOperations) check(_ Call, items []plan.Item) []plan.Result {
	return FailAll(items, errors.NotSupportedf("checking attachment plans"))
}

func (o planOperations) owners(Call) ([]storage.OwnedObject, bool, error) { return nil, false, nil }

func (o planOperations) attach(call Call, items []plan.Item) []plan.Result {
	return forEachPlan(call, items, func(ctx context.Context, item plan.Item, info storage.VolumeAttachmentPlanInfo) plan.Result {
		device, err := o.plan.AttachVolume(ctx, info.DeviceAttributes)
		if err != nil {
			return plan.Result{Err: err}
		}
		if resizer, ok := o.plan.(plans.Resizer); ok && device.IsMountedVolume() {
			o.mounted.SetMounted(item.Tag().(names.VolumeTag), func(ctx context.Context, size uint64) error {
				return resizer.ResizeVolume(ctx, info.DeviceAttributes, size)
			})
		}
		id := attachmentID(item.Subject)
		return plan.Result{Info: params.VolumeAttachmentPlan{
			VolumeTag:   id.AttachmentTag,
			MachineTag:  id.MachineTag,
			PlanInfo:    params.VolumeAttachmentPlanInfo{DeviceType: info.DeviceType, DeviceAttributes: info.DeviceAttributes},
			BlockDevice: device,
		}}
	})
}

func (o planOperations) detach(call Call, items []plan.Item) []plan.Result {
	return forEachPlan(call, items, func(ctx context.Context, item plan.Item, info storage.VolumeAttachmentPlanInfo) plan.Result {
		o.mounted.ForgetMounted(item.Tag().(names.VolumeTag))
		err := o.plan.DetachVolume(ctx, info.DeviceAttributes)
		if errors.Is(err, errors.NotValid) {
			// A plan that is not valid has never been carried out.
			err = nil
		}
		return plan.Result{Err: err}
	})
}

// forEachPlan calls do for each item, for at most maxConcurrentPlans items at once.
func forEachPlan(
	call Call, items []plan.Item, do func(context.Context, plan.Item, storage.VolumeAttachmentPlanInfo) plan.Result,
) []plan.Result {
	results := make([]plan.Result, len(items))
	var group errgroup.Group
	group.SetLimit(maxConcurrentPlans)
	for i, item := range items {
		group.Go(func() error {
			info, _ := item.Args.(storage.VolumeAttachmentPlanInfo)
			var result plan.Result
			err := call.Guard.CallInGoroutine(guard.Provider, func() string { return call.Describe(item) }, func() {
				result = do(call.Ctx, item, info)
				result.Err = guard.SanitizeError(result.Err)
			})
			if err != nil {
				result = unknownResult(err)
			}
			results[i] = item.Ended(result)
			return nil
		})
	}
	_ = group.Wait() // the errors are in the results
	return results
}
