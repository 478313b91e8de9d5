package scale

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/testing/clocktest"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// fewEntities is the number of volumes of the worker with which one that has many volumes is
// compared.
const fewEntities = 10

// idleUsage is what a worker does during an idle minute, and how many goroutines it has then.
type idleUsage struct {
	accessorCalls, providerCalls int64
	// timers counts the timers that are set in that minute, or still set after it.
	timers     int64
	goroutines int
}

// idle lets a minute pass for a worker at rest that has attached n volumes.
func idle(n int) (idleUsage, error) {
	clock := &countingClock{Clock: clocktest.New()}
	options := manyVolumes(n)
	options.Clock = clock
	c := &course{world: world.New(options)}
	c.startIdle()
	c.comesUp(c.world.Volumes)
	seen := idleUsage{
		accessorCalls: -c.world.AccessorCalls(),
		providerCalls: -c.world.ProviderCalls(),
		timers:        -clock.set.Load(),
	}
	clock.Advance(time.Minute)
	c.rest()
	seen.accessorCalls += c.world.AccessorCalls()
	seen.providerCalls += c.world.ProviderCalls()
	seen.timers += clock.set.Load() + int64(len(clock.Timers()))
	seen.goroutines = c.stop().goroutines
	return seen, errors.Annotatef(c.err, "idle with %d", n)
}

// countingClock is a manual clock that counts how often timers are set.
type countingClock struct {
	*clocktest.Clock
	set atomic.Int64
}

func (c *countingClock) NewTimer(d time.Duration) clock.Timer {
	c.set.Add(1)
	return &countingTimer{c.Clock.NewTimer(d), &c.set}
}

type countingTimer struct {
	clock.Timer
	set *atomic.Int64
}

func (t *countingTimer) Reset(d time.Duration) bool {
	t.set.Add(1)
	return t.Timer.Reset(d)
}

func TestIdleWorkerDoesNothing(t *testing.T) {
	few, err := idle(fewEntities)
	if err != nil {
		t.Fatal(err)
	}
	many, err := idle(2000)
	if err != nil {
		t.Fatal(err)
	}
	if want := (idleUsage{goroutines: few.goroutines}); few != want || many != want {
		t.Errorf("with few entities the idle worker does %+v, with many %+v", few, many)
	}
}

func TestCountingClockCountsTimers(t *testing.T) {
	clock := &countingClock{Clock: clocktest.New()}
	timer := clock.NewTimer(time.Second)
	timer.Stop()
	timer.Reset(time.Minute)
	if got := clock.set.Load(); got != 2 || len(clock.Timers()) != 1 {
		t.Errorf("%d timers counted, set: %v", got, clock.Timers())
	}
}
