package process

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/juju/clock"
	"gopkg.in/tomb.v2"
)

// ticks is a watcher whose changes a test sends.
type ticks struct {
	tomb    tomb.Tomb
	changes chan struct{}
}

func newTicks() *ticks {
	w := &ticks{changes: make(chan struct{})}
	w.tomb.Go(func() error {
		<-w.tomb.Dying()
		return nil
	})
	return w
}

func (w *ticks) Changes() <-chan struct{} { return w.changes }
func (w *ticks) Kill()                    { w.tomb.Kill(nil) }
func (w *ticks) Wait() error              { return w.tomb.Wait() }

func TestScavengerReleasesMemoryWhenQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var released atomic.Int32
		changes := newTicks()
		w := newScavenger(clock.WallClock, changes, func() { released.Add(1) })
		expect := func(want int32) {
			t.Helper()
			synctest.Wait()
			if got := released.Load(); got != want {
				t.Errorf("memory was released %d times, want %d", got, want)
			}
		}
		time.Sleep(2 * quietPeriod)
		expect(0)
		changes.changes <- struct{}{}
		time.Sleep(quietPeriod / 2)
		changes.changes <- struct{}{}
		time.Sleep(quietPeriod - time.Second)
		expect(0)
		time.Sleep(time.Second)
		expect(1)
		time.Sleep(10 * quietPeriod)
		expect(1)
		changes.changes <- struct{}{}
		time.Sleep(quietPeriod)
		expect(2)

		w.Kill()
		if err := w.Wait(); err != nil {
			t.Error(err)
		}
		if err := changes.Wait(); err != nil {
			t.Error(err)
		}
	})
}
