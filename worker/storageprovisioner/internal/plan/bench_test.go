package plan_test

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// BenchmarkCore takes volumes and an attachment of each through their lives with a
// provider and a state that cost nothing. An operation is one volume with its
// attachment; resting-B/op is what the core holds of one that is attached.
func BenchmarkCore(b *testing.B) {
	for _, n := range []int{10_000, 100_000, 1_000_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			resting := 0.0
			for done := 0; done < b.N; done += n {
				b.StopTimer()
				keys := make([]plan.Key, 0, 2*n)
				for i := range n {
					keys = append(keys, volume(strconv.Itoa(i)))
				}
				for i := range n {
					keys = append(keys, on(fmt.Sprintf("machine-%d", i%100), keys[i]))
				}
				before := liveHeap()
				b.StartTimer()
				core := plan.New(plan.Options{Retry: plan.Retry{Min: time.Second, Max: time.Minute, Factor: 2}, Timetable: timetable{}})
				core.Listed(plan.Volume)
				live(core, keys)
				b.StopTimer()
				resting = float64(liveHeap()-before) / float64(n)
				b.StartTimer()
				die(core, keys)
				runtime.KeepAlive(core)
				runtime.KeepAlive(keys)
			}
			b.ReportMetric(resting, "resting-B/op")
		})
	}
}

// BenchmarkCheckMounts measures finding the filesystem that a change of mounts concerns, among n
// that are attached. kept-B/filesystem is what the core keeps for each.
func BenchmarkCheckMounts(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			before := liveHeap()
			core := plan.New(plan.Options{Host: machine, Mounts: true, Timetable: timetable{}})
			core.Listed(plan.Filesystem)
			for i := range n {
				f := filesystem(strconv.Itoa(i))
				core.Observe(wanted(f, recorded))
				core.Observe(wanted(on(machine, f)))
			}
			for _, batch := range core.Batches() {
				var results []plan.Result
				for _, item := range batch.Items {
					r := item.Ended(plan.Result{Info: "info"})
					r.MountPoint = "/srv/data/data-" + item.Key().ID
					results = append(results, r)
				}
				core.Finished(batch.Source, results)
			}
			for _, r := range core.Take().Publish.Records {
				core.Published(r.Subject, nil)
			}
			core.Take()
			core.ReadingMounts()
			core.ReadingMounts() // all filesystems were attached before the reading before
			kept := float64(liveHeap()-before) / float64(n)
			for b.Loop() {
				core.ReadingMounts()
				core.CheckMounts([]string{"/srv/data/data-7", "/home/user"})
				checks := core.Batches()
				if len(checks) != 1 || len(checks[0].Items) != 1 {
					b.Fatalf("%d batches", len(checks))
				}
				core.Finished(checks[0].Source, []plan.Result{checks[0].Items[0].Ended(plan.Result{})})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/filesystem")
			b.ReportMetric(kept, "kept-B/filesystem")
		})
	}
}

func liveHeap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// live makes and attaches the entities.
func live(core *plan.Core, keys []plan.Key) {
	for _, key := range keys {
		core.Observe(wanted(key))
	}
	carryOut(core)
}

// die removes the attachments, and then the volumes.
func die(core *plan.Core, keys []plan.Key) {
	half := len(keys) / 2
	for _, key := range keys[half:] {
		core.Observe(wanted(key, dying, recorded))
	}
	carryOut(core)
	for _, key := range keys[:half] {
		core.Observe(wanted(key, dead, recorded))
	}
	carryOut(core)
}

// carryOut does what the core wants until nothing is left.
func carryOut(core *plan.Core) {
	for {
		batches := core.Batches()
		for _, batch := range batches {
			results := make([]plan.Result, len(batch.Items))
			for i, item := range batch.Items {
				results[i] = item.Ended(plan.Result{ID: item.Key().ID, Info: item.Args})
			}
			core.Finished(batch.Source, results)
		}
		out := core.Take()
		for _, r := range out.Publish.Records {
			core.Published(r.Subject, nil)
		}
		for _, key := range out.Publish.Removals {
			core.Published(key, nil)
		}
		if len(batches) == 0 && out.Publish.Empty() {
			return
		}
	}
}

// timetable has nothing in it.
type timetable struct{}

func (timetable) Add(_, _ any, _ time.Time) {}
func (timetable) Remove(any)                {}
