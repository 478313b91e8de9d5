package diskmanager

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/juju/clock"
)

// firstDelay is the delay before a disk that could not be read is read again. Later delays
// grow with the time for which the disk has not been readable.
const firstDelay = 100 * time.Millisecond

// UnreadError is the error that a [Lister] returns together with the devices if it could not
// fully read some disks. The worker publishes the devices, and reads these disks again soon.
type UnreadError struct {
	// Disks are the names of the disks, as in [Hint].
	Disks []string

	// Err says why the first of them could not be read.
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

// unread remembers which disks could not be read, and when to read them again.
type unread struct {
	clock clock.Clock
	poll  time.Duration
	disks map[string]*retry
	timer clock.Timer // nil while no disk is to be read again
}

// retry describes a disk that could not be read.
type retry struct {
	// since is the time of the first failure, and due the time of the next read. A zero due
	// leaves the next read to the poll.
	since, due time.Time
	// warned says that the worker was told to warn about the disk.
	warned bool
}

// update notes that everything in a hint has been read, and that the failed disks could not
// be. A failed disk is due again after as long as it has not been readable; once that reaches
// the poll interval, the poll is enough. update reports whether a disk is worth a warning, once:
// a device that goes away while it is read, as loop devices of other programs do, is gone by the
// second attempt.
func (u *unread) update(read Hint, failed []string) (warn bool) {
	for disk := range u.disks {
		if (read.All || slices.Contains(read.Disks, disk)) && !slices.Contains(failed, disk) {
			delete(u.disks, disk)
		}
	}
	now := u.clock.Now()
	for _, disk := range failed {
		r, ok := u.disks[disk]
		switch {
		case !ok:
			r = &retry{since: now}
			u.disks[disk] = r
		case !r.warned && now.Sub(r.since) >= firstDelay:
			r.warned, warn = true, true
		}
		r.due = time.Time{}
		if delay := max(now.Sub(r.since), firstDelay); delay < u.poll {
			r.due = now.Add(delay)
		}
	}
	u.setTimer(now)
	return warn
}

// setTimer sets the timer to when the next disk is due.
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

// due returns a channel that receives a value when a disk is due.
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
