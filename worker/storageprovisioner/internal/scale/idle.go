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

// fewEntities is with how many a worker is compared that has many.
const fewEntities = 10

// stirred is what a worker does in a minute in which nothing happens, and the
// goroutines that it has then.
type stirred struct {
	accessorCalls, providerCalls int64
	// timers counts those that are set in that minute, or still set after it.
	timers     int64
	goroutines int
}

// tryIdling tries it with n volumes that are attached, and judges.
func tryIdling(_ io.Writer, n int, _ bounds) ([]verdict, error) {
	few, err := idle(fewEntities)
	if err != nil {
		return nil, err
	}
	many, err := idle(n)
	if err != nil {
		return nil, err
	}
	nothing := func(count int64, what string, args ...any) verdict {
		return verdict{what: fmt.Sprintf("%s for a minute with %d, ", idling, n) + fmt.Sprintf(what, args...), figure: float64(count)}
	}
	return []verdict{
		nothing(many.accessorCalls, "accessor calls"),
		nothing(many.providerCalls, "provider calls"),
		nothing(many.timers, "timers set"),
		nothing(int64(many.goroutines-few.goroutines), "goroutines more than the %d with %d", few.goroutines, fewEntities),
	}, nil
}

// idle lets a minute pass for a worker at rest that has attached n volumes.
func idle(n int) (stirred, error) {
	clock := &countingClock{Clock: clocktest.New()}
	options := manyVolumes(n)
	options.Clock = clock
	c := &course{world: world.New(options)}
	c.startIdle()
	c.comesUp(c.world.Volumes)
	seen := stirred{
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

// countingClock is a clock that is moved by hand and counts how often timers are set.
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
