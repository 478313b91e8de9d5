package storageprovisioner

import (
	"context"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// TimeLimits says how long calls of a provider may take, by what they do; 0: as long as they
// take. They count from when the call is given to its source, waiting for a
// [storage.RateLimiter] included. Attach is also that of looking at what is attached.
//
// When a call reaches its limit, its context is cancelled. A call that returns with the error
// of its context may have done something: its operations are repeated, as after
// [storage.ErrInProgress]. One that does not return, for the kernel holds it, goes on: the
// status of what it is about and the worker's report say since when, nothing else is done to
// that, and the source has one call less for everything else (see [storage.ConcurrentSource]).
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

// limitReached is why a call's context is cancelled when the call has reached its limit.
type limitReached time.Duration

func (l limitReached) Error() string {
	return "time limit of " + time.Duration(l).String() + " reached"
}

// timedCall is a provider call that has a time limit; the schedule has it until then.
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

// overdue tells a call that has reached its limit to end, and users that it goes on until it
// does.
func (l *loop) overdue(call *timedCall) {
	call.cancel(limitReached(call.limit))
	l.config.Logger.Warningf("%s: %d take longer than %s", call.batch.Source, len(call.batch.Items), call.limit)
	l.core.Overdue(call.batch, call.limit)
}

// explainLimit adds to the errors of a call that has reached its limit, and ended for that,
// why it was cancelled.
func explainLimit(ctx context.Context, results []plan.Result) {
	var reached limitReached
	if !errors.As(context.Cause(ctx), &reached) {
		return
	}
	for i := range results {
		if err := results[i].Err; errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			results[i].Err = errors.Annotate(err, reached.Error())
		}
	}
}
