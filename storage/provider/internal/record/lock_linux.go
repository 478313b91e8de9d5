package record

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

const (
	// lockPatience is how long another process may hold the lock before Lock fails: longer
	// than a killed agent takes to exit, but shorter than anybody wants to wait if the agent
	// was started twice.
	lockPatience = 5 * time.Second

	// lockInterval is the interval between attempts to take the lock. The kernel has no event
	// for the release of a flock on which to wait together with a context.
	lockInterval = 5 * time.Millisecond

	// maxUnknown is how many times in a row the holder may be unknown before it must be
	// another process, such as one in another PID namespace. A lock that has just been
	// released has no known holder either.
	maxUnknown = 20
)

// Lock locks the directory across all stores and processes that use it, and removes the
// leftovers of a crash. All records in the directory are then durable. unlock releases the
// lock.
//
// While another caller in this process holds the lock, Lock waits until ctx ends. If another
// process holds it for five seconds, Lock fails; the error names the directory and, if it is
// known, the process.
func (s *Store) Lock(ctx context.Context) (unlock func(), err error) {
	return s.lock(ctx, lockPatience)
}

func (s *Store) lock(ctx context.Context, patience time.Duration) (func(), error) {
	dir, err := s.dir.Reopen()
	if err != nil {
		return nil, errors.Annotate(err, "locking record directory")
	}
	if err := flock(ctx, dir.File(), patience); err != nil {
		dir.Close()
		return nil, errors.Annotatef(err, "locking record directory %s", s.Dir())
	}
	unlock := func() {
		// A process that another goroutine is starting may hold a copy of the descriptor for a
		// moment. Closing would not release the lock until that copy is closed; unlocking
		// does.
		_ = unix.Flock(int(dir.File().Fd()), unix.LOCK_UN)
		dir.Close()
	}
	err = dir.Settle()
	if err == nil {
		err = sweep(dir)
	}
	if err != nil {
		unlock()
		return nil, errors.Annotate(err, "locking record directory")
	}
	return unlock, nil
}

func flock(ctx context.Context, dir *os.File, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	var timer *time.Timer
	unknown := 0
	for {
		if err := ctx.Err(); err != nil {
			return errors.Trace(err)
		}
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return errors.Trace(err)
		}
		if time.Now().After(deadline) {
			switch pid := holder(dir); pid {
			case 0:
				if unknown++; unknown > maxUnknown {
					return errors.New("it is in use by another process")
				}
			case os.Getpid():
				unknown = 0
				deadline = time.Now().Add(patience)
			default:
				return errors.Errorf("it is in use by process %d", pid)
			}
		}
		if timer == nil {
			timer = time.NewTimer(lockInterval)
			defer timer.Stop()
		} else {
			timer.Reset(lockInterval)
		}
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
}

// holder returns the ID of the process that holds the lock on an open file, or 0 if it is
// unknown.
func holder(f *os.File) int {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return 0
	}
	defer locks.Close()
	return parseHolder(locks, st.Dev, st.Ino)
}

// parseHolder finds the holder of the flock on a file, in the format of /proc/locks:
//
//	1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF
func parseHolder(locks io.Reader, dev, ino uint64) int {
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(dev), unix.Minor(dev), ino)
	for scanner := bufio.NewScanner(locks); scanner.Scan(); {
		fields := strings.Fields(scanner.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != want {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}
