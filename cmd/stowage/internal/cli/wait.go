package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
)

// progress says whether a storage instance has reached a goal.
type progress int

const (
	pending progress = iota
	reached
	// failed means that waiting longer cannot help.
	failed
)

// source follows storage, by a client or in the agent itself.
type source func(ctx context.Context, names []string, each func(user.Event) error) error

// goal is what to wait for.
type goal struct {
	name string
	// progress of storage that is there, and of storage that is gone.
	progress func(user.Storage) progress
	gone     progress
}

var (
	// Storage without a location cannot be used yet: a block device has one when the
	// disk manager has seen it.
	attached = goal{"attached", func(s user.Storage) progress {
		switch {
		case s.Life != life.Alive, len(s.Attachments) == 0, s.Attachments[0].Life != life.Alive:
			return failed // somebody else has requested its removal
		case s.Status == status.Attached && s.Location != "":
			return reached
		case s.Status == status.Error:
			return failed
		}
		return pending
	}, failed}

	// Storage that is larger than requested counts as resized.
	resized = goal{"resized", func(s user.Storage) progress {
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
	grown = goal{"attached and resized", func(s user.Storage) progress {
		if how := attached.progress(s); how != reached {
			return how
		}
		return resized.progress(s)
	}, failed}

	// Detaching and destroying are retried for ever, so neither of these fails.
	detached = goal{"detached", func(s user.Storage) progress {
		if len(s.Attachments) == 0 && s.Status != status.Detaching {
			return reached
		}
		return pending
	}, reached}
	removed = goal{"removed", func(s user.Storage) progress {
		if s.Life == life.Alive {
			return reached // new storage with the same name
		}
		return pending
	}, reached}
)

// orDetached returns the goal for storage, some of it to be made and not attached.
func (g goal) orDetached(names []string) goal {
	if len(names) == 0 {
		return g
	}
	toDetach := make(map[string]bool, len(names))
	for _, name := range names {
		toDetach[name] = true
	}
	return goal{g.name + ", or detached as declared", func(s user.Storage) progress {
		switch {
		case !toDetach[s.Name]:
			return g.progress(s)
		case s.Life != life.Alive, s.Status == status.Error:
			return failed
		case len(s.Attachments) == 0 && s.Status == status.Detached:
			return reached
		}
		return pending
	}, g.gone}
}

// outcome groups storage by its progress.
type outcome struct {
	reached         int
	pending, failed []string
}

func (o *outcome) add(p progress, line func() string) {
	switch p {
	case reached:
		o.reached++
	case pending:
		o.pending = append(o.pending, line())
	case failed:
		o.failed = append(o.failed, line())
	}
}

// outcome groups the storage in a view. Named storage that was never seen counts as gone.
func (g goal) outcome(v *view, names []string) outcome {
	var o outcome
	known := map[string]bool{}
	for name := range v.seen {
		base := state.BaseName(name)
		known[name], known[base] = true, true
		if s, ok := v.get(name); ok {
			o.add(g.progress(s), func() string { return table.Line(s) })
		} else {
			o.add(g.gone, func() string { return name + " is gone" })
		}
	}
	for _, name := range names {
		if !known[name] {
			known[name] = true
			o.add(g.gone, func() string { return name + " is gone" })
		}
	}
	slices.SortFunc(o.pending, table.CompareNames)
	slices.SortFunc(o.failed, table.CompareNames)
	return o
}

const errSettled = errors.ConstError("settled")

// timeoutError is the cause of a command's context ending after its timeout.
type timeoutError struct{ after time.Duration }

func (e timeoutError) Error() string {
	return fmt.Sprintf("timed out after %s: the agent has not answered", e.after)
}

func (e timeoutError) Is(target error) bool { return target == errTimedOut }

// wait follows the named storage, and shows it, until all of it has reached the
// goal or failed. The error names what failed, or what was pending when the
// context ended. Others, as many as before, have reached the goal already.
func wait(ctx context.Context, source source, names []string, before int, g goal, d display) error {
	if len(names) == 0 && before > 0 {
		return d.finish(fmt.Sprintf("all %d %s", before, g.name)) // without names, all storage is watched
	}
	v := newView()
	unfinished := map[string]bool{}
	err := follow(ctx, source, names, v, d, func(event user.Event) error {
		for _, s := range event.Storage {
			if g.progress(s) == pending {
				unfinished[s.Name] = true
			} else {
				delete(unfinished, s.Name)
			}
		}
		for _, name := range event.Gone { // there is nothing to wait for
			delete(unfinished, name)
		}
		if len(unfinished) == 0 {
			return errSettled
		}
		return nil
	})
	o := g.outcome(v, names)
	o.reached += before
	all := o.reached + len(o.pending) + len(o.failed)
	var timeout timeoutError
	switch {
	case errors.Is(err, errSettled) && len(o.failed) > 0:
		return errors.Errorf("%d of %d not %s: %s", len(o.failed), all, g.name, joinFirst(o.failed))
	case errors.Is(err, errSettled) && all == 0:
		return d.finish("no storage")
	case errors.Is(err, errSettled):
		return d.finish(fmt.Sprintf("all %d %s", o.reached, g.name))
	case ctx.Err() == nil:
		return err
	case errors.As(context.Cause(ctx), &timeout) && len(v.seen) == 0:
		return timeout
	case errors.As(context.Cause(ctx), &timeout):
		return errors.WithType(errors.Errorf("timed out after %s: %d of %d not %s: %s",
			timeout.after, all-o.reached, all, g.name, joinFirst(append(o.pending, o.failed...))), errTimedOut)
	}
	what := "waiting"
	if len(v.seen) > 0 {
		what = fmt.Sprintf("%d of %d not %s", all-o.reached, all, g.name)
	}
	return errors.Errorf("interrupted: %s: the agent goes on with the request, and `%s` shows how far it is", what, statusOf(names))
}

// statusOf returns the command that shows the named storage, or all if it is many.
func statusOf(names []string) string {
	const maxNames = 5
	if len(names) > maxNames {
		names = nil
	}
	return strings.Join(append([]string{"stowage status"}, names...), " ")
}

// joinFirst joins the first items of a list, and counts the others.
func joinFirst(list []string) string {
	const maxItems = 5
	if len(list) > maxItems {
		return fmt.Sprintf("%s; and %d more", strings.Join(list[:maxItems], "; "), len(list)-maxItems)
	}
	return strings.Join(list, "; ")
}

// follow keeps a view of the named storage, and shows it, until the context ends,
// the agent goes away, or after returns an error. after is called after every
// event.
func follow(ctx context.Context, source source, names []string, v *view, d display, after func(user.Event) error) error {
	group, ctx := errgroup.WithContext(ctx)
	events := make(chan user.Event)
	group.Go(func() error {
		return source(ctx, names, func(event user.Event) error {
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

// movedTo is the goal of storage that is to be attached to other machines. It is detached in between.
func movedTo(machines map[string]string) goal {
	return goal{"moved", func(s user.Storage) progress {
		switch {
		case s.Life != life.Alive, s.Status == status.Error:
			return failed
		case len(s.Attachments) > 0 && s.Attachments[0].Machine == machines[s.Name]:
			return attached.progress(s)
		}
		return pending
	}, failed}
}
