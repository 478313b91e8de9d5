package main

import (
	"context"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// step is one of the steps of making a thing usable and of undoing that.
type step string

const (
	allocate step = "allocate"
	attach   step = "attach loop"
	format   step = "mkfs"
	mount    step = "mount"
	unmount  step = "unmount"
	detach   step = "detach loop"
	remove   step = "remove"
)

var (
	up   = []step{allocate, attach, format, mount}
	away = []step{unmount, detach, remove}
)

// thing is a volume with its filesystem, or a filesystem alone.
type thing struct {
	number int
	// file is the backing file, and device the loop device. The providers choose
	// their own.
	file, device string
	mountPoint   string
	// size is in MiB.
	size uint64
}

func makeThings(n int, size uint64, dir string) []*thing {
	things := make([]*thing, n)
	for i := range things {
		name := strconv.Itoa(i)
		things[i] = &thing{
			number:     i,
			file:       filepath.Join(dir, name+".img"),
			mountPoint: filepath.Join(dir, name),
			size:       size,
		}
	}
	return things
}

// way is a way of doing the steps.
type way struct {
	name string
	// inCall is how many things a call takes, and atOnce how many calls there are
	// at a time.
	inCall, atOnce int
	do             func(context.Context, step, []*thing) error
}

// one makes a way of what takes one thing.
func one(do func(context.Context, step, *thing) error) func(context.Context, step, []*thing) error {
	return func(ctx context.Context, s step, things []*thing) error {
		return do(ctx, s, things[0])
	}
}

// measure does a step with all things and returns how long that took for each.
func (w way) measure(ctx context.Context, s step, things []*thing) (time.Duration, error) {
	calls := make(chan []*thing)
	failed := make(chan error, w.atOnce)
	begin := time.Now()
	var workers sync.WaitGroup
	for range w.atOnce {
		workers.Go(func() {
			var first error
			for call := range calls {
				if first == nil {
					first = ctx.Err()
				}
				if first == nil {
					first = w.do(ctx, s, call)
				}
			}
			failed <- first
		})
	}
	for from := 0; from < len(things); from += w.inCall {
		calls <- things[from:min(from+w.inCall, len(things))]
	}
	close(calls)
	workers.Wait()
	took := time.Since(begin) / time.Duration(len(things))
	for range w.atOnce {
		if err := <-failed; err != nil {
			return 0, errors.Annotatef(err, "%s, %s", w.name, s)
		}
	}
	return took, nil
}

// costs are what each step took for each thing.
type costs map[step]time.Duration

func (c costs) sum(steps ...step) time.Duration {
	var sum time.Duration
	for _, s := range steps {
		sum += c[s]
	}
	return sum
}

// cost does the steps one after another, each with all things.
func (w way) cost(ctx context.Context, things []*thing, steps ...step) (costs, error) {
	// What others have written does not count.
	unix.Sync()
	c := make(costs)
	for _, s := range steps {
		took, err := w.measure(ctx, s, things)
		if err != nil {
			return nil, errors.Trace(err)
		}
		c[s] = took
	}
	return c, nil
}

func cpus() int { return runtime.NumCPU() }
