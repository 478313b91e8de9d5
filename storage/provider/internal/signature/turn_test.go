//go:build linux

package signature

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// reading makes a prober read for the duration long. It sends the time at which the read
// begins.
func reading(turn *Turn, limit, long time.Duration, begun chan<- time.Time) error {
	p := &Prober{Limit: limit, Turn: turn}
	return p.inTime(context.Background(), 1<<20, &reader{}, func(ctx context.Context) error {
		begun <- time.Now()
		select {
		case <-time.After(long):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// Probers that share a turn read devices one after another, and the time limit of each
// counts from the start of its read.
func TestDevicesAreReadOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn Turn
		const limit, long = time.Minute, 40 * time.Second
		begun, ended := make(chan time.Time, 2), make(chan error, 2)
		for range 2 {
			go func() { ended <- reading(&turn, limit, long, begun) }()
		}
		first, second := <-begun, <-begun
		if apart := second.Sub(first); apart < long || apart > long+time.Second {
			t.Errorf("they begin %s apart, each takes %s", apart, long)
		}
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// A hung device that exceeds its limit delays the next one only for that limit.
func TestHungDeviceDelayIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn Turn
		thaw, ended := make(chan struct{}), make(chan error)
		go func() {
			p := &Prober{Limit: time.Minute, Turn: &turn}
			ended <- p.inTime(t.Context(), 1<<20, &reader{}, func(context.Context) error {
				<-thaw
				return nil
			})
		}()
		synctest.Wait()
		start, begun := time.Now(), make(chan time.Time, 1)
		if err := reading(&turn, time.Minute, time.Second, begun); err != nil {
			t.Error(err)
		}
		if waited := (<-begun).Sub(start); waited < time.Minute || waited > 61*time.Second {
			t.Errorf("the next waits for %s", waited)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turn.take(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting with a context that ends: %v", err)
		}
		close(thaw)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
