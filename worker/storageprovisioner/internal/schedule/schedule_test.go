package schedule_test

import (
	"cmp"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
	"weak"

	"github.com/juju/clock"
	"github.com/juju/clock/testclock"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"
	"pgregory.net/rapid"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/schedule"
)

func init() {
	// The same cases every time, unless the command line has another seed.
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
}

func TestPackage(t *testing.T) { gc.TestingT(t) }

type scheduleSuite struct {
	clock    *testclock.Clock
	start    time.Time
	schedule *schedule.Schedule
}

var _ = gc.Suite(&scheduleSuite{})

func (s *scheduleSuite) SetUpTest(c *gc.C) {
	s.start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s.clock = testclock.NewClock(s.start)
	s.schedule = schedule.NewSchedule(s.clock)
}

func (s *scheduleSuite) at(seconds int) time.Time {
	return s.start.Add(time.Duration(seconds) * time.Second)
}

func (s *scheduleSuite) fired(ch <-chan time.Time) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func (s *scheduleSuite) TestEmptyNeverFires(c *gc.C) {
	c.Check(s.schedule.Next(), gc.IsNil)
	c.Check(s.schedule.Ready(s.at(1e6)), gc.HasLen, 0)
}

func (s *scheduleSuite) TestReadyOrdersByTimeThenAddition(c *gc.C) {
	s.schedule.Add("late", "late", s.at(3))
	s.schedule.Add("tie-2", "tie-2", s.at(2))
	s.schedule.Add("early", "early", s.at(1))
	s.schedule.Add("tie-1", "tie-1", s.at(2).In(time.FixedZone("elsewhere", 3600)))
	c.Check(s.schedule.Ready(s.at(2)), jc.DeepEquals, []any{"early", "tie-2", "tie-1"})
	c.Check(s.schedule.Ready(s.at(2)), gc.HasLen, 0)
	c.Check(s.schedule.Ready(s.at(3)), jc.DeepEquals, []any{"late"})
	c.Check(s.schedule.Len(), gc.Equals, 0)
}

func (s *scheduleSuite) TestAddReplacesSameKey(c *gc.C) {
	s.schedule.Add("k", "old", s.at(1))
	s.schedule.Add("k", "new", s.at(2))
	c.Check(s.schedule.Ready(s.at(1)), gc.HasLen, 0)
	c.Check(s.schedule.Ready(s.at(2)), jc.DeepEquals, []any{"new"})
}

func (s *scheduleSuite) TestRemove(c *gc.C) {
	s.schedule.Remove("absent")
	s.schedule.Add("a", 1, s.at(1))
	s.schedule.Add("b", 2, s.at(1))
	s.schedule.Remove("a")
	s.schedule.Remove("a")
	c.Check(s.schedule.Ready(s.at(1)), jc.DeepEquals, []any{2})
	s.schedule.Add("c", 3, s.at(2))
	s.schedule.Remove("c")
	c.Check(s.schedule.Next(), gc.IsNil)
}

func (s *scheduleSuite) TestTimesWithinOneSecondAreDistinct(c *gc.C) {
	early, late := s.start.Add(200*time.Millisecond), s.start.Add(500*time.Millisecond)
	for range 2 { // the second round begins with an empty schedule
		s.schedule.Add("late", "late", late)
		s.schedule.Add("early", "early", early)
		c.Check(s.schedule.Ready(early), jc.DeepEquals, []any{"early"})
		c.Check(s.schedule.Ready(late), jc.DeepEquals, []any{"late"})
	}
	s.schedule.Add("removed", "removed", late)
	s.schedule.Remove("removed")
	s.schedule.Add("late", "late", late)
	c.Check(s.schedule.Ready(late), jc.DeepEquals, []any{"late"})
}

func (s *scheduleSuite) TestNextFiresAtEarliestTime(c *gc.C) {
	s.schedule.Add("b", 2, s.at(20))
	s.schedule.Next()
	s.schedule.Add("a", 1, s.at(10))
	next := s.schedule.Next()
	c.Assert(s.clock.WaitAdvance(9*time.Second, time.Second, 1), jc.ErrorIsNil)
	c.Check(s.fired(next), jc.IsFalse)
	c.Assert(s.clock.WaitAdvance(time.Second, time.Second, 1), jc.ErrorIsNil)
	c.Check(s.fired(next), jc.IsTrue)
	c.Check(s.schedule.Ready(s.clock.Now()), jc.DeepEquals, []any{1})
	next = s.schedule.Next()
	c.Assert(s.clock.WaitAdvance(10*time.Second, time.Second, 1), jc.ErrorIsNil)
	c.Check(s.fired(next), jc.IsTrue)
}

func (s *scheduleSuite) TestNextFiresAtOnceForOverdue(c *gc.C) {
	s.schedule.Add("k", 1, s.at(-5))
	c.Check(s.fired(s.schedule.Next()), jc.IsTrue)
}

