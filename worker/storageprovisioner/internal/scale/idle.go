package main

import (
	"fmt"
	"io"
	"sync/atomic"
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

// tryIdling measures idle workers, with few and with n attached volumes, and returns verdicts.
func tryIdling(_ io.Writer, n int, _ bounds) ([]verdict, error) {
	few, err := idle(fewEntities)
	if err != nil {
		return nil, err
	}
	many, err := idle(n)
	if err != nil {
		return nil, err
	}
	mustBeZero := func(count int64, what string, args ...any) verdict {
		return verdict{what: fmt.Sprintf("%s for a minute with %d, ", idling, n) + fmt.Sprintf(what, args...), figure: float64(count)}
	}
	return []verdict{
		mustBeZero(many.accessorCalls, "accessor calls"),
		mustBeZero(many.providerCalls, "provider calls"),
		mustBeZero(many.timers, "timers set"),
		mustBeZero(int64(many.goroutines-few.goroutines), "goroutines more than the %d with %d", few.goroutines, fewEntities),
	}, nil
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
	return seen, errors.Annotatef(c.err, "%s with %d", idling, n)
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
