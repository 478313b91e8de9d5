package process

import (
	"runtime/debug"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/worker/v4"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/watcher"
)

// quietPeriod is how long nothing must have changed before memory is returned to the system.
const quietPeriod = 30 * time.Second

// scavenger returns memory to the system after the agent has been quiet for a while. An idle
// agent allocates nothing, so its garbage would not be collected otherwise. After much storage
// was added or removed at once, that is most of its memory.
type scavenger struct {
	tomb    tomb.Tomb
	clock   clock.Clock
	changes watcher.NotifyWatcher
	release func()
}

// StartScavenger starts a worker that returns memory to the system after the storage of a state
// was changed.
func (p *Process) StartScavenger(st *state.State) (worker.Worker, error) {
	changes, err := st.WatchStorage()
	if err != nil {
		return nil, errors.Trace(err)
	}
	return newScavenger(p.Config.Clock, changes, debug.FreeOSMemory), nil
}

// newScavenger returns a worker that owns changes.
func newScavenger(clock clock.Clock, changes watcher.NotifyWatcher, release func()) *scavenger {
	t := &scavenger{clock: clock, changes: changes, release: release}
	t.tomb.Go(func() error {
		defer watcher.Stop(changes, &t.tomb)
		return t.loop()
	})
	return t
}

// Kill implements worker.Worker.
func (t *scavenger) Kill() { t.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (t *scavenger) Wait() error { return t.tomb.Wait() }

func (t *scavenger) loop() error {
	var (
		lastChange time.Time // of the last change
		due        <-chan time.Time
	)
	for {
		select {
		case <-t.tomb.Dying():
			return tomb.ErrDying
		case _, ok := <-t.changes.Changes():
			if !ok {
				return watcher.EnsureErr(t.changes)
			}
			lastChange = t.clock.Now()
			if due == nil {
				due = t.clock.After(quietPeriod)
			}
		case now := <-due:
			due = nil
			if remaining := quietPeriod - now.Sub(lastChange); remaining > 0 {
				due = t.clock.After(remaining)
			} else {
				t.release()
			}
		}
	}
}
