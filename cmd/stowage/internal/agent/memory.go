package agent

import (
	"runtime/debug"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/worker/v4"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/watcher"
)

// quiet is how long nothing has changed when memory is given back.
const quiet = 30 * time.Second

// thrift gives back to the system, once the agent is quiet, the memory that it took
// while it was busy: nothing else would make an agent collect its garbage that has
// nothing to do. That is most of what it has then, where much storage came or went at
// once.
type thrift struct {
	tomb    tomb.Tomb
	clock   clock.Clock
	changes watcher.NotifyWatcher
	give    func()
}

func (a *Agent) startThrift() (worker.Worker, error) {
	changes, err := a.state.WatchStorage()
	if err != nil {
		return nil, errors.Trace(err)
	}
	return newThrift(a.config.Clock, changes, debug.FreeOSMemory), nil
}

// newThrift returns a worker to which changes belong from then on.
func newThrift(clock clock.Clock, changes watcher.NotifyWatcher, give func()) *thrift {
	t := &thrift{clock: clock, changes: changes, give: give}
	t.tomb.Go(func() error {
		defer watcher.Stop(changes, &t.tomb)
		return t.loop()
	})
	return t
}

// Kill is part of worker.Worker.
func (t *thrift) Kill() { t.tomb.Kill(nil) }

// Wait is part of worker.Worker.
func (t *thrift) Wait() error { return t.tomb.Wait() }

func (t *thrift) loop() error {
	var (
		since time.Time // of the last change
		due   <-chan time.Time
	)
	for {
		select {
		case <-t.tomb.Dying():
			return tomb.ErrDying
		case _, ok := <-t.changes.Changes():
			if !ok {
				return watcher.EnsureErr(t.changes)
			}
			since = t.clock.Now()
			if due == nil {
				due = t.clock.After(quiet)
			}
		case now := <-due:
			due = nil
			if rest := quiet - now.Sub(since); rest > 0 {
				due = t.clock.After(rest)
			} else {
				t.give()
			}
		}
	}
}
