package asked

import (
	"context"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
)

// Patience is how long [Await] waits while the last attempt of what it waits for has failed.
const Patience = 5 * time.Second

// ErrFailing is the error of storage that does not get on.
const ErrFailing = errors.ConstError("it is tried again")

// Await waits until a volume is as wanted, or a failure has lasted for a while: the error, which
// satisfies errors.Is(err, ErrFailing), says what has failed.
func Await(ctx context.Context, clock clock.Clock, volumes Volumes, id string, done Done) (Volume, error) {
	ctx, p := patiently(ctx, clock, "stowage status")
	defer p.end()
	v, err := volumes.Await(ctx, id, func(v *Volume) (bool, error) {
		ok, err := done(v)
		p.see(v.Problem())
		return ok, err
	})
	return v, p.explain(ctx, err)
}

// AwaitSnapshot is Await for a snapshot.
func AwaitSnapshot(ctx context.Context, clock clock.Clock, volumes Manager, id string, done func(*Snapshot) (bool, error)) (Snapshot, error) {
	ctx, p := patiently(ctx, clock, "stowage snapshot list")
	defer p.end()
	s, err := volumes.AwaitSnapshot(ctx, id, func(s *Snapshot) (bool, error) {
		ok, err := done(s)
		p.see(s.Message)
		return ok, err
	})
	return s, p.explain(ctx, err)
}

// patience ends a wait when a problem has lasted for a while.
type patience struct {
	clock   clock.Clock
	command string // that shows the problem
	cancel  context.CancelCauseFunc
	timer   clock.Timer // nil while there is no problem
}

func patiently(ctx context.Context, clock clock.Clock, command string) (context.Context, *patience) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &patience{clock: clock, command: command, cancel: cancel}
}

// see notes what is wrong at the moment; "" for nothing.
func (p *patience) see(problem string) {
	switch {
	case problem == "":
		p.stop()
	case p.timer == nil:
		p.timer = p.clock.AfterFunc(Patience, func() {
			p.cancel(errors.WithType(errors.Errorf("%s: it is tried again: see `%s`", problem, p.command), ErrFailing))
		})
	}
}

func (p *patience) stop() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

func (p *patience) end() {
	p.stop()
	p.cancel(nil)
}

// explain returns the error of a wait with ctx.
func (p *patience) explain(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
