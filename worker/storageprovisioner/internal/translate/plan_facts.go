package translate

import (
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
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
		f.Args = storage.VolumeAttachmentPlanInfo{DeviceType: info.DeviceType, DeviceAttributes: info.DeviceAttributes}
		class, err := r.planClass(f.Key(), info.DeviceType)
		f.Class = class
		return err
	})
	return err
}

// planClass returns what the worker may do about a plan. If the device type needs no work, the
// plan is only removed.
func (r *Reader) planClass(key plan.Key, deviceType storage.DeviceType) (plan.Class, error) {
	if key.Host != r.config.Scope.String() {
		return plan.Foreign, nil
	}
	getting := func() string { return fmt.Sprintf("getting the plan for device type %q", deviceType) }
	err := r.state.Guard.CallErr(guard.Provider, getting, func() error {
		_, err := r.config.Plans(deviceType)
		return err
	})
	if errors.Is(err, errors.NotFound) {
		return plan.Static, nil
	}
	return plan.Ours, errors.Annotatef(err, "getting the plan for device type %q", deviceType)
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
