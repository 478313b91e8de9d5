package modeltest

import (
	"fmt"
	"maps"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/watcher/feed"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// removal is the capability [Removal].
type removal struct{ a *accessor }

// plans is the capability [Plans].
type plans struct{ a *accessor }

// sizes is the capability [Sizes].
type sizes struct{ a *accessor }

// owners is the capability [Owners].
type owners struct{ a *accessor }

// owned is an accessor with the capability [Owners].
type owned struct {
	*accessor
	owners
}

// attempts is the capability [Attempts].
type attempts struct{ a *accessor }

// remembering is an accessor with the capability [Attempts].
type remembering struct {
	*accessor
	attempts
}

// ownedRemembering is an accessor with the capabilities [Owners] and [Attempts].
type ownedRemembering struct {
	owned
	attempts
}

var (
	_ storageprovisioner.VolumeRemovalAccessor        = removal{}
	_ storageprovisioner.FilesystemRemovalAccessor    = removal{}
	_ storageprovisioner.VolumeAttachmentPlanAccessor = plans{}
	_ storageprovisioner.VolumeSizeAccessor           = sizes{}
	_ storageprovisioner.FilesystemSizeAccessor       = sizes{}
	_ storageprovisioner.AttemptAccessor              = attempts{}
)

func (r removal) RemoveVolumeParams(tags []names.VolumeTag) ([]params.RemoveVolumeParamsResult, error) {
	return bulk(r.a, "RemoveVolumeParams", tags, tagOf,
		func(tag names.VolumeTag) (params.RemoveVolumeParamsResult, error) {
			info, err := recorded(&r.a.m.volumes, tag.String(), tag.String())
			if err != nil {
				return params.RemoveVolumeParamsResult{}, err
			}
			v := r.a.m.volumes.rows[tag.String()]
			return params.RemoveVolumeParamsResult{Result: params.RemoveVolumeParams{
				Provider: v.params.Provider, VolumeId: info.VolumeId, Destroy: !v.release, Pool: v.params.Pool,
			}}, nil
		},
		func(r *params.RemoveVolumeParamsResult) **params.Error { return &r.Error })
}

func (r removal) RemoveFilesystemParams(tags []names.FilesystemTag) ([]params.RemoveFilesystemParamsResult, error) {
	return bulk(r.a, "RemoveFilesystemParams", tags, tagOf,
		func(tag names.FilesystemTag) (params.RemoveFilesystemParamsResult, error) {
			info, err := recorded(&r.a.m.filesystems, tag.String(), tag.String())
			if err != nil {
				return params.RemoveFilesystemParamsResult{}, err
			}
			f := r.a.m.filesystems.rows[tag.String()]
			return params.RemoveFilesystemParamsResult{Result: params.RemoveFilesystemParams{
				Provider: f.params.Provider, FilesystemId: info.FilesystemId, Destroy: !f.release, Pool: f.params.Pool,
			}}, nil
		},
		func(r *params.RemoveFilesystemParamsResult) **params.Error { return &r.Error })
}

func (s sizes) VolumeSizes(tags []names.VolumeTag) ([]params.SizeResult, error) {
	return bulk(s.a, "VolumeSizes", tags, tagOf,
		func(tag names.VolumeTag) (params.SizeResult, error) {
			p, err := wanted(&s.a.m.volumes, tag.String(), tag.String())
			return params.SizeResult{Result: p.Size}, err
		},
		func(r *params.SizeResult) **params.Error { return &r.Error })
}

func (s sizes) FilesystemSizes(tags []names.FilesystemTag) ([]params.SizeResult, error) {
	return bulk(s.a, "FilesystemSizes", tags, tagOf,
		func(tag names.FilesystemTag) (params.SizeResult, error) {
			p, err := wanted(&s.a.m.filesystems, tag.String(), tag.String())
			return params.SizeResult{Result: p.Size}, err
		},
		func(r *params.SizeResult) **params.Error { return &r.Error })
}

func (o owners) Owners(tags []names.Tag) ([]params.OwnerResult, error) {
	return bulk(o.a, "Owners", tags, tagOf,
		func(tag names.Tag) (params.OwnerResult, error) {
			if !o.a.m.has(tag.String()) {
				return params.OwnerResult{}, errors.NotFoundf("%s", tag)
			}
			owner := o.a.m.owner(tag.String())
			return params.OwnerResult{
				ModelUUID: owner.ModelUUID, EntityUUID: owner.EntityUUID, Check: o.a.m.unchecked[tag.String()],
			}, nil
		},
		func(r *params.OwnerResult) **params.Error { return &r.Error })
}

// resourceTags adds the owner to the user's resource tags, if the accessors have the
// capability [Owners].
func (a *accessor) resourceTags(tag string, users map[string]string) map[string]string {
	if !a.owners {
		return users
	}
	owner := a.m.owner(tag)
	tags := maps.Clone(users)
	if tags == nil {
		tags = make(map[string]string)
	}
	tags[storage.ModelUUIDTag], tags[storage.EntityUUIDTag] = owner.ModelUUID, owner.EntityUUID
	return tags
}

func (p plans) WatchVolumeAttachmentPlans() (watcher.MachineStorageIdsWatcher, error) {
	m := p.a.m
	return watch[watcher.MachineStorageIdsWatcher](p.a, "WatchVolumeAttachmentPlans", once(&m.byHand.VolumeAttachmentPlans),
		func() *feed.Watcher[[]params.MachineStorageId] {
			return m.feeds.plans.WatchOnly(m.plans.keys, p.a.seesAttachment)
		})
}

func (p plans) VolumeAttachmentPlans(ids []params.MachineStorageId) ([]params.VolumeAttachmentPlanResult, error) {
	return bulk(p.a, "VolumeAttachmentPlans", ids, subject,
		func(id params.MachineStorageId) (params.VolumeAttachmentPlanResult, error) {
			plan, ok := p.a.m.plans.rows[id]
			if !ok {
				return params.VolumeAttachmentPlanResult{}, noPlan(id)
			}
			return params.VolumeAttachmentPlanResult{Result: *plan}, nil
		},
		func(r *params.VolumeAttachmentPlanResult) **params.Error { return &r.Error })
}

func noPlan(id params.MachineStorageId) error {
	return errors.NotFoundf("plan for the %s", noun(id))
}

func planSubject(p params.VolumeAttachmentPlan) string { return subject(at(p.MachineTag, p.VolumeTag)) }

func (p plans) CreateVolumeAttachmentPlans(plans []params.VolumeAttachmentPlan) ([]params.ErrorResult, error) {
	m := p.a.m
	return bulkErrors(p.a, "CreateVolumeAttachmentPlans", plans, planSubject,
		func(given params.VolumeAttachmentPlan) error {
			id := at(given.MachineTag, given.VolumeTag)
			a, ok := m.volumeAttachments.rows[id]
			switch {
			case !ok:
				return noAttachment(id)
			case a.life != life.Alive:
				return errors.NotValidf("plan for the %s, which is %s,", noun(id), a.life)
			}
			plan, added := m.plans.put(id)
			if added {
				*plan = params.VolumeAttachmentPlan{VolumeTag: given.VolumeTag, MachineTag: given.MachineTag, Life: life.Alive}
			}
			plan.PlanInfo = given.PlanInfo
			m.feeds.plans.Send(id)
			return nil
		})
}

func (p plans) RemoveVolumeAttachmentPlan(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	m := p.a.m
	return bulkErrors(p.a, "RemoveVolumeAttachmentPlan", ids, subject, func(id params.MachineStorageId) error {
		if !m.plans.remove(id) {
			return noPlan(id)
		}
		m.feeds.plans.Send(id)
		if m.hasAttachment(id) {
			m.beginDetach(id)
		}
		return nil
	})
}

// SetVolumeAttachmentPlanBlockInfo also sets the volume's block device on the machine to the
// plan's.
func (p plans) SetVolumeAttachmentPlanBlockInfo(plans []params.VolumeAttachmentPlan) ([]params.ErrorResult, error) {
	m := p.a.m
	return bulkErrors(p.a, "SetVolumeAttachmentPlanBlockInfo", plans, planSubject,
		func(given params.VolumeAttachmentPlan) error {
			id := at(given.MachineTag, given.VolumeTag)
			plan, ok := m.plans.rows[id]
			if !ok {
				return noPlan(id)
			}
			plan.BlockDevice = given.BlockDevice
			m.devices[id] = given.BlockDevice
			m.feeds.devices.changed(id.MachineTag)
			return nil
		})
}

// SetAttempts implements storageprovisioner.AttemptAccessor. The subject is the entity and its
// new value: "volume-0: true", "volume-0 machine-0: false".
func (t attempts) SetAttempts(all []params.Attempt) ([]params.ErrorResult, error) {
	subject := func(at params.Attempt) string { return fmt.Sprintf("%s: %v", attemptedBy(at.Id), at.Attempted) }
	return bulkErrors(t.a, "SetAttempts", all, subject, func(at params.Attempt) error {
		attempted, _, err := t.a.m.attempt(at.Id)
		if err != nil {
			return err
		}
		*attempted = at.Attempted
		// An attempt to make a volume may also attach it.
		for _, id := range t.a.m.attachmentsOf(at.Id.AttachmentTag) {
			if a := t.a.m.volumeAttachments.rows[id]; at.Id.MachineTag == "" && a != nil && a.info == nil {
				a.attempted = at.Attempted
			}
		}
		return nil
	})
}

// Attempts implements storageprovisioner.AttemptAccessor.
func (t attempts) Attempts(ids []params.MachineStorageId) ([]params.AttemptResult, error) {
	return bulk(t.a, "Attempts", ids, attemptedBy,
		func(id params.MachineStorageId) (params.AttemptResult, error) {
			attempted, recorded, err := t.a.m.attempt(id)
			if err != nil {
				return params.AttemptResult{}, err
			}
			return params.AttemptResult{Attempted: *attempted && !recorded}, nil
		},
		func(r *params.AttemptResult) **params.Error { return &r.Error })
}

// attemptedBy names the entity or attachment that an attempt is to make.
func attemptedBy(id params.MachineStorageId) string {
	return strings.TrimSpace(id.AttachmentTag + " " + id.MachineTag)
}

// attempt returns the flag that notes an attempt, and whether its result has been recorded.
func (m *Model) attempt(id params.MachineStorageId) (attempted *bool, recorded bool, err error) {
	if id.MachineTag != "" {
		if a, ok := m.volumeAttachments.rows[id]; ok {
			return &a.attempted, a.info != nil, nil
		}
		if a, ok := m.filesystemAttachments.rows[id]; ok {
			return &a.attempted, a.info != nil, nil
		}
	} else {
		if v, ok := m.volumes.rows[id.AttachmentTag]; ok {
			return &v.attempted, v.info != nil, nil
		}
		if f, ok := m.filesystems.rows[id.AttachmentTag]; ok {
			return &f.attempted, f.info != nil, nil
		}
	}
	return nil, false, errors.NotFoundf("%s", attemptedBy(id))
}
