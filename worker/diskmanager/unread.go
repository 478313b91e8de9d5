package diskmanager

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/juju/clock"
)

// firstDelay is how long after a disk could not be read it is looked at again. The
// delays grow with the time for which that has gone on.
const firstDelay = 100 * time.Millisecond

// UnreadError is what a [Lister] returns along with the devices where it could not find
// out all about some disks. The worker publishes the devices, and looks at these disks
// again soon.
type UnreadError struct {
	// Disks are the names of the disks, as those of [Hint].
	Disks []string

	// Err is why the first of them could not be read.
	Err error
}

func (e *UnreadError) add(disk string, err error) {
	if e.Err == nil {
		e.Err = err
	}
	e.Disks = append(e.Disks, disk)
}

// Error implements error.
func (e *UnreadError) Error() string {
	return fmt.Sprintf("reading %s: %v", strings.Join(e.Disks, ", "), e.Err)
}

// Unwrap returns Err.
func (e *UnreadError) Unwrap() error { return e.Err }

// unread remembers which disks could not be read, and when to look at them again.
type unread struct {
	clock clock.Clock
	poll  time.Duration
	disks map[string]*retry
	timer clock.Timer // nil while no disk is to be looked at again
}

// retry is about a disk that could not be read.
type retry struct {
	// since is when it could not be read for the first time, and due when it is looked
	// at again: the zero time leaves that to the poll.
	since, due time.Time
}

// looked takes in that all that a hint names has been looked at, and that some disks
// could not be read. Each is due again after as long as it has not been readable; where
// that is as long as from one poll to the next, the poll is enough. It reports whether
// there are disks that could be read before.
func (u *unread) looked(at Hint, failed []string) (more bool) {
	for disk := range u.disks {
		if (at.All || slices.Contains(at.Disks, disk)) && !slices.Contains(failed, disk) {
			delete(u.disks, disk)
		}
	}
	now := u.clock.Now()
	for _, disk := range failed {
		r, ok := u.disks[disk]
		if !ok {
			more = true
			r = &retry{since: now}
			u.disks[disk] = r
		}
		r.due = time.Time{}
		if delay := max(now.Sub(r.since), firstDelay); delay < u.poll {
			r.due = now.Add(delay)
		}
	}
	u.setTimer(now)
	return more
}

// setTimer has the timer go off when the next disk is due.
func (u *unread) setTimer(now time.Time) {
	u.stop()
	var next time.Time
	for _, r := range u.disks {
		if next.IsZero() || !r.due.IsZero() && r.due.Before(next) {
			next = r.due
		}
	}
	if !next.IsZero() {
		u.timer = u.clock.NewTimer(next.Sub(now))
	}
}

// due returns a channel that has a value when a disk is due.
func (u *unread) due() <-chan time.Time {
	if u.timer == nil {
		return nil
	}
	return u.timer.Chan()
}

// take returns the disks that are due now.
func (u *unread) take() Hint {
	now := u.clock.Now()
	var hint Hint
	for disk, r := range u.disks {
		if !r.due.IsZero() && !r.due.After(now) {
			hint.Disks = append(hint.Disks, disk)
		}
	}
	slices.Sort(hint.Disks)
	u.stop()
	return hint
}

func (u *unread) stop() {
	if u.timer != nil {
		u.timer.Stop()
		u.timer = nil
	}
}
