package process

import (
	"context"
	"time"

	"github.com/juju/clock"
	"github.com/juju/worker/v4"
	"gopkg.in/tomb.v2"
)

// every is a worker that does something again and again.
type every struct{ tomb tomb.Tomb }

// Every returns a worker that calls do at once and after each interval. An error of do ends it.
func Every(clock clock.Clock, interval time.Duration, do func() error) worker.Worker {
	return EveryIn(clock, interval, func(context.Context) error { return do() })
}

// EveryIn is Every with a context that ends when the worker is killed.
func EveryIn(clock clock.Clock, interval time.Duration, do func(context.Context) error) worker.Worker {
	w := &every{}
	ctx := w.tomb.Context(context.Background())
	w.tomb.Go(func() error {
		for {
			if err := do(ctx); err != nil {
				return err
			}
			timer := clock.NewTimer(interval)
			select {
			case <-w.tomb.Dying():
				timer.Stop()
				return tomb.ErrDying
			case <-timer.Chan():
			}
		}
	})
	return w
}

// Kill implements worker.Worker.
func (w *every) Kill() { w.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (w *every) Wait() error { return w.tomb.Wait() }