// A timer that has fired while nobody listened must neither fire for the next
// value nor block the clock.
func (s *scheduleSuite) TestFiredUnreadTimerIsResetAfterReady(c *gc.C) {
	s.schedule.Add("a", 1, s.at(1))
	s.schedule.Next()
	s.clock.Advance(time.Second)
	c.Check(s.schedule.Ready(s.clock.Now()), jc.DeepEquals, []any{1})
	s.schedule.Add("b", 2, s.at(5))
	next := s.schedule.Next()
	c.Check(s.fired(next), jc.IsFalse)
	s.clock.Advance(4 * time.Second)
	c.Check(s.fired(next), jc.IsTrue)
	s.clock.Advance(time.Second)
}

// The same after the value has been removed instead.
func (s *scheduleSuite) TestFiredUnreadTimerIsResetAfterRemove(c *gc.C) {
	s.schedule.Add("a", 1, s.at(1))
	s.schedule.Next()
	s.clock.Advance(time.Second)
	s.schedule.Remove("a")
	s.schedule.Add("b", 2, s.at(5))
	next := s.schedule.Next()
	c.Check(s.fired(next), jc.IsFalse)
	s.clock.Advance(4 * time.Second)
	c.Check(s.fired(next), jc.IsTrue)
}

// A value may be added for the time of those that Ready has just returned.
func (s *scheduleSuite) TestNextFiresAgainForSameTime(c *gc.C) {
	s.schedule.Add("a", 1, s.at(1))
	next := s.schedule.Next()
	s.clock.Advance(time.Second)
	c.Assert(s.fired(next), jc.IsTrue)
	c.Assert(s.schedule.Ready(s.at(1)), jc.DeepEquals, []any{1})
	s.schedule.Add("b", 2, s.at(1))
	c.Check(s.fired(s.schedule.Next()), jc.IsTrue)
}

func (s *scheduleSuite) TestNextTwice(c *gc.C) {
	s.schedule.Add("a", 1, s.at(1))
	s.schedule.Next()
	next := s.schedule.Next()
	s.clock.Advance(time.Second)
	c.Check(s.fired(next), jc.IsTrue)
}

func (s *scheduleSuite) TestNoTimerWhenEmpty(c *gc.C) {
	s.schedule.Add("a", 1, s.at(1))
	s.schedule.Next()
	s.schedule.Remove("a")
	c.Check(s.schedule.Next(), gc.IsNil)
	c.Check(s.clock.WaitAdvance(time.Second, 0, 0), jc.ErrorIsNil)
}

// countingClock counts the timers that are made.
type countingClock struct {
	clock.Clock
	timers int
}

func (c *countingClock) NewTimer(d time.Duration) clock.Timer {
	c.timers++
	return c.Clock.NewTimer(d)
}

func (s *scheduleSuite) TestOneTimerServesAllTimes(c *gc.C) {
	counting := &countingClock{Clock: s.clock}
	sched := schedule.NewSchedule(counting)
	for i := range 10 {
		sched.Add(i, i, s.at(10-i))
		sched.Next()
	}
	sched.Stop()
	c.Check(counting.timers, gc.Equals, 1)
}

func (s *scheduleSuite) TestTimerSetOnlyForNewEarliestTime(c *gc.C) {
	s.schedule.Add("a", 1, s.at(1))
	s.schedule.Next()
	<-s.clock.Alarms()
	for i := range 10 {
		s.schedule.Add(i, i, s.at(10+i))
		s.schedule.Ready(s.at(0))
		s.schedule.Next()
	}
	select {
	case <-s.clock.Alarms():
		c.Fatal("the timer was set again")
	default:
	}
}

func (s *scheduleSuite) TestNoTimerAfterStop(c *gc.C) {
	s.schedule.Add("a", 1, s.at(1))
	s.schedule.Next()
	s.schedule.Stop()
	c.Check(s.clock.WaitAdvance(time.Second, 0, 0), jc.ErrorIsNil)
}

func (s *scheduleSuite) TestNextAfterStop(c *gc.C) {
	s.schedule.Add("a", 1, s.at(1))
	s.schedule.Next()
	s.schedule.Stop()
	next := s.schedule.Next()
	s.clock.Advance(time.Second)
	c.Check(s.fired(next), jc.IsTrue)
}

// A value that was returned or removed can be collected, even while others of its time and
// of later ones stay.
func (s *scheduleSuite) TestRemovedValuesAreCollectable(c *gc.C) {
	add := func(key string, due time.Time) weak.Pointer[[64]byte] {
		value := new([64]byte)
		s.schedule.Add(key, value, due)
		return weak.Make(value)
	}
	ready := add("ready", s.at(1))
	var ties []weak.Pointer[[64]byte]
	for i := range 5 {
		ties = append(ties, add(fmt.Sprint(i), s.at(2)))
	}
	s.schedule.Ready(s.at(1))
	for i := range 4 {
		s.schedule.Remove(fmt.Sprint(i))
	}
	runtime.GC()
	c.Check(ready.Value(), gc.IsNil)
	for i, tie := range ties {
		c.Check(tie.Value() == nil, gc.Equals, i < 4, gc.Commentf("tie %d", i))
	}
	c.Check(s.schedule.Len(), gc.Equals, 1)
}

