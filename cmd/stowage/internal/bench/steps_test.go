package bench

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/cputime"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// measurement measures the operations on a world.
type measurement struct {
	*world
	// figures are the measured values by their units. A unit begins with the figure's name.
	figures map[string]float64
}

// measure runs all steps in a new world with n instances, and returns the figures. Each step
// needs the world that the previous ones left.
func measure(tb testing.TB, n int) map[string]float64 {
	m := &measurement{newWorld(tb, n), map[string]float64{}}
	defer func() { m.must(m.close()) }()
	m.declare()
	m.provision()
	m.list()
	m.restart()
	m.changeSingly()
	m.remove()
	return m.figures
}

// declare does what "stowage apply" does with one file, and receives its events.
func (m *measurement) declare() {
	m.must(m.watch())
	m.time("declare", func() error { return m.apply(declaration("data", m.n)) })
	m.timeEvents("watcher", m.receiveEvents)
}

// provision makes the bulk reads and records of a worker until everything is attached.
func (m *measurement) provision() {
	m.time("read-params", m.readParams)
	m.time("record-volumes", m.recordVolumes)
	devices := loopDevices(m.n)
	m.time("publish-devices", func() error { return m.state.SetMachineBlockDevices(machine, devices) })
	m.time("find-devices", m.findDevices)
	m.time("record-filesystems", m.recordFilesystems)
	m.time("set-statuses", m.setStatuses)
}

// list reads what "stowage status" reads.
func (m *measurement) list() {
	m.time("list", func() error {
		all, err := m.state.AllStorage()
		for _, s := range all {
			if s.Location == "" {
				return errors.Errorf("%s has no location", s.Name)
			}
		}
		if err == nil && len(all) != m.n {
			err = errors.Errorf("%d instances are listed, want %d", len(all), m.n)
		}
		return err
	})
}

// restart makes the reads of a worker after a restart, and measures the use of memory and disk
// afterwards.
func (m *measurement) restart() {
	m.must(m.close())
	before := liveHeap()
	m.time("restart-open", m.open)
	m.timeEvents("restart-watcher", func() (int, error) {
		if err := m.watch(); err != nil {
			return 0, err
		}
		return m.receiveEvents()
	})
	m.time("restart-read", m.readAll)
	devices := loopDevices(m.n)
	m.time("restart-publish-devices", func() error { return m.state.SetMachineBlockDevices(machine, devices) })
	m.figures["heap-B/instance"] = (liveHeap() - before) / float64(m.n)
	info, err := os.Stat(m.file())
	m.must(err)
	m.figures["database-B/instance"] = float64(info.Size()) / float64(m.n)
}

// changeSingly reads and changes one instance at a time, among all the others. Each change is
// durable.
func (m *measurement) changeSingly() {
	m.repeat("add-one", 100, func(i int) error {
		return m.state.AddStorage(state.StorageParams{
			Name: fmt.Sprintf("more%d", i), Kind: storage.StorageKindFilesystem, Pool: "loop", Size: 64, Machine: machine,
		})
	})
	m.repeat("record-one-volume", 100, func(i int) error { return m.recordSize(i%m.n, 65+uint64(i)) })
	m.repeat("set-one-status", 100, func(i int) error { return m.setStatus(i%m.n, fmt.Sprint("remark ", i)) })
	m.repeat("find-one-device", 20, func(i int) error { return m.findDevice(i % m.n) })
	m.repeat("show-one", 100, func(i int) error {
		_, err := m.state.Storage(instanceName(i%m.n, m.n))
		return err
	})
	devices := loopDevices(m.n + 10)
	m.repeat("publish-one-device", 10, func(i int) error {
		return m.state.UpdateMachineBlockDevices(machine, devices[m.n+i:m.n+i+1], nil)
	})
	m.repeat("apply-one-more", 10, func(i int) error {
		return m.apply(declaration(fmt.Sprintf("file%d", i), 1))
	})
}

// remove makes the requests of users and the records of workers until everything is removed.
func (m *measurement) remove() {
	m.time("request-removals", func() error {
		return m.state.RemoveStorage(each(m.n, func(i int) string { return instanceName(i, m.n) }))
	})
	m.time("record-removals", m.recordRemovals)
}

// run runs an operation, and returns the time and the CPU time that it takes. A CPU profile
// has the name as a label.
func (m *measurement) run(name string, do func() error) (wall, cpu time.Duration) {
	runtime.GC()
	pprof.Do(context.Background(), pprof.Labels("figure", name), func(context.Context) {
		start, used := time.Now(), cputime.Used()
		err := do()
		wall, cpu = time.Since(start), cputime.Used()-used
		m.must(errors.Annotate(err, name))
	})
	return wall, cpu
}

// time measures an operation on all instances.
func (m *measurement) time(name string, do func() error) {
	wall, cpu := m.run(name, do)
	m.figures[name+"-ns/instance"] = float64(wall) / float64(m.n)
	m.figures[name+"-cpu-ns/instance"] = float64(cpu) / float64(m.n)
}

// timeEvents measures receiving the events of watchers that report all instances, and counts
// the events.
func (m *measurement) timeEvents(name string, receive func() (events int, err error)) {
	m.time(name, func() error {
		events, err := receive()
		m.figures[name+"-events"] = float64(events)
		return err
	})
}

// repeat measures an operation on one instance, repeatedly. Its CPU time is the mean.
func (m *measurement) repeat(name string, rounds int, do func(i int) error) {
	all := make([]time.Duration, rounds)
	_, cpu := m.run(name, func() error {
		for i := range all {
			start := time.Now()
			if err := do(i); err != nil {
				return err
			}
			all[i] = time.Since(start)
		}
		return nil
	})
	slices.Sort(all)
	m.figures[name+"-p50-ns"] = float64(all[rounds/2])
	m.figures[name+"-p99-ns"] = float64(all[rounds*99/100])
	m.figures[name+"-cpu-ns"] = float64(cpu) / float64(rounds)
}

// liveHeap returns the bytes in use on the heap.
func liveHeap() float64 {
	runtime.GC()
	runtime.GC() // frees objects that finalizers kept
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}
