package translate

import (
	"slices"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// Published says whether the state has recorded, or removed, one entity.
type Published struct {
	plan.Subject
	Err error
}

// Publish records a publication except its statuses and the ends of attempts: first infos of
// volumes and filesystems, then infos of attachments, then removals.
func (s State) Publish(p plan.Publication) ([]Published, error) {
	var all []Published
	for _, step := range []func() ([]Published, error){
		func() ([]Published, error) {
			return s.recordVolumes(p.Records)
		},
		func() ([]Published, error) {
			return record(s.Guard, "recording filesystems", s.Filesystems.SetFilesystemInfo, p.Records, filesystemOnWire)
		},
		func() ([]Published, error) { return s.recordVolumeAttachments(p.Records) },
		func() ([]Published, error) {
			return record(s.Guard, "recording filesystem attachments", s.Filesystems.SetFilesystemAttachmentInfo,
				p.Records, filesystemAttachmentOnWire)
		},
		func() ([]Published, error) { return s.recordPlans(p) },
		func() ([]Published, error) {
			return remove(s.Guard, "removing attachments", s.Life.RemoveAttachments, p.Removals, attachmentID,
				plan.VolumeAttachment, plan.FilesystemAttachment)
		},
		func() ([]Published, error) {
			return remove(s.Guard, "removing storage", s.Life.Remove, p.Removals, subjectTag, plan.Volume, plan.Filesystem)
		},
	} {
		some, err := step()
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = some // usually the only list
		} else {
			all = append(all, some...)
		}
	}
	return all, nil
}

// recordVolumes records volumes, each after its context if it has one: without it, the volume could not be
// attached.
func (s State) recordVolumes(records []plan.Record) ([]Published, error) {
	var failed []Published
	if accessor, ok := s.Volumes.(volumeContexts); ok {
		var err error
		records, failed, err = recordFirst(records, hasContext, func(r plan.Record) plan.Record {
			return plan.Record{Subject: r.Subject, Info: r.Info.(volumeInContext).VolumeInfo}
		}, func(made []plan.Record) ([]Published, error) {
			return record(s.Guard, "recording the contexts of volumes", accessor.SetVolumeContexts, made, contextOnWire)
		})
		if err != nil {
			return nil, err
		}
	}
	done, err := record(s.Guard, "recording volumes", s.Volumes.SetVolumeInfo, records, volumeOnWire)
	return append(failed, done...), err
}

// recordFirst calls first with the records that need something to be recorded before them, which reports
// each of them in order. It returns the records that may follow, these as rest makes them, and what has
// failed.
func recordFirst(
	records []plan.Record, need func(plan.Record) bool, rest func(plan.Record) plan.Record, first func([]plan.Record) ([]Published, error),
) (follow []plan.Record, failed []Published, err error) {
	var some []plan.Record
	for _, r := range records {
		if need(r) {
			some = append(some, r)
		} else {
			follow = append(follow, r)
		}
	}
	if len(some) == 0 {
		return records, nil, nil
	}
	all, err := first(some)
	for i, p := range all {
		if p.Err != nil {
			failed = append(failed, p)
		} else {
			follow = append(follow, rest(some[i]))
		}
	}
	return follow, failed, err
}

func hasContext(r plan.Record) bool {
	_, ok := r.Info.(volumeInContext)
	return ok
}

// NoteEnded notes in the state that attempts have ended. It returns the entities whose end the
// state has not noted; what they may have left is looked for once more.
func (s State) NoteEnded(p plan.Publication) (failed []Published, err error) {
	args := slices.Concat(attemptArgs(p.Unmade, params.Attempt{}), attemptArgs(p.Ended, params.Attempt{Attempted: true, Ended: true}))
	errs, err := s.setAttempts(args)
	if err != nil {
		return nil, err
	}
	subjects := slices.Concat(p.Unmade, p.Ended)
	for i, err := range errs {
		if err != nil && !errors.Is(err, errors.NotFound) {
			failed = append(failed, Published{subjects[i], err})
		}
	}
	return failed, nil
}

