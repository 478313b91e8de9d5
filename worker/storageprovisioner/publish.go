package storageprovisioner

import (
	"slices"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// published says whether the state has taken what was to be recorded of one
// entity.
type published struct {
	plan.Subject
	err error
}

// publish records results in the state: statuses first, then infos, those of
// volumes and filesystems before those of attachments, then removals.
func (l *loop) publish(p plan.Publication) job {
	config := l.config
	statuses := statusArgs(p.Statuses)
	for _, args := range statuses {
		l.unset.drop(args.Tag) // this one is newer
	}
	return func() (reply, error) {
		unset := setStatuses(config, statuses)
		if err := noteEnded(config, p); err != nil {
			return nil, err
		}
		var all []published
		for _, step := range []func() ([]published, error){
			func() ([]published, error) {
				return record(config.shelter, "recording volumes", config.Volumes.SetVolumeInfo, p.Records, unchanged[params.Volume])
			},
			func() ([]published, error) {
				return record(config.shelter, "recording filesystems", config.Filesystems.SetFilesystemInfo, p.Records, filesystemOnWire)
			},
			func() ([]published, error) { return recordVolumeAttachments(config, p.Records) },
			func() ([]published, error) {
				return record(config.shelter, "recording filesystem attachments", config.Filesystems.SetFilesystemAttachmentInfo,
					p.Records, filesystemAttachmentOnWire)
			},
			func() ([]published, error) { return recordPlans(config, p) },
			func() ([]published, error) {
				return remove(config.shelter, "removing attachments", config.Life.RemoveAttachments, p.Removals, attachmentId,
					plan.VolumeAttachment, plan.FilesystemAttachment)
			},
			func() ([]published, error) {
				return remove(config.shelter, "removing storage", config.Life.Remove, p.Removals, subjectTag, plan.Volume, plan.Filesystem)
			},
		} {
			some, err := step()
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
		return func() {
			if unset != nil {
				l.unset.add(statuses, l.config.Clock.Now())
			}
			l.published(p, all)
		}, nil
	}
}

// noteEnded tells the state of attempts that have ended. What it does not take is looked
// for once more then.
func noteEnded(config setup, p plan.Publication) error {
	attempts := slices.Concat(attemptArgs(p.Unmade, params.Attempt{}), attemptArgs(p.Ended, params.Attempt{Attempted: true, Ended: true}))
	errs, err := setAttempts(config, attempts)
	if err != nil {
		return err
	}
	subjects := slices.Concat(p.Unmade, p.Ended)
	for i, err := range errs {
		if err != nil && !errors.Is(err, errors.NotFound) {
			config.Logger.Warningf("noting that the attempt to make %s has ended: %v", subjects[i].Key, err)
		}
	}
	return nil
}

// published takes in what the state has taken.
func (l *loop) published(p plan.Publication, all []published) {
	for _, r := range p.Records {
		if fs, ok := r.Info.(filesystemInfo); ok {
			l.backing.setFilesystem(fs.Filesystem)
		}
	}
	var refused errorGroups
	for _, r := range all {
		if r.err != nil && !errors.Is(r.err, errors.NotFound) {
			refused.add(r.Key, r.err)
		}
	}
	refused.each(func(of, err string) {
		l.config.Logger.Warningf("recording %s: %s; it is kept and recorded later", of, err)
	})
	for _, r := range all {
		l.core.Published(r.Subject, r.err)
	}
	for _, r := range p.Removals {
		if r.Key.Kind == plan.Filesystem {
			l.backing.forgetFilesystem(r.Key.ID)
		}
	}
	l.unset.dropRemoved(p.Removals, all)
}

// record records the infos of one type, T, among the records.
func record[T, W any](
	shelter *shelter, doing string, accessor func([]W) ([]params.ErrorResult, error), records []plan.Record, wire func(T) W,
) ([]published, error) {
	of := func(r plan.Record) bool { _, ok := r.Info.(T); return ok }
	all, args := prealloc[W](records, of)
	for _, r := range records {
		if info, ok := r.Info.(T); ok {
			all = append(all, published{Subject: r.Subject})
			args = append(args, wire(info))
		}
	}
	return publishAll(shelter, doing, accessor, args, all)
}

// unchanged is for infos that are on the wire what they are here.
func unchanged[T any](info T) T { return info }

// recordVolumeAttachments records volume attachments, after the plans for those that
// have one: a volume whose plan is not recorded would never show.
func recordVolumeAttachments(config setup, records []plan.Record) ([]published, error) {
	var failed []published
	if accessor, ok := config.plans(); ok && slices.ContainsFunc(records, hasPlan) {
		var planned []plan.Record
		rest := slices.DeleteFunc(slices.Clone(records), func(r plan.Record) bool {
			if hasPlan(r) {
				planned = append(planned, r)
			}
			return hasPlan(r)
		})
		all, err := record(config.shelter, "recording attachment plans", accessor.CreateVolumeAttachmentPlans, planned, newPlanOnWire)
		if err != nil {
			return nil, err
		}
		records = rest
		for i, p := range all {
			if p.err != nil {
				failed = append(failed, p)
			} else {
				records = append(records, planned[i])
			}
		}
	}
	done, err := record(config.shelter, "recording volume attachments", config.Volumes.SetVolumeAttachmentInfo, records, volumeAttachmentOnWire)
	return append(failed, done...), err
}

// hasPlan reports whether the record is that of an attachment which came with a plan.
func hasPlan(r plan.Record) bool {
	a, ok := r.Info.(storage.VolumeAttachment)
	return ok && a.PlanInfo != nil
}

// recordPlans records what came of attachment plans, and removes those undone.
func recordPlans(config setup, p plan.Publication) ([]published, error) {
	accessor, ok := config.plans()
	if !ok {
		return nil, nil
	}
	done, err := record(config.shelter, "recording devices of attachment plans", accessor.SetVolumeAttachmentPlanBlockInfo,
		p.Records, unchanged[params.VolumeAttachmentPlan])
	if err != nil {
		return nil, err
	}
	removed, err := remove(config.shelter, "removing attachment plans", accessor.RemoveVolumeAttachmentPlan, p.Removals, attachmentId, plan.Plan)
	return append(done, removed...), err
}

// remove removes the entities of some kinds among the removals.
func remove[A any](
	shelter *shelter, doing string, accessor func([]A) ([]params.ErrorResult, error), removals []plan.Subject,
	arg func(plan.Subject) A, wanted ...plan.Kind,
) ([]published, error) {
	of := func(s plan.Subject) bool { return slices.Contains(wanted, s.Key.Kind) }
	all, args := prealloc[A](removals, of)
	for _, r := range removals {
		if of(r) {
			all = append(all, published{Subject: r})
			args = append(args, arg(r))
		}
	}
	return publishAll(shelter, doing, accessor, args, all)
}

func subjectTag(s plan.Subject) names.Tag { return s.Tag }

// prealloc returns empty lists with the capacity for what is published of those wanted.
func prealloc[A, E any](of []E, wanted func(E) bool) ([]published, []A) {
	n := 0
	for _, e := range of {
		if wanted(e) {
			n++
		}
	}
	return make([]published, 0, n), make([]A, 0, n)
}

func publishAll[A any](
	shelter *shelter, doing string, accessor func([]A) ([]params.ErrorResult, error), args []A, all []published,
) ([]published, error) {
	errs, err := callWriter(shelter, doing, accessor, args)
	for i, err := range errs {
		all[i].err = err
	}
	return all, err
}
