package state

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
)

// A plan belongs to both scopes: the worker that attaches the volume makes it, and the
// machine's worker carries it out and undoes it.

// WatchVolumeAttachmentPlans returns a watcher of the machine's plans. It reports those that
// are new, that have changed in life, whose volumes have grown, or that are removed. The environment's scope has no
// plans to carry out.
func (a *Accessor) WatchVolumeAttachmentPlans() (watcher.MachineStorageIdsWatcher, error) {
	return a.st.watchAttachments(indexPrefix(a.scope, planIndex))
}

// VolumeAttachmentPlans returns attachment plans.
func (a *Accessor) VolumeAttachmentPlans(ids []params.MachineStorageId) ([]params.VolumeAttachmentPlanResult, error) {
	return viewEach(a, ids, func(r *reader, id params.MachineStorageId) (params.VolumeAttachmentPlan, error) {
		_, e, err := a.readAttachment(r, id, names.VolumeTagKind)
		if err != nil {
			return params.VolumeAttachmentPlan{}, err
		}
		plan := e.Attachment.Plan
		if plan == nil {
			return params.VolumeAttachmentPlan{}, errors.NotFoundf("plan for the %s", e.describeAttachment())
		}
		wire := params.VolumeAttachmentPlan{
			VolumeTag:  string(e.Tag),
			MachineTag: id.MachineTag,
			Life:       plan.Life,
			PlanInfo:   *plan.Info.wire(),
		}
		if plan.BlockDevice != nil {
			wire.BlockDevice = storage.BlockDevice(*plan.BlockDevice)
		}
		return wire, nil
	}, func(p params.VolumeAttachmentPlan, err *params.Error) params.VolumeAttachmentPlanResult {
		return params.VolumeAttachmentPlanResult{Result: p, Error: err}
	})
}

// CreateVolumeAttachmentPlans records what machines have to do about attached volumes. It
// updates a plan that exists already. If the attachment is already being detached, nothing
// remains to be carried out: it creates no plan and leaves an existing plan as it is, without
// an error.
func (a *Accessor) CreateVolumeAttachmentPlans(plans []params.VolumeAttachmentPlan) ([]params.ErrorResult, error) {
	return updateEach(a, plans, func(tx *txn, p params.VolumeAttachmentPlan) error {
		return a.changePlanned(tx, planID(p), func(e *entity) error {
			if e.Attachment.detaching() {
				return nil
			}
			if e.Attachment.Plan == nil {
				e.Attachment.Plan = &attachmentPlan{Life: life.Alive}
			}
			e.Attachment.Plan.Info = *newPlanInfo(&p.PlanInfo)
			return nil
		})
	})
}

// RemoveVolumeAttachmentPlan removes plans that the machine has undone, whereupon their
// volumes are detached. Removing one that no longer exists is not an error.
func (a *Accessor) RemoveVolumeAttachmentPlan(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	return updateEach(a, ids, func(tx *txn, id params.MachineStorageId) error {
		err := a.changePlanned(tx, id, func(e *entity) error {
			if e.Attachment.Plan == nil {
				return nil
			}
			return errors.Annotatef(e.removePlan(), "removing the plan for the %s", e.describeAttachment())
		})
		return ignoreNotFound(err)
	})
}

// SetVolumeAttachmentPlanBlockInfo records the block devices that resulted from carrying out
// plans.
func (a *Accessor) SetVolumeAttachmentPlanBlockInfo(plans []params.VolumeAttachmentPlan) ([]params.ErrorResult, error) {
	return updateEach(a, plans, func(tx *txn, p params.VolumeAttachmentPlan) error {
		return a.changePlanned(tx, planID(p), func(e *entity) error {
			if e.Attachment.Plan == nil {
				return errors.NotFoundf("plan for the %s", e.describeAttachment())
			}
			device := deviceRecord(p.BlockDevice)
			e.Attachment.Plan.BlockDevice = &device
			tx.announceMatch(e)
			return nil
		})
	})
}

// changePlanned applies fn to the volume of an attachment, which may belong to the
// environment.
func (a *Accessor) changePlanned(tx *txn, id params.MachineStorageId, fn func(*entity) error) error {
	machine, tag, err := a.parseAttachment(id, names.VolumeTagKind)
	if err != nil {
		return err
	}
	return tx.changeAttachment(machine, tag, func(_ *instance, e *entity) error { return fn(e) })
}

func newPlanInfo(wire *params.VolumeAttachmentPlanInfo) *planInfo {
	if wire == nil {
		return nil
	}
	return &planInfo{DeviceType: wire.DeviceType, Attributes: wire.DeviceAttributes}
}

func (p *planInfo) wire() *params.VolumeAttachmentPlanInfo {
	if p == nil {
		return nil
	}
	return &params.VolumeAttachmentPlanInfo{DeviceType: p.DeviceType, DeviceAttributes: p.Attributes}
}

func planID(p params.VolumeAttachmentPlan) params.MachineStorageId {
	return params.MachineStorageId{MachineTag: p.MachineTag, AttachmentTag: p.VolumeTag}
}
