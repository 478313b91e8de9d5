package storageprovisioner_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// Behaviour O4.
func TestRateLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, err := storageprovisioner.NewRateLimiter(clock.WallClock, 0.5, 2)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		wantCallAt := func(at time.Duration) {
			t.Helper()
			if err := limiter.WaitToCall(t.Context()); err != nil {
				t.Fatal(err)
			}
			if after := time.Since(begun); after != at {
				t.Errorf("a call after %s, want %s", after, at)
			}
		}
		wantCallAt(0)
		wantCallAt(0) // the burst
		wantCallAt(2 * time.Second)

		// A caller that gives up takes no other's turn.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := limiter.WaitToCall(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call that gives up: %v", err)
		}
		wantCallAt(4 * time.Second)

		<-time.After(time.Minute)
		wantCallAt(time.Minute + 4*time.Second)
		wantCallAt(time.Minute + 4*time.Second)
		wantCallAt(time.Minute + 6*time.Second)
	})
}

func TestRateLimiterRefusesInvalidRates(t *testing.T) {
	for _, test := range []struct {
		clock clock.Clock
		rate  float64
		burst int
		want  string
	}{
		{nil, 1, 1, "nil clock not valid"},
		{clock.WallClock, 0, 1, "rate of 0 calls per second not valid"},
		{clock.WallClock, math.NaN(), 1, "rate of NaN calls per second not valid"},
		{clock.WallClock, math.Inf(1), 1, "rate of +Inf calls per second not valid"},
		{clock.WallClock, 1, 0, "burst of 0 calls not valid"},
	} {
		_, err := storageprovisioner.NewRateLimiter(test.clock, test.rate, test.burst)
		if err == nil || err.Error() != test.want || !errors.Is(err, errors.NotValid) {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
}
