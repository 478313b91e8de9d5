package mounts

import (
	"os"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/watcher"
)

// gather is how long changes are gathered before they are reported: programs often mount
// several things at once.
const gather = time.Second

// Watch returns a watcher of the mount namespace of this process. It reports that something has
// been mounted, unmounted, moved or mounted otherwise there, not what. Changes that come within
// a second are reported together. The watcher keeps a thread of the process, which waits.
func Watch() (watcher.NotifyWatcher, error) {
	return watch("/proc/self/mountinfo", gather)
}

func watch(path string, gather time.Duration) (watcher.NotifyWatcher, error) {
	// No os.File: the runtime would wait for it too, and the kernel tells but one of them.
	table, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Trace(&os.PathError{Op: "open", Path: path, Err: err})
	}
	asleep, awake, err := os.Pipe()
	if err != nil {
		unix.Close(table)
		return nil, errors.Annotate(err, "watching mounts")
	}
	w := &mounts{
		table:   table,
		asleep:  asleep,
		gather:  gather,
		changed: make(chan struct{}),
		changes: make(chan struct{}),
	}
	w.tomb.Go(func() error {
		defer close(w.changes)
		defer awake.Close() // which wakes the other
		w.tomb.Go(w.look)
		return w.tell()
	})
	return w, nil
}

// mounts is a watcher.NotifyWatcher.
type mounts struct {
	tomb  tomb.Tomb
	table int
	// asleep is readable as soon as the watcher is to end.
	asleep           *os.File
	gather           time.Duration
	changed, changes chan struct{}
}

// Kill is part of worker.Worker.
func (w *mounts) Kill() { w.tomb.Kill(nil) }

// Wait is part of worker.Worker.
func (w *mounts) Wait() error { return w.tomb.Wait() }

// Changes is part of watcher.NotifyWatcher.
func (w *mounts) Changes() <-chan struct{} { return w.changes }

// tell sends an event at the beginning, and one after changes, when the receiver is ready.
func (w *mounts) tell() error {
	changes := w.changes
	for {
		select {
		case <-w.tomb.Dying():
			return nil
		case <-w.changed:
			changes = w.changes
		case changes <- struct{}{}:
			changes = nil
		}
	}
}

// look waits for changes of the mount table. The kernel tells a reader of the table once that
// it has changed, however often it has.
func (w *mounts) look() error {
	defer unix.Close(w.table)
	defer w.asleep.Close()
	ended := unix.PollFd{Fd: int32(w.asleep.Fd()), Events: unix.POLLIN}
	table := unix.PollFd{Fd: int32(w.table), Events: unix.POLLPRI}
	for {
		if end, err := wait(-1, ended, table); end || err != nil {
			return err
		}
		if end, err := wait(w.gather, ended); end || err != nil {
			return err
		}
		// What has changed during that wait is reported together with the first change.
		if end, err := wait(0, ended, table); end || err != nil {
			return err
		}
		select {
		case w.changed <- struct{}{}:
		case <-w.tomb.Dying():
			return nil
		}
	}
}

// wait waits until there is something at one of the files, or the time is over; a negative time
// never is. It reports whether there is something at the first.
func wait(timeout time.Duration, files ...unix.PollFd) (first bool, err error) {
	milliseconds := -1
	if timeout >= 0 {
		milliseconds = int(timeout.Milliseconds())
	}
	for {
		_, err := unix.Poll(files, milliseconds)
		if err == nil {
			return files[0].Revents != 0, nil
		}
		if err != unix.EINTR {
			return false, errors.Annotate(os.NewSyscallError("poll", err), "watching mounts")
		}
	}
}
