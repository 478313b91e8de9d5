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
	"github.com/stowage-io/stowage/state"
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
		case s.Life != life.Alive, len(s.Attachments) == 0, s.Attachments[0].Life != life.Alive:
			return failed // somebody else wants it away
		case s.Status == status.Attached && s.Location != "":
			return reached
		case s.Status == status.Error:
			return failed
		}
		return pending
	}, failed}

	// Storage that is larger than was asked for has grown too.
	resized = goal{"resized", func(s control.Storage) progress {
		switch {
		case s.Life != life.Alive:
			return failed
		case s.SizeMiB >= s.WantedMiB:
			return reached
		case s.Status == status.Error, s.CannotGrowToMiB == s.WantedMiB:
			return failed
		case s.Filesystem != "" && len(s.Attachments) == 0:
			return failed // filesystems grow while they are attached
		}
		return pending
	}, failed}
	grown = goal{"attached and resized", func(s control.Storage) progress {
		if how := attached.progress(s); how != reached {
			return how
		}
		return resized.progress(s)
	}, failed}

	// What cannot be detached or destroyed now is tried again, so neither of
	// these fails.
	detached = goal{"detached", func(s control.Storage) progress {
		if len(s.Attachments) == 0 && s.Status != status.Detaching {
			return reached
		}
		return pending
	}, reached}
	removed = goal{"removed", func(s control.Storage) progress {
		if s.Life == life.Alive {
			return reached // it is another of that name, made since
		}
		return pending
	}, reached}
)

// outcome sorts storage by how far it is.
type outcome struct {
	reached         int
	pending, failed []string
}

func (o *outcome) add(how progress, line func() string) {
	switch how {
	case reached:
		o.reached++
	case pending:
		o.pending = append(o.pending, line())
	case failed:
		o.failed = append(o.failed, line())
	}
}

// outcome sorts the storage in a view. What was asked for by name and has never been
// there is gone.
func (g goal) outcome(v *view, names []string) outcome {
	var o outcome
	there := map[string]bool{}
	for name := range v.seen {
		base := state.BaseName(name)
		there[name], there[base] = true, true
		if s, ok := v.get(name); ok {
			o.add(g.progress(s), func() string { return table.Line(s) })
		} else {
			o.add(g.gone, func() string { return name + " is gone" })
		}
	}
	for _, name := range names {
		if !there[name] {
			there[name] = true
			o.add(g.gone, func() string { return name + " is gone" })
		}
	}
	slices.SortFunc(o.pending, table.CompareNames)
	slices.SortFunc(o.failed, table.CompareNames)
	return o
}

const errSettled = errors.ConstError("settled")

// timedOut is why the context of a command ends when its time is up.
type timedOut struct{ after time.Duration }

func (e timedOut) Error() string {
	return fmt.Sprintf("timed out after %s: the agent has not answered", e.after)
}

func (e timedOut) Is(target error) bool { return target == errTimedOut }

// wait follows the named storage, and shows it, until all of it has reached the
// goal or failed. The error names what failed, or what was pending when the
// context ended.
func wait(ctx context.Context, source source, names []string, g goal, d display) error {
	v := newView()
	pendings := map[string]bool{}
	err := follow(ctx, source, names, v, d, func(event control.Event) error {
		for _, s := range event.Storage {
			if g.progress(s) == pending {
				pendings[s.Name] = true
			} else {
				delete(pendings, s.Name)
			}
		}
		for _, name := range event.Gone { // which nobody waits for
			delete(pendings, name)
		}
		if len(pendings) == 0 {
			return errSettled
		}
		return nil
	})
	o := g.outcome(v, names)
	all := o.reached + len(o.pending) + len(o.failed)
	var late timedOut
	switch {
	case errors.Is(err, errSettled) && len(o.failed) > 0:
		return errors.Errorf("%d of %d not %s: %s", len(o.failed), all, g.name, several(o.failed))
	case errors.Is(err, errSettled) && all == 0:
		return d.finish("no storage")
	case errors.Is(err, errSettled):
		return d.finish(fmt.Sprintf("all %d %s", o.reached, g.name))
	case ctx.Err() == nil:
		return err
	case len(v.seen) == 0:
		return context.Cause(ctx)
	case errors.As(context.Cause(ctx), &late):
		return errors.WithType(errors.Errorf("timed out after %s: %d of %d not %s: %s",
			late.after, all-o.reached, all, g.name, several(append(o.pending, o.failed...))), errTimedOut)
	}
	return errors.Errorf("interrupted: %d of %d not %s", all-o.reached, all, g.name)
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
func follow(ctx context.Context, source source, names []string, v *view, d display, after func(control.Event) error) error {
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
				if err := after(event); err != nil {
					return err
				}
			}
		}
	})
	return group.Wait()
}
