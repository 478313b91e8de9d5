package csi

import (
	"context"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
)

// patience is how long a call waits while the last attempt of what it waits for has failed.
const patience = 5 * time.Second

// await waits until a volume is as wanted, or a failure has lasted for a while: the error, which
// satisfies errors.Is(err, errFailing), says what has failed.
func await(ctx context.Context, clock clock.Clock, volumes asked.Volumes, id string, done asked.Done) (asked.Volume, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var failing clockTimer
	defer failing.stop()
	v, err := volumes.Await(ctx, id, func(v *asked.Volume) (bool, error) {
		ok, err := done(v)
		if ok || err != nil {
			return ok, err
		}
		problem := v.Problem()
		if problem == "" {
			failing.stop()
		} else {
			failing.start(clock, patience, func() {
				cancel(errors.WithType(errors.Errorf("%s: it is tried again: see `stowage status`", problem), errFailing))
			})
		}
		return false, nil
	})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return v, err
}

// clockTimer is a timer that is started once until it is stopped.
type clockTimer struct{ timer clock.Timer }

func (t *clockTimer) start(clock clock.Clock, after time.Duration, f func()) {
	if t.timer == nil {
		t.timer = clock.AfterFunc(after, f)
	}
}

func (t *clockTimer) stop() {
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}
