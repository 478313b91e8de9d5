package storageprovisioner

import (
	"slices"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/schedule"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/translate"
)

// unsetStatuses holds the statuses that could not be set, only the newest of each volume and
// filesystem. They are set again with the delays of the retry policy. The loop owns it.
type unsetStatuses struct {
	schedule *schedule.Schedule
	retry    plan.Retry
	byTag    map[string]*unsetStatus
	// due holds the tags of the statuses to set now.
	due []string
}

// unsetStatus is the newest status of a volume or filesystem, which could not be set.
type unsetStatus struct {
	args params.EntityStatusArgs
	// attempts counts the failed attempts to set it.
	attempts int
}

// statusDue is a value in the schedule and its own key: the tag of a volume or filesystem
// whose status must be set.
type statusDue string

// add adds statuses that could not be set.
func (u *unsetStatuses) add(statuses []params.EntityStatusArgs, now time.Time) {
	newest := make(map[string]int, len(statuses))
	for i, args := range statuses {
		newest[args.Tag] = i
	}
	for i, args := range statuses {
		if newest[args.Tag] != i {
			continue
		}
		s := u.byTag[args.Tag]
		if s == nil {
			s = &unsetStatus{}
			u.byTag[args.Tag] = s
		}
		s.args = args
		s.attempts++
		key := statusDue(args.Tag)
		u.schedule.Add(key, key, now.Add(u.retry.Delay(s.attempts)))
	}
}

// drop forgets the status of a volume or filesystem, because it is set, there is a newer one,
// or the volume or filesystem is gone.
func (u *unsetStatuses) drop(tag string) {
	if _, ok := u.byTag[tag]; ok {
		delete(u.byTag, tag)
		u.schedule.Remove(statusDue(tag))
		u.due = slices.DeleteFunc(u.due, func(due string) bool { return due == tag })
	}
}

// dropRemoved forgets the statuses of the volumes and filesystems that the state has
// removed.
func (u *unsetStatuses) dropRemoved(removals []plan.Subject, all []translate.Published) {
	if len(u.byTag) == 0 || len(removals) == 0 {
		return
	}
	kept := make(map[plan.Key]bool)
	for _, p := range all {
		kept[p.Key()] = p.Err != nil && !errors.Is(p.Err, errors.NotFound)
	}
	for _, r := range removals {
		if !r.Kind().Attachment() && !kept[r.Key()] {
			u.drop(r.TagText())
		}
	}
}

// anyDue reports whether there are statuses to set now.
func (u *unsetStatuses) anyDue() bool { return len(u.due) > 0 }

// takeDue returns the statuses to set now. u keeps them until they are set.
func (u *unsetStatuses) takeDue() []params.EntityStatusArgs {
	statuses := make([]params.EntityStatusArgs, len(u.due))
	for i, tag := range u.due {
		statuses[i] = u.byTag[tag].args
	}
	u.due = nil
	return statuses
}

// retryStatuses sets statuses that could not be set before.
func (l *loop) retryStatuses(statuses []params.EntityStatusArgs) job {
	config := l.config
	return func() (reply, error) {
		failed := setStatusesBisecting(config, statuses)
		return func() {
			unset := make(map[string]bool, len(failed))
			for _, args := range failed {
				unset[args.Tag] = true
			}
			for _, args := range statuses {
				if !unset[args.Tag] {
					l.unset.drop(args.Tag)
				}
			}
			l.unset.add(failed, l.config.Clock.Now())
		}, nil
	}
}

// setStatusesBisecting sets statuses, and returns those that could not be set. The error of a
// call for several statuses does not say which entities the state no longer has. Bisection
// finds them; their statuses need not be set.
func setStatusesBisecting(config setup, statuses []params.EntityStatusArgs) (failed []params.EntityStatusArgs) {
	err := setStatuses(config, statuses)
	switch half := len(statuses) / 2; {
	case err == nil:
		return nil
	case !errors.Is(err, errors.NotFound) && !params.IsCodeNotFound(err):
		return statuses
	case half == 0:
		return nil
	default:
		return append(setStatusesBisecting(config, statuses[:half]), setStatusesBisecting(config, statuses[half:])...)
	}
}

// statusArgs converts statuses to arguments of the accessor.
func statusArgs(statuses []plan.Status) []params.EntityStatusArgs {
	args := make([]params.EntityStatusArgs, len(statuses))
	for i, s := range statuses {
		args[i] = params.EntityStatusArgs{
			Tag:    s.TagText(),
			Status: string(s.Status),
			Info:   s.Message,
		}
		if s.CannotGrowTo > 0 {
			args[i].Data = map[string]any{status.CannotGrowTo: s.CannotGrowTo}
		}
	}
	return args
}

// setStatuses sets statuses. It logs its error, which affects nothing but whether the statuses
// are set again later.
func setStatuses(config setup, statuses []params.EntityStatusArgs) error {
	if len(statuses) == 0 {
		return nil
	}
	err := config.guard.CallErr(guard.Accessor, func() string { return "setting statuses" }, func() error {
		return config.Status.SetStatus(statuses)
	})
	if err != nil {
		config.Logger.Warningf("setting statuses: %v", err)
	}
	return err
}