// Postponing one key again and again does not allocate memory each time.
func (s *scheduleSuite) TestReplacingKeyDoesNotAllocate(c *gc.C) {
	s.schedule.Add("stays", "stays", s.at(1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100_000 {
		s.schedule.Add("k", "k", s.at(1))
	}
	runtime.ReadMemStats(&after)
	c.Check(after.TotalAlloc-before.TotalAlloc < 1<<20, jc.IsTrue,
		gc.Commentf("%d bytes were allocated", after.TotalAlloc-before.TotalAlloc))
}

func (s *scheduleSuite) TestNextDoesNotAllocate(c *gc.C) {
	s.schedule.Add("a", 1, s.at(1))
	s.schedule.Next()
	c.Check(testing.AllocsPerRun(100, func() { s.schedule.Next() }), gc.Equals, 0.0)
}

func (s *scheduleSuite) TestNextResetDoesNotAllocate(c *gc.C) {
	const runs = 100
	sched := schedule.NewSchedule(clock.WallClock)
	defer sched.Stop()
	keys := make([]any, runs+3) // one run warms up, one key stays, Next is asked once before
	for i := range keys {
		keys[i] = i
		sched.Add(keys[i], nil, time.Now().Add(time.Hour+time.Duration(i)*time.Second))
	}
	sched.Next()
	c.Check(testing.AllocsPerRun(runs, func() {
		sched.Remove(keys[0])
		keys = keys[1:]
		sched.Next()
	}), gc.Equals, 0.0)
}

func (s *scheduleSuite) TestMemory(c *gc.C) {
	const values = 100_000
	keys := make([]any, values)
	for i := range keys {
		keys[i] = i
	}
	before := heapInUse()
	for i, key := range keys {
		s.schedule.Add(key, nil, s.at(i))
	}
	each := (heapInUse() - before) / values
	c.Check(s.schedule.Len(), gc.Equals, values)
	c.Check(each <= 130, jc.IsTrue, gc.Commentf("%d bytes each", each))
}

// Once they are gone, very many values leave no memory in use.
func (s *scheduleSuite) TestEmptyScheduleFreesMemory(c *gc.C) {
	const values = 100_000
	empty := map[string]func(){
		"taken out": func() { s.schedule.Ready(s.at(2 * values)) },
		"removed": func() {
			for i := range values {
				s.schedule.Remove(i)
			}
		},
	}
	for how, empty := range empty {
		before := heapInUse()
		for i := range values {
			s.schedule.Add(i, nil, s.at(values-i))
		}
		empty()
		c.Assert(s.schedule.Len(), gc.Equals, 0)
		kept := heapInUse() - before
		c.Check(kept < 100<<10, jc.IsTrue, gc.Commentf("%s: %d bytes are kept", how, kept))
	}
}

func heapInUse() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// The schedule agrees with a list that is sorted for each query, after any operations on
// both.
func TestAgreesWithSortedList(t *testing.T) {
	type item struct {
		key, seq, due int
	}
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	keys, times := rapid.IntRange(0, 30), rapid.IntRange(0, 10)
	rapid.Check(t, func(t *rapid.T) {
		sched := schedule.NewSchedule(testclock.NewClock(start))
		var list []item
		seq := 0
		remove := func(key int) {
			list = slices.DeleteFunc(list, func(i item) bool { return i.key == key })
		}
		ready := func(now int) {
			slices.SortFunc(list, func(a, b item) int { return cmp.Or(a.due-b.due, a.seq-b.seq) })
			var want []any
			for len(list) > 0 && list[0].due <= now {
				want = append(want, list[0].seq)
				list = list[1:]
			}
			if got := sched.Ready(at(now)); !slices.Equal(got, want) {
				t.Fatalf("at %d, %v are ready, not %v", now, got, want)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				key, due := keys.Draw(t, "key"), times.Draw(t, "due")
				seq++
				remove(key)
				list = append(list, item{key, seq, due})
				sched.Add(key, seq, at(due))
			},
			"remove": func(t *rapid.T) {
				key := keys.Draw(t, "key")
				remove(key)
				sched.Remove(key)
			},
			"ready": func(t *rapid.T) { ready(times.Draw(t, "now")) },
			"": func(t *rapid.T) {
				if sched.Len() != len(list) {
					t.Fatalf("Len is %d, not %d", sched.Len(), len(list))
				}
			},
		})
		ready(10)
	})
}
