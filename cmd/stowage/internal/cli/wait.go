package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

// progress is how far one storage is on the way to a goal.
type progress int

const (
	pending progress = iota
	reached
	// failed is when waiting longer cannot help.
	failed
)

// source tells of storage: a client, or the agent itself.
type source interface {
	Watch(ctx context.Context, names []string, each func(control.Event) error) error
}

// goal is what to wait for.
type goal struct {
	name string
	// progress of storage that is there, and of storage that is gone.
	progress func(control.Storage) progress
	gone     progress
}

var (
	// Storage without a location is not there for anybody yet: that of a block
	// device comes when the disk manager has seen it.
	attached = goal{"attached", func(s control.Storage) progress {
		switch {
		case s.Life != life.Alive:
			return failed
		case s.Status == status.Attached && s.Location != "":
			return reached
		case s.Status == status.Error:
			return failed
		}
		return pending
	}, failed}

	// What cannot be detached or destroyed now is tried again, so neither of
	// these fails.
	detached = goal{"detached", func(s control.Storage) progress {
		if len(s.Attachments) == 0 && s.Status != status.Detaching {
			return reached
		}
		return pending
	}, reached}
	removed = goal{"removed", func(control.Storage) progress { return pending }, reached}
)

// outcome sorts storage by how far it is.
type outcome struct {
	reached         int
	pending, failed []string
}

func (g goal) outcome(v *view) outcome {
	var o outcome
	for name := range v.seen {
		how, line := g.gone, name+" is gone"
		if s, ok := v.byName[name]; ok {
			how, line = g.progress(s), table.Line(s)
		}
		switch how {
		case reached:
			o.reached++
		case pending:
			o.pending = append(o.pending, line)
		case failed:
			o.failed = append(o.failed, line)
		}
	}
	slices.SortFunc(o.pending, table.CompareNames)
	slices.SortFunc(o.failed, table.CompareNames)
	return o
}

const errSettled = errors.ConstError("settled")

// wait follows the named storage, and shows it, until all of it has reached the
// goal or failed. A timeout of zero is none. The error names what failed, or what
// was pending when the time was up.
func wait(ctx context.Context, source source, names []string, g goal, timeout time.Duration, d display) (reached int, err error) {
	v := newView()
	limited := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	err = follow(limited, source, names, v, d, func() error {
		if len(g.outcome(v).pending) == 0 {
			return errSettled
		}
		return nil
	})
	o := g.outcome(v)
	switch {
	case errors.Is(err, errSettled):
		if len(o.failed) > 0 {
			return o.reached, errors.Errorf("%d of %d not %s: %s", len(o.failed), len(v.seen), g.name, several(o.failed))
		}
		return o.reached, nil
	case ctx.Err() != nil:
		return o.reached, errors.Errorf("interrupted: %d of %d not %s", len(o.pending)+len(o.failed), len(v.seen), g.name)
	case limited.Err() != nil && len(v.seen) == 0:
		return 0, errors.WithType(errors.Errorf("timed out after %s: the agent has not answered", timeout), errTimedOut)
	case limited.Err() != nil:
		return o.reached, errors.WithType(errors.Errorf("timed out after %s: %d of %d not %s: %s",
			timeout, len(o.pending)+len(o.failed), len(v.seen), g.name, several(append(o.pending, o.failed...))), errTimedOut)
	}
	return o.reached, err
}

// several lists the first of many.
func several(list []string) string {
	const most = 5
	if len(list) > most {
		return fmt.Sprintf("%s; and %d more", strings.Join(list[:most], "; "), len(list)-most)
	}
	return strings.Join(list, "; ")
}

// follow keeps a view of the named storage, and shows it, until the context ends,
// the agent goes away, or after returns an error. after is called after every
// event.
func follow(ctx context.Context, source source, names []string, v *view, d display, after func() error) error {
	group, ctx := errgroup.WithContext(ctx)
	events := make(chan control.Event)
	group.Go(func() error {
		return source.Watch(ctx, names, func(event control.Event) error {
			select {
			case events <- event:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	group.Go(func() error {
		redraw := time.NewTicker(time.Second)
		defer redraw.Stop()
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-redraw.C:
				if err := d.tick(v); err != nil {
					return err
				}
			case event := <-events:
				changed, gone := v.apply(event)
				if err := d.show(v, changed, gone); err != nil {
					return err
				}
				if err := after(); err != nil {
					return err
				}
			}
		}
	})
	return group.Wait()
}
