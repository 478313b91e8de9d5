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

// step is one step of making an item usable, or of undoing that.
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
	setup    = []step{allocate, attach, format, mount}
	teardown = []step{unmount, detach, remove}
)

// item is a volume with its filesystem, or a filesystem alone.
type item struct {
	number int
	// file is the backing file, device the loop device. The providers choose their own.
	file, device string
	mountPoint   string
	// size is in MiB.
	size uint64
}

func makeItems(n int, size uint64, dir string) []*item {
	items := make([]*item, n)
	for i := range items {
		name := strconv.Itoa(i)
		items[i] = &item{
			number:     i,
			file:       filepath.Join(dir, name+".img"),
			mountPoint: filepath.Join(dir, name),
			size:       size,
		}
	}
	return items
}

// way is one way to do the steps.
type way struct {
	name string
	// inCall is the number of items in one call, atOnce the number of concurrent calls.
	inCall, atOnce int
	do             func(context.Context, step, []*item) error
}

// single adapts a function that takes one item.
func single(do func(context.Context, step, *item) error) func(context.Context, step, []*item) error {
	return func(ctx context.Context, s step, items []*item) error {
		return do(ctx, s, items[0])
	}
}

// measure does a step for all items and returns the time taken per item.
func (w way) measure(ctx context.Context, s step, items []*item) (time.Duration, error) {
	calls := make(chan []*item)
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
	for from := 0; from < len(items); from += w.inCall {
		calls <- items[from:min(from+w.inCall, len(items))]
	}
	close(calls)
	workers.Wait()
	took := time.Since(begin) / time.Duration(len(items))
	for range w.atOnce {
		if err := <-failed; err != nil {
			return 0, errors.Annotatef(err, "%s, %s", w.name, s)
		}
	}
	return took, nil
}

// costs holds the time that each step took per item.
type costs map[step]time.Duration

func (c costs) sum(steps ...step) time.Duration {
	var sum time.Duration
	for _, s := range steps {
		sum += c[s]
	}
	return sum
}

// cost does the steps one after another, each for all items.
func (w way) cost(ctx context.Context, items []*item, steps ...step) (costs, error) {
	// Data that other programs have written must not be part of the cost.
	unix.Sync()
	c := make(costs)
	for _, s := range steps {
		took, err := w.measure(ctx, s, items)
		if err != nil {
			return nil, errors.Trace(err)
		}
		c[s] = took
	}
	return c, nil
}

func cpus() int { return runtime.NumCPU() }
