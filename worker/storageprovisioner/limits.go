package storageprovisioner

import (
	"context"
	"math"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"golang.org/x/time/rate"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// TimeLimits limits how long provider calls may take, by operation; 0: no limit. The time
// counts from when the call is handed to its source, and includes the wait for a
// [storage.RateLimiter]. Attach also limits checks of what is attached.
//
// When a call reaches its limit, the worker cancels the context of the call. A call that
// returns the error of its context may have done something: the worker repeats its operations,
// as after [storage.ErrInProgress]. A call that does not return, because the kernel holds it,
// goes on. The statuses of its entities and the worker's report then say since when; the
// worker does nothing else to these entities, and the source has one call less for everything
// else (see [storage.ConcurrentSource]).
type TimeLimits struct {
	Create, Attach, Detach, Destroy, Resize time.Duration
}

// of returns the limit of an operation.
func (l TimeLimits) of(op plan.Op) time.Duration {
	switch op {
	case plan.Create:
		return l.Create
	case plan.Attach, plan.Check:
		return l.Attach
	case plan.Detach:
		return l.Detach
	case plan.Destroy:
		return l.Destroy
	case plan.Resize:
		return l.Resize
	}
	return 0
}

func (l TimeLimits) validate() error {
	for _, limit := range []struct {
		name  string
		value time.Duration
	}{
		{"Create", l.Create}, {"Attach", l.Attach}, {"Detach", l.Detach}, {"Destroy", l.Destroy}, {"Resize", l.Resize},
	} {
		if limit.value < 0 {
			return errors.NotValidf("negative TimeLimits.%s %v", limit.name, limit.value)
		}
	}
	return nil
}

// limitReached is the cause with which the context of a call that reaches its limit is
// cancelled.
type limitReached time.Duration

func (l limitReached) Error() string {
	return "time limit of " + time.Duration(l).String() + " reached"
}

// timedCall is a provider call and its time limit. The schedule holds a call that has a limit
// until the call ends or reaches the limit.
type timedCall struct {
	batch  plan.Batch
	limit  time.Duration
	cancel context.CancelCauseFunc
}

// newRequest returns the request for a batch. Its context ends with the loop or when the
// call reaches its time limit.
func (l *loop) newRequest(batch plan.Batch) request {
	ctx, cancel := context.WithCancelCause(l.ctx)
	call := &timedCall{batch, l.config.TimeLimits.of(batch.Op), cancel}
	if call.limit > 0 {
		l.schedule.Add(call, call, l.config.Clock.Now().Add(call.limit))
	}
	return request{ctx: ctx, batch: batch, environ: l.environ, timedCall: call}
}

// endCall ends the time limit and the context of a call that has returned.
func (l *loop) endCall(call *timedCall) {
	l.schedule.Remove(call)
	call.cancel(nil)
}

// overdue cancels a call that has reached its limit, and reports to users that the call is
// under way until it returns.
func (l *loop) overdue(call *timedCall) {
	call.cancel(limitReached(call.limit))
	l.config.Logger.Warningf("%s: cancelling the call to %s %d: time limit of %s reached", call.batch.Source, call.batch.Op, len(call.batch.Items), call.limit)
	l.core.Overdue(call.batch, call.limit)
}

// explainLimit adds the time limit to the errors of a call that was cancelled because it had
// reached that limit.
func explainLimit(ctx context.Context, results []plan.Result) {
	reached, ok := context.Cause(ctx).(limitReached)
	if !ok {
		return
	}
	for i := range results {
		if err := results[i].Err; errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			results[i].Err = errors.Annotate(err, reached.Error())
		}
	}
}

// rateLimiter is a token bucket on a clock.
type rateLimiter struct {
	clock  clock.Clock
	bucket *rate.Limiter
}

// NewRateLimiter returns a rate limiter that lets perSecond calls begin each second, and up to burst at once
// after a pause. The error satisfies errors.IsNotValid unless perSecond is positive and finite, burst is at
// least one, and there is a clock.
func NewRateLimiter(clock clock.Clock, perSecond float64, burst int) (storage.RateLimiter, error) {
	switch {
	case clock == nil:
		return nil, errors.NotValidf("nil clock")
	case !(perSecond > 0) || math.IsInf(perSecond, 1):
		return nil, errors.NotValidf("rate of %v calls per second", perSecond)
	case burst < 1:
		return nil, errors.NotValidf("burst of %d calls", burst)
	}
	return &rateLimiter{clock, rate.NewLimiter(rate.Limit(perSecond), burst)}, nil
}

// WaitToCall implements [storage.RateLimiter].
func (l *rateLimiter) WaitToCall(ctx context.Context) error {
	now := l.clock.Now()
	turn := l.bucket.ReserveN(now, 1)
	wait := turn.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	timer := l.clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.Chan():
		return nil
	case <-ctx.Done():
		turn.CancelAt(l.clock.Now())
		return errors.Trace(ctx.Err())
	}
}
