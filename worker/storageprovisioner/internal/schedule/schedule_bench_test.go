package schedule_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/juju/clock"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/schedule"
)

const (
	// entries is how many values the schedules hold that are measured.
	entries = 1_000_000
	// part is how many of them one measurement removes or takes out.
	part = 100_000
	// minimum is how many times as fast as the reference it must be to take out
	// what is due at one time.
	minimum = 2
	// maxGrowth is how many times as long a value may take to remove among fifty times as
	// many. A search through them would take fifty times as long; caches miss more often.
	maxGrowth = 15
)

// timetable is what the schedule and its reference have in common.
type timetable interface {
	Add(key, value any, due time.Time)
	Remove(key any)
	Ready(now time.Time) []any
	Next() <-chan time.Time
}

var (
	_ timetable = (*schedule.Schedule)(nil)
	_ timetable = (*reference)(nil)
)

// load is what a measured schedule is filled with: keys, as the worker's pointers to
// what they stand for, and when each is due.
type load struct {
	keys []any
	due  []time.Time
	// ready is when those are due that Ready is to take out.
	ready time.Time
}

// start is when the first values are due.
var start = time.Now().Add(time.Hour)

// spread has each key due at a time of its own, in no order.
func spread() load {
	l := newLoad(entries)
	for i, at := range rand.New(rand.NewPCG(1, 1)).Perm(entries) {
		l.due[i] = start.Add(time.Duration(at) * time.Microsecond)
	}
	l.ready = start.Add((part - 1) * time.Microsecond)
	return l
}

// ties has n keys due at one time.
func ties(n int) load {
	l := newLoad(n)
	for i := range l.due {
		l.due[i] = start
	}
	l.ready = start
	return l
}

// tiesAmongOthers has every tenth key due at one time, and each of the others later,
// at a time of its own.
func tiesAmongOthers() load {
	l := spread()
	for i := range l.due {
		if i%(entries/part) == 0 {
			l.due[i] = start
		} else {
			l.due[i] = l.due[i].Add(time.Hour)
		}
	}
	l.ready = start
	return l
}

func newLoad(n int) load {
	l := load{keys: make([]any, n), due: make([]time.Time, n)}
	for i := range l.keys {
		l.keys[i] = new(int)
	}
	return l
}

func (l load) fill(t timetable) {
	for i, key := range l.keys {
		t.Add(key, key, l.due[i])
	}
}

// byTime returns the keys in the order in which they are due.
func (l load) byTime() []any {
	at := make(map[any]time.Time, len(l.keys))
	for i, key := range l.keys {
		at[key] = l.due[i]
	}
	return slices.SortedStableFunc(slices.Values(l.keys), func(a, b any) int { return at[a].Compare(at[b]) })
}

// shuffled returns some of the keys in no order.
func (l load) shuffled() []any {
	keys := slices.Clone(l.keys)
	rand.New(rand.NewPCG(2, 2)).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys[:part]
}

// BenchmarkRemoveTie measures how long one of many values that are due at one time takes to
// remove, and fails when that grows with their number.
func BenchmarkRemoveTie(b *testing.B) {
	const removed = 1000
	remove := func(n int) float64 {
		l := ties(n)
		var c costs
		for range 5 {
			sched := schedule.NewSchedule(clock.WallClock)
			c.measure(sched, removed, l.fill, func(t timetable) {
				for _, key := range l.keys[:removed] {
					t.Remove(key)
				}
			})
			sched.Stop()
		}
		return slices.Min(c.times) // the least disturbed by other processes
	}
	var few, many float64
	for b.Loop() {
		few, many = remove(2*removed), remove(100*removed)
	}
	b.ReportMetric(few, "few-ns")
	b.ReportMetric(many, "many-ns")
	b.ReportMetric(0, "ns/op")
	if many > maxGrowth*few {
		b.Errorf("removing one takes %.0f ns among %d, %.0f ns among %d: more than %d times as long",
			many, 100*removed, few, 2*removed, maxGrowth)
	}
}

