//go:build linux

package bench

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// The names of the ways.
const (
	execSerial    = "exec-serial"
	execParallel  = "exec-parallel"
	floorSerial   = "floor-serial"
	floorParallel = "floor-parallel"
	oursSerial    = "ours-serial"
	oursBulk      = "ours-bulk"
)

// phase is a part of a scenario.
type phase struct {
	name  string
	steps []step
}

var (
	setup      = phase{"setup", []step{allocate, attach, format, mount}}
	teardown   = phase{"teardown", []step{unmount, detach, remove}}
	both       = phase{"setup and teardown", slices.Concat(setup.steps, teardown.steps)}
	mounting   = phase{"mount", []step{mount}}
	unmounting = phase{"unmount", []step{unmount}}
	attaching  = phase{"attach", []step{attach}}
	detaching  = phase{"detach", []step{detach}}
)

// kind says what is mounted: the filesystem on a volume, a tmpfs, or a directory.
type kind string

const (
	ext4  kind = "ext4"
	tmpfs kind = "tmpfs"
	bind  kind = "bind"
)

// scenario is what several ways do in a directory, one way after another.
type scenario struct {
	name, dir string
	phases    []phase
	ways      []way
}

// newVolumes returns the scenario that makes and removes volumes, with a filesystem on each.
func newVolumes(t testing.TB, n int, size uint64) scenario {
	t.Helper()
	devicetest.RequireProgram(t, "mkfs.ext4")
	dir, items := newItems(t, ext4, n, size)
	return scenario{"volumes", dir, []phase{setup, teardown}, allWays(items, newOurs(t, dir, ext4))}
}

// newMounts returns the scenario that mounts and unmounts filesystems of a kind.
func newMounts(t testing.TB, k kind, n int) scenario {
	t.Helper()
	dir, items := newItems(t, k, n, 1)
	for _, i := range items {
		if err := os.Mkdir(i.file, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	our := newOurs(t, dir, k)
	if err := our.do(t.Context(), format, items); err != nil {
		t.Fatal(err)
	}
	return scenario{string(k), dir, []phase{mounting, unmounting}, allWays(items, our)}
}

// newLoops returns the scenario that attaches and detaches volumes in bulk, with a way for each
// number of volumes. The last number is the largest.
func newLoops(t testing.TB, numbers ...int) scenario {
	t.Helper()
	dir, items := newItems(t, ext4, numbers[len(numbers)-1], 1)
	our := newOurs(t, dir, ext4)
	if err := our.do(t.Context(), allocate, items); err != nil {
		t.Fatal(err)
	}
	s := scenario{"loops", dir, []phase{attaching, detaching}, nil}
	for _, n := range numbers {
		s.ways = append(s.ways, way{strconv.Itoa(n), items[:n], n, 1, our.do})
	}
	return s
}

func newItems(t testing.TB, k kind, n int, size uint64) (dir string, items []*item) {
	t.Helper()
	t.Cleanup(func() { removeDevices(t, items) }) // after the cleanup of dir has detached them
	dir = devicetest.Dir(t)
	for number := range n {
		path := filepath.Join(dir, strconv.Itoa(number))
		items = append(items, &item{number: number, kind: k, size: size, file: path + ".img", mountPoint: path})
	}
	return dir, items
}

func allWays(items []*item, our *ours) []way {
	cpus := runtime.NumCPU()
	return []way{
		{execSerial, items, 1, 1, single(classic)},
		{floorSerial, items, 1, 1, single(floor)},
		{oursSerial, items, 1, 1, our.do},
		{execParallel, items, 1, cpus, single(classic)},
		{floorParallel, items, 1, cpus, single(floor)},
		{oursBulk, items, len(items), 1, our.do},
	}
}

// removeDevices removes the devices of items that still have one. The kernel takes 50 ms for
// each, most of it waiting.
func removeDevices(t testing.TB, items []*item) {
	t.Helper()
	var removals errgroup.Group
	removals.SetLimit(64)
	for _, i := range items {
		if i.device != "" {
			removals.Go(func() error { return removeDevice(i) })
		}
	}
	if err := removals.Wait(); err != nil {
		t.Error(err)
	}
}
