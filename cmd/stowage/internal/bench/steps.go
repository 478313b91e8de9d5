package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// steps are the measurements. Each runs in the world that the previous ones left.
var steps = []struct {
	name string
	do   func(*world, *figures)
}{
	{"apply", apply},
	{"provision", provision},
	{"list", list},
	{"restart", restart},
	{"single changes", singleChanges},
	{"remove", remove},
}

// apply does what "stowage apply" does with one file, and receives its events.
func apply(w *world, f *figures) {
	f.try(w.watch)
	f.time("apply: declare", w.n, func() error { return w.apply(declaration("data", w.n)) })
	f.events("apply: tell 4 watchers", w.n, w.receiveEvents)
}

// provision makes the bulk reads and records of a worker until everything is attached.
func provision(w *world, f *figures) {
	f.time("provision: read parameters", w.n, w.readParams)
	f.time("provision: record volumes", w.n, w.recordVolumes)
	devices := loopDevices(w.n)
	f.time("provision: publish block devices", w.n, func() error { return w.state.SetMachineBlockDevices(machine, devices) })
	f.time("provision: find block devices", w.n, w.findDevices)
	f.time("provision: record filesystems", w.n, w.recordFilesystems)
	f.time("provision: set statuses", w.n, w.setStatuses)
}

// list reads what "stowage status" reads.
func list(w *world, f *figures) {
	f.time("list all", w.n, func() error {
		all, err := w.state.AllStorage()
		for _, s := range all {
			if s.Location == "" {
				return errors.Errorf("%s has no location", s.Name)
			}
		}
		if err == nil && len(all) != w.n {
			err = errors.Errorf("%d instances are listed, want %d", len(all), w.n)
		}
		return err
	})
}

// restart makes the reads of a worker after a restart, and measures the use of memory and disk
// afterwards.
func restart(w *world, f *figures) {
	f.try(w.close)
	before := liveHeap()
	f.time("restart: open", w.n, w.open)
	f.events("restart: tell 4 watchers", w.n, func() (int, error) {
		if err := w.watch(); err != nil {
			return 0, err
		}
		return w.receiveEvents()
	})
	f.time("restart: read all", w.n, w.readAll)
	f.add(figure{"live heap", "B each", float64(liveHeap()-before) / float64(w.n), linear})
	f.try(func() error {
		info, err := os.Stat(w.file())
		if err == nil {
			f.add(figure{"database", "B each", float64(info.Size()) / float64(w.n), linear})
		}
		return err
	})
}

// singleChanges makes changes to one instance, each durable, among all the others.
func singleChanges(w *world, f *figures) {
	f.latency("add one", constant, 100, func(i int) error {
		return w.state.AddStorage(state.StorageParams{
			Name: fmt.Sprintf("more%d", i), Kind: storage.StorageKindFilesystem, Pool: "loop", Size: 64, Machine: machine,
		})
	})
	f.latency("record one volume larger", constant, 100, func(i int) error { return w.recordSize(i%w.n, 65+uint64(i)) })
	f.latency("set one status", constant, 100, func(i int) error { return w.setStatus(i%w.n, fmt.Sprint("remark ", i)) })
	f.latency("find one block device", proportional, 20, func(i int) error { return w.findDevice(i % w.n) })
	f.latency("show one", constant, 100, func(i int) error {
		_, err := w.state.Storage(instanceName(i%w.n, w.n))
		return err
	})
	devices := loopDevices(w.n + 10)
	f.latency("publish block devices, one of them new", proportional, 10, func(i int) error {
		return w.state.SetMachineBlockDevices(machine, devices[:w.n+i+1])
	})
	f.latency("apply a file with one more", proportional, 10, func(i int) error {
		return w.apply(declaration(fmt.Sprintf("file%d", i), 1))
	})
}

// remove makes the requests of users and the records of workers until everything is removed.
func remove(w *world, f *figures) {
	f.time("remove: ask", w.n, func() error {
		return w.state.RemoveStorage(each(w.n, func(i int) string { return instanceName(i, w.n) }))
	})
	f.time("remove: record", w.n, w.recordRemovals)
}

// figures are the measured values, in order. After an error no more are added.
type figures struct {
	all []figure
	err error
}

// figure is one measured value.
type figure struct {
	name, unit string
	value      float64
	// maxGrowth bounds the growth of the value.
	maxGrowth growth
}

// growth is how much a value may grow when the number of instances is ten times as large. The
// bounds are for detecting a regression on any machine: they are far from the values that were
// measured when they were set.
type growth float64

const (
	unbounded growth = 0
	// constant is for one change among many, linear for each of many.
	constant, linear growth = 4, 4
	// proportional is for a change whose cost is proportional to the number of instances.
	proportional growth = 40
)

func (f *figures) add(all ...figure) {
	if f.err == nil {
		f.all = append(f.all, all...)
	}
}

func (f *figures) try(do func() error) {
	if f.err == nil {
		f.err = do()
	}
}

// time measures an operation on n instances.
func (f *figures) time(name string, n int, do func() error) {
	start := time.Now()
	f.try(do)
	f.err = errors.Annotate(f.err, name)
	f.add(figure{name, "µs each", microseconds(time.Since(start)) / float64(n), linear})
}

// events measures receiving the events of watchers that report n instances, and counts them:
// their number must not depend on n. With few instances the time is too short to be compared.
func (f *figures) events(name string, n int, take func() (int, error)) {
	count := 0
	f.time(name, n, func() (err error) {
		count, err = take()
		return err
	})
	if f.err == nil {
		f.all[len(f.all)-1].maxGrowth = unbounded
	}
	f.add(figure{name, "events", float64(count), constant})
}

// latency measures an operation on one instance, repeatedly.
func (f *figures) latency(name string, maxGrowth growth, rounds int, do func(i int) error) {
	all := make([]time.Duration, rounds)
	for i := range all {
		start := time.Now()
		f.try(func() error { return do(i) })
		all[i] = time.Since(start)
	}
	f.err = errors.Annotate(f.err, name)
	slices.Sort(all)
	f.add(
		figure{name + ", p50", "µs", microseconds(all[rounds/2]), maxGrowth},
		figure{name + ", p99", "µs", microseconds(all[rounds*99/100]), unbounded})
}

func microseconds(d time.Duration) float64 { return d.Seconds() * 1e6 }

// liveHeap returns the bytes in use on the heap.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // frees objects that finalizers kept
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
