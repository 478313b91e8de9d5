//go:build linux

package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/cputime"
)

// step is one step of making an item usable, or of undoing that.
type step string

const (
	allocate step = "allocate"
	attach   step = "attach"
	format   step = "mkfs"
	mount    step = "mount"
	unmount  step = "unmount"
	detach   step = "detach"
	remove   step = "remove"
)

// item is a volume with its filesystem, or a filesystem alone.
type item struct {
	number int
	kind   kind
	// size is in MiB.
	size uint64
	// file is the backing file, or the directory to bind. The providers choose their own.
	file string
	// device is the path of the loop device, until the device has been removed.
	device     string
	mountPoint string
}

// way is one way to do the steps with some items.
type way struct {
	name  string
	items []*item
	// perCall is the number of items in one call, atOnce the number of concurrent calls.
	perCall, atOnce int
	do              func(context.Context, step, []*item) error
}

// single adapts a function that takes one item.
func single(do func(context.Context, step, *item) error) func(context.Context, step, []*item) error {
	return func(ctx context.Context, s step, items []*item) error {
		return do(ctx, s, items[0])
	}
}

type cost struct{ wall, cpu time.Duration }

// costs are the costs of each step for one item.
type costs map[step]cost

func (c costs) sum(p phase) (sum cost) {
	for _, s := range p.steps {
		sum.wall += c[s].wall
		sum.cpu += c[s].cpu
	}
	return sum
}

// run does the steps of all phases one after another, each for all items.
func (w way) run(t testing.TB, phases []phase) costs {
	t.Helper()
	// Data that other programs have written must not be part of the cost.
	unix.Sync()
	all := make(costs)
	for _, p := range phases {
		for _, s := range p.steps {
			all[s] = w.measure(t, s)
		}
	}
	removeDevices(t, w.items)
	return all
}

// measure does a step for all items.
func (w way) measure(t testing.TB, s step) cost {
	t.Helper()
	var calls errgroup.Group
	calls.SetLimit(w.atOnce)
	cpu, begun := cputime.Used(), time.Now()
	for call := range slices.Chunk(w.items, w.perCall) {
		calls.Go(func() error { return w.do(t.Context(), s, call) })
	}
	err := calls.Wait()
	used, took := cputime.Used()-cpu, time.Since(begun)
	if err != nil {
		t.Fatalf("%s, %s: %v", w.name, s, err)
	}
	n := time.Duration(len(w.items))
	return cost{took / n, used / n}
}
