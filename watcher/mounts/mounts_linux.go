package mounts

import (
	"hash/maphash"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/watcher"
)

// gather is how long changes are collected before they are reported, since programs often
// mount several things at once.
const gather = time.Second

// Watch returns a watcher of the mount namespace of this process. It reports that something
// has been mounted, unmounted, moved or remounted there. Changes within a second are reported
// together. The watcher keeps one thread of the process blocked.
//
// The watcher also says what has changed. It has a method
//
//	ChangedMounts() (paths []string, all bool)
//
// that reads the table of mounts, and returns the paths at which mounts have come, gone or
// changed since the previous call: for a mount that was moved, both paths. It does not return a
// path at which a mount came and went between two calls, or was replaced by an equal one. all
// says that any mount may have changed: in the first call, and if the table could not be read in
// this call or the previous one.
func Watch() (watcher.NotifyWatcher, error) {
	return watch("/proc/self/mountinfo", gather)
}

func watch(path string, gather time.Duration) (watcher.NotifyWatcher, error) {
	// Not an os.File: the runtime would poll the file too, and the kernel notifies only one
	// poller.
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
		path:    path,
		table:   table,
		asleep:  asleep,
		gather:  gather,
		seed:    maphash.MakeSeed(),
		changed: make(chan struct{}),
		changes: make(chan struct{}),
	}
	w.tomb.Go(func() error {
		defer close(w.changes)
		defer awake.Close() // wakes poll
		w.tomb.Go(w.poll)
		return w.send()
	})
	return w, nil
}

// mounts implements watcher.NotifyWatcher.
type mounts struct {
	tomb  tomb.Tomb
	path  string
	table int
	// asleep becomes readable when the watcher is to end.
	asleep           *os.File
	gather           time.Duration
	changed, changes chan struct{}

	seed maphash.Seed
	mu   sync.Mutex
	// known is the table that ChangedMounts read last, nil after a failure.
	known table
}

// Kill implements worker.Worker.
func (w *mounts) Kill() { w.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (w *mounts) Wait() error { return w.tomb.Wait() }

// Changes implements watcher.NotifyWatcher.
func (w *mounts) Changes() <-chan struct{} { return w.changes }

// ChangedMounts returns the paths at which mounts have changed, as documented at [Watch].
func (w *mounts) ChangedMounts() (paths []string, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.known
	var err error
	if w.known, err = readTable(w.path, w.seed, last); err != nil || last == nil {
		return nil, true
	}
	changed := make(map[string]struct{})
	last.addMissing(changed, w.known)
	w.known.addMissing(changed, last)
	return slices.Sorted(maps.Keys(changed)), false
}

// send sends a first event, and then one event after changes, when the receiver is ready.
func (w *mounts) send() error {
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

// poll waits for changes of the mount table. The kernel notifies a reader of the table once,
// however often the table has changed.
func (w *mounts) poll() error {
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
		// Report changes during that wait together with the first change.
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

// wait waits until one of the files is ready, or until the timeout has passed; a negative
// timeout never passes. It reports whether the first file is ready.
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
