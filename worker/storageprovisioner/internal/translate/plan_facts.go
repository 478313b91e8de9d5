package translate

import (
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// readPlans reads attachment plans from the state. A plan counts as recorded from the
// beginning; carrying it out only adds the resulting block device.
func (r *Reader) readPlans(facts []*plan.Fact) error {
	accessor, ok := r.state.Volumes.(attachmentPlans)
	if !ok {
		return nil
	}
	results, err := CallAccessor(r.state.Guard, "reading attachment plans", accessor.VolumeAttachmentPlans, attachmentIDs(facts))
	complete(facts, results, func(f *plan.Fact, result params.VolumeAttachmentPlanResult) error {
		if result.Error != nil {
			return result.Error
		}
		if err := checkSubject(f, result.Result.VolumeTag, result.Result.MachineTag); err != nil {
			return err
		}
		if err := setLife(f, result.Result.Life); err != nil {
			return err
		}
		info := result.Result.PlanInfo
		f.Recorded = true
		f.ID = f.Key().ID
		f.Source = plan.Source{Kind: plan.Plan, Provider: string(info.DeviceType)}
		class, grows, err := r.planClass(f.Key(), info.DeviceType)
		f.Class = class
		f.Args = planArgs{
			info:  storage.VolumeAttachmentPlanInfo{DeviceType: info.DeviceType, DeviceAttributes: info.DeviceAttributes},
			grows: grows,
		}
		return err
	})
	if err != nil {
		return err
	}
	return r.plannedSizes(facts)
}

// planArgs say how to carry out a plan.
type planArgs struct {
	info storage.VolumeAttachmentPlanInfo
	// grows says that the plan acts on the growth of its volume, and size is that of the volume, in MiB.
	grows bool
	size  uint64
}

// plannedSizes completes the facts of plans that act on the growth of their volumes.
func (r *Reader) plannedSizes(facts []*plan.Fact) error {
	growing := selectFacts(facts, func(f *plan.Fact) bool {
		args, _ := f.Args.(planArgs)
		return f.Err == nil && f.Life == plan.Alive && args.grows
	})
	results, err := CallAccessor(r.state.Guard, "reading the volumes of attachment plans", r.state.Volumes.Volumes, volumeTags(growing))
	complete(growing, results, func(f *plan.Fact, result params.VolumeResult) error {
		if err := result.Error; err != nil {
			if params.IsCodeNotFound(err) || params.IsCodeNotProvisioned(err) {
				return nil // the volume is being removed
			}
			return err
		}
		args := f.Args.(planArgs)
		args.size = result.Result.Info.Size
		f.Size, f.Args = args.size, args
		return checkSubject(f, result.Result.VolumeTag, "")
	})
	return err
}

// planClass returns what the worker may do about a plan, and whether the plan acts on the growth of its
// volume. If the device type needs no work, the plan is only removed.
func (r *Reader) planClass(key plan.Key, deviceType storage.DeviceType) (class plan.Class, grows bool, err error) {
	if key.Host != r.config.Scope.String() {
		return plan.Foreign, false, nil
	}
	getting := func() string { return fmt.Sprintf("getting the plan for device type %q", deviceType) }
	err = r.state.Guard.CallErr(guard.Provider, getting, func() error {
		found, err := r.config.Plans(deviceType)
		_, grows = found.(plans.Resizer)
		return err
	})
	if errors.Is(err, errors.NotFound) {
		return plan.Static, false, nil
	}
	return plan.Ours, grows, errors.Annotatef(err, "getting the plan for device type %q", deviceType)
}

// newPlanOnWire returns the plan that comes with an attachment, as the state records it.
func newPlanOnWire(s plan.Subject, a storage.VolumeAttachment) params.VolumeAttachmentPlan {
	return params.VolumeAttachmentPlan{
		VolumeTag:  s.TagText(),
		MachineTag: s.Key().Host,
		Life:       life.Alive,
		PlanInfo:   params.VolumeAttachmentPlanInfo{DeviceType: a.PlanInfo.DeviceType, DeviceAttributes: a.PlanInfo.DeviceAttributes},
	}
}
