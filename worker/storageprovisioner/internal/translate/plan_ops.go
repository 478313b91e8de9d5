package translate

import (
	"context"

	"github.com/juju/errors"
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
func PlanOperations(p plans.Plan) Operations { return planOperations{p} }

type planOperations struct{ plan plans.Plan }

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
	return forEachPlan(call, items, func(ctx context.Context, item plan.Item, args planArgs) plan.Result {
		info := args.info
		device, err := o.plan.AttachVolume(ctx, info.DeviceAttributes)
		if resizer, ok := o.plan.(plans.Resizer); ok && args.size > 0 && err == nil {
			err = resizer.ResizeVolume(ctx, info.DeviceAttributes, args.size)
			if device.IsMountedVolume() {
				device.Size = args.size
			}
		}
		if err != nil {
			return plan.Result{Err: err}
		}
		id := attachmentID(item.Subject)
		return plan.Result{Size: args.size, Info: params.VolumeAttachmentPlan{
			VolumeTag:   id.AttachmentTag,
			MachineTag:  id.MachineTag,
			PlanInfo:    params.VolumeAttachmentPlanInfo{DeviceType: info.DeviceType, DeviceAttributes: info.DeviceAttributes},
			BlockDevice: device,
		}}
	})
}

func (o planOperations) detach(call Call, items []plan.Item) []plan.Result {
	return forEachPlan(call, items, func(ctx context.Context, _ plan.Item, args planArgs) plan.Result {
		err := o.plan.DetachVolume(ctx, args.info.DeviceAttributes)
		if errors.Is(err, errors.NotValid) {
			// A plan that is not valid has never been carried out.
			err = nil
		}
		return plan.Result{Err: err}
	})
}

// forEachPlan calls do for each item, for at most maxConcurrentPlans items at once.
func forEachPlan(
	call Call, items []plan.Item, do func(context.Context, plan.Item, planArgs) plan.Result,
) []plan.Result {
	results := make([]plan.Result, len(items))
	var group errgroup.Group
	group.SetLimit(maxConcurrentPlans)
	for i, item := range items {
		group.Go(func() error {
			args, _ := item.Args.(planArgs)
			var result plan.Result
			err := call.Guard.CallInGoroutine(guard.Provider, func() string { return call.Describe(item) }, func() {
				result = do(call.Ctx, item, args)
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