// record records the infos of one type, T, among the records.
func record[T, W any](
	g *guard.Guard, doing string, accessor func([]W) ([]params.ErrorResult, error), records []plan.Record, wire func(plan.Subject, T) W,
) ([]Published, error) {
	of := func(r plan.Record) bool { _, ok := r.Info.(T); return ok }
	all, args := prealloc[W](records, of)
	for _, r := range records {
		if info, ok := r.Info.(T); ok {
			all = append(all, Published{Subject: r.Subject})
			args = append(args, wire(r.Subject, info))
		}
	}
	return publishAll(g, doing, accessor, args, all)
}

// unchanged is the wire function of infos that are already of the type on the wire.
func unchanged[T any](_ plan.Subject, info T) T { return info }

// recordVolumeAttachments records volume attachments, each after its plan if it has one: a
// volume whose plan is not recorded would never appear on its machine.
func (s State) recordVolumeAttachments(records []plan.Record) ([]Published, error) {
	var failed []Published
	if accessor, ok := s.Volumes.(attachmentPlans); ok {
		var err error
		same := func(r plan.Record) plan.Record { return r }
		records, failed, err = recordFirst(records, hasPlan, same, func(planned []plan.Record) ([]Published, error) {
			return record(s.Guard, "recording attachment plans", accessor.CreateVolumeAttachmentPlans, planned, newPlanOnWire)
		})
		if err != nil {
			return nil, err
		}
	}
	done, err := record(s.Guard, "recording volume attachments", s.Volumes.SetVolumeAttachmentInfo, records, volumeAttachmentOnWire)
	return append(failed, done...), err
}

// hasPlan reports whether a record is that of an attachment with a plan.
func hasPlan(r plan.Record) bool {
	a, ok := r.Info.(storage.VolumeAttachment)
	return ok && a.PlanInfo != nil
}

// recordPlans records the block devices of attachment plans that were carried out, and removes
// plans that were undone.
func (s State) recordPlans(p plan.Publication) ([]Published, error) {
	accessor, ok := s.Volumes.(attachmentPlans)
	if !ok {
		return nil, nil
	}
	done, err := record(s.Guard, "recording devices of attachment plans", accessor.SetVolumeAttachmentPlanBlockInfo,
		p.Records, unchanged[params.VolumeAttachmentPlan])
	if err != nil {
		return nil, err
	}
	removed, err := remove(s.Guard, "removing attachment plans", accessor.RemoveVolumeAttachmentPlan, p.Removals, attachmentID, plan.Plan)
	return append(done, removed...), err
}

// remove removes the entities of the given kinds among the removals.
func remove[A any](
	g *guard.Guard, doing string, accessor func([]A) ([]params.ErrorResult, error), removals []plan.Subject,
	arg func(plan.Subject) A, kinds ...plan.Kind,
) ([]Published, error) {
	of := func(s plan.Subject) bool { return slices.Contains(kinds, s.Kind()) }
	all, args := prealloc[A](removals, of)
	for _, r := range removals {
		if of(r) {
			all = append(all, Published{Subject: r})
			args = append(args, arg(r))
		}
	}
	return publishAll(g, doing, accessor, args, all)
}

func subjectTag(s plan.Subject) names.Tag { return s.Tag() }

// prealloc returns empty slices with capacity for the wanted elements.
func prealloc[A, E any](of []E, wanted func(E) bool) ([]Published, []A) {
	n := 0
	for _, e := range of {
		if wanted(e) {
			n++
		}
	}
	return make([]Published, 0, n), make([]A, 0, n)
}

func publishAll[A any](
	g *guard.Guard, doing string, accessor func([]A) ([]params.ErrorResult, error), args []A, all []Published,
) ([]Published, error) {
	errs, err := callWriter(g, doing, accessor, args)
	for i, err := range errs {
		all[i].Err = err
	}
	return all, err
}
