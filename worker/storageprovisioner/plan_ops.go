package storageprovisioner

import (
	"context"

	"github.com/juju/errors"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// maxConcurrentPlans bounds how many plans of one device type are carried out at once:
// each of them mostly waits for the machine.
const maxConcurrentPlans = 8

// planOps carries out and undoes the attachment plans of one device type.
type planOps struct {
	plan plans.Plan
}

func (o planOps) create(_ providerCall, items []plan.Item) []plan.Result {
	return failAll(items, errors.NotSupportedf("creating attachment plans"))
}

func (o planOps) destroy(_ providerCall, items []plan.Item) []plan.Result {
	return failAll(items, errors.NotSupportedf("destroying attachment plans"))
}

func (o planOps) resize(_ providerCall, items []plan.Item) []plan.Result {
	return failAll(items, errors.NotSupportedf("growing attachment plans"))
}

func (o planOps) check(_ providerCall, items []plan.Item) []plan.Result {
	return failAll(items, errors.NotSupportedf("looking at attachment plans"))
}

func (o planOps) owners(providerCall) ([]storage.OwnedObject, bool, error) { return nil, false, nil }

func (o planOps) attach(call providerCall, items []plan.Item) []plan.Result {
	return forEachPlan(call, items, func(ctx context.Context, item plan.Item, info storage.VolumeAttachmentPlanInfo) plan.Result {
		device, err := o.plan.AttachVolume(ctx, info.DeviceAttributes)
		if err != nil {
			return plan.Result{Err: err}
		}
		id := attachmentId(item.Subject)
		return plan.Result{Info: params.VolumeAttachmentPlan{
			VolumeTag:   id.AttachmentTag,
			MachineTag:  id.MachineTag,
			PlanInfo:    params.VolumeAttachmentPlanInfo{DeviceType: info.DeviceType, DeviceAttributes: info.DeviceAttributes},
			BlockDevice: device,
		}}
	})
}

func (o planOps) detach(call providerCall, items []plan.Item) []plan.Result {
	return forEachPlan(call, items, func(ctx context.Context, _ plan.Item, info storage.VolumeAttachmentPlanInfo) plan.Result {
		err := o.plan.DetachVolume(ctx, info.DeviceAttributes)
		if errors.Is(err, errors.NotValid) {
			// What it is not valid to undo has never been done.
			err = nil
		}
		return plan.Result{Err: err}
	})
}

// forEachPlan calls do for each item, for several at the same time.
func forEachPlan(
	call providerCall, items []plan.Item, do func(context.Context, plan.Item, storage.VolumeAttachmentPlanInfo) plan.Result,
) []plan.Result {
	results := make([]plan.Result, len(items))
	var group errgroup.Group
	group.SetLimit(maxConcurrentPlans)
	for i, item := range items {
		group.Go(func() error {
			info, _ := item.Args.(storage.VolumeAttachmentPlanInfo)
			var result plan.Result
			err := call.runInGoroutine(theProvider, func() string { return call.describe(item) }, func() {
				result = do(call.ctx, item, info)
				result.Err = sanitizeError(result.Err)
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