// BenchmarkBeside measures the schedule beside the reference, in turns, on a million
// values: the figures are medians, for each value or call. It fails when what is due
// at one time is not taken out [minimum] times as fast.
func BenchmarkBeside(b *testing.B) {
	b.Run("AddSpread", func(b *testing.B) { besideAdding(b, spread()) })
	b.Run("AddTies", func(b *testing.B) { besideAdding(b, ties(entries)) })
	b.Run("RemoveSpread", func(b *testing.B) { besideRemoving(b, spread()) })
	b.Run("RemoveTies", func(b *testing.B) { besideRemoving(b, ties(entries)) })
	b.Run("ReadySpread", func(b *testing.B) { besideReady(b, spread()) })
	slow := false
	b.Run("ReadyTies", func(b *testing.B) { slow = besideReady(b, ties(part)) < minimum })
	b.Run("ReadyTiesAmongOthers", func(b *testing.B) { slow = besideReady(b, tiesAmongOthers()) < minimum || slow })
	if slow {
		b.Errorf("%d values of one time are not taken out %d times as fast as by the reference", part, minimum)
	}
	b.Run("NextArmed", func(b *testing.B) {
		beside(b, part, spread().fill, func(t timetable) {
			for range part {
				t.Next()
			}
		})
	})
	b.Run("RemoveFirstAndNext", func(b *testing.B) {
		l := spread()
		keys := l.byTime()[:part]
		beside(b, part, l.fill, func(t timetable) {
			for _, key := range keys {
				t.Remove(key)
				t.Next()
			}
		})
	})
}

func besideAdding(b *testing.B, l load) {
	beside(b, entries, func(timetable) {}, l.fill)
	b.ReportMetric(room(schedule.NewSchedule(clock.WallClock), l), "schedule-kept-B")
	b.ReportMetric(room(newReference(clock.WallClock), l), "reference-kept-B")
}

// room returns how many bytes are kept for each value.
func room(t timetable, l load) float64 {
	before := heapInUse()
	l.fill(t)
	after := heapInUse()
	runtime.KeepAlive(t)
	return float64(after-before) / float64(len(l.keys))
}

func besideRemoving(b *testing.B, l load) {
	keys := l.shuffled()
	beside(b, part, l.fill, func(t timetable) {
		for _, key := range keys {
			t.Remove(key)
		}
	})
}

func besideReady(b *testing.B, l load) float64 {
	return beside(b, part, l.fill, func(t timetable) {
		if got := len(t.Ready(l.ready)); got != part {
			b.Fatalf("%d values are ready, not %d", got, part)
		}
	})
}

// beside prepares and measures the schedule and the reference in turns, reports what
// each of n values or calls takes, and returns how many times as fast the schedule is.
func beside(b *testing.B, n int, prepare, measured func(timetable)) float64 {
	var ours, theirs costs
	for b.Loop() {
		sched := schedule.NewSchedule(clock.WallClock)
		ours.measure(sched, n, prepare, measured)
		sched.Stop()
		theirs.measure(newReference(clock.WallClock), n, prepare, measured)
	}
	ours.report(b, "schedule")
	theirs.report(b, "reference")
	ratio := median(theirs.times) / median(ours.times)
	b.ReportMetric(ratio, "times-as-fast")
	b.ReportMetric(0, "ns/op")
	return ratio
}

// costs are what a value or call takes, each time that it was measured.
type costs struct {
	times, allocs, bytes []float64
}

func (c *costs) measure(t timetable, n int, prepare, measured func(timetable)) {
	prepare(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	measured(t)
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	c.times = append(c.times, float64(took.Nanoseconds())/float64(n))
	c.allocs = append(c.allocs, float64(after.Mallocs-before.Mallocs)/float64(n))
	c.bytes = append(c.bytes, float64(after.TotalAlloc-before.TotalAlloc)/float64(n))
}

func (c *costs) report(b *testing.B, whose string) {
	b.ReportMetric(median(c.times), whose+"-ns")
	b.ReportMetric(median(c.allocs), whose+"-allocs")
	b.ReportMetric(median(c.bytes), whose+"-B")
}

func median(figures []float64) float64 {
	return slices.Sorted(slices.Values(figures))[len(figures)/2]
}
