package storageprovisioner

import (
	"context"
	"slices"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// operations are the calls of one source, of volumes or of filesystems. Each
// returns a result for every item, whatever the source returned.
type operations interface {
	create(envcontext.ProviderCallContext, []plan.Item) []plan.Result
	attach(envcontext.ProviderCallContext, []plan.Item) []plan.Result
	detach(envcontext.ProviderCallContext, []plan.Item) []plan.Result
	destroy(envcontext.ProviderCallContext, []plan.Item) []plan.Result
	resize(envcontext.ProviderCallContext, []plan.Item) []plan.Result
}

// task is what a hand is given: a batch, and the environment in which to do it.
type task struct {
	batch   plan.Batch
	environ *environ
}

// handed is what a hand gives back.
type handed struct {
	batch   plan.Batch
	results []plan.Result
	// calls is how many calls at once the source takes; 0: it could not be opened.
	calls int
	// took is how long the call took.
	took time.Duration
}

// hands are the goroutines that call one source: as many as there have been calls
// at once. The loop owns all but the source.
type hands struct {
	tasks  chan task
	number int
	busy   int
	source lazySource
}

// give hands a task to one that is free, or to a new one.
func (h *hands) give(ctx context.Context, t task, start func(func()), done chan<- handed) {
	if h.busy == h.number {
		h.number++
		start(func() { hand(ctx, &h.source, h.tasks, done) })
	}
	h.busy++
	h.tasks <- t
}

// hand has one task at a time.
func hand(ctx context.Context, source *lazySource, tasks <-chan task, done chan<- handed) {
	for t := range tasks {
		h := handed{batch: t.batch}
		opened, err := source.open(t)
		if err == nil {
			h.calls = opened.calls
			err = opened.waitToCall(ctx)
		}
		if err != nil {
			h.results = failAll(t.batch.Items, err)
			done <- h
			continue
		}
		clock := t.environ.config.Clock
		began := clock.Now()
		h.results = perform(t.environ.config.CallContext(ctx), opened, t.batch)
		h.took = clock.Now().Sub(began)
		done <- h
	}
}

func perform(ctx envcontext.ProviderCallContext, source operations, batch plan.Batch) []plan.Result {
	switch batch.Op {
	case plan.Create:
		return source.create(ctx, batch.Items)
	case plan.Attach:
		return source.attach(ctx, batch.Items)
	case plan.Detach:
		return source.detach(ctx, batch.Items)
	case plan.Destroy:
		return source.destroy(ctx, batch.Items)
	case plan.Resize:
		return source.resize(ctx, batch.Items)
	}
	return failAll(batch.Items, errors.NotSupportedf("operation %s", batch.Op))
}

// failAll returns the same error for all items.
func failAll(items []plan.Item, err error) []plan.Result {
	results := make([]plan.Result, len(items))
	for i, item := range items {
		results[i] = item.Ended(plan.Result{Err: err})
	}
	return results
}

// bulk makes one call of a source for the items and pairs its results with them.
// What a result is about is told by its place alone.
func bulk[P, R any](
	items []plan.Item, args []P, source func([]P) ([]R, error), result func(P, R) plan.Result,
) []plan.Result {
	if len(items) == 0 {
		return nil
	}
	got, err := source(args)
	if err == nil && len(got) != len(items) {
		err = errors.Errorf("provider returned %d results for %d arguments", len(got), len(items))
	}
	if err != nil {
		results := failAll(items, err)
		for i := range results {
			results[i].Unknown = true
		}
		return results
	}
	results := make([]plan.Result, len(items))
	for i, item := range items {
		results[i] = item.Ended(result(args[i], got[i]))
	}
	return results
}

// arguments returns what a source is called with for the items.
func arguments[P any](items []plan.Item, param func(plan.Item) P) []P {
	args := make([]P, len(items))
	for i, item := range items {
		args[i] = param(item)
	}
	return args
}

func onlyError[P any](_ P, err error) plan.Result {
	return plan.Result{Err: err}
}

// admit splits items, with their arguments, into those to go ahead with, and the
// results of those that are held back or not valid. What is repeated to learn how it
// ended is not asked about again.
func admit[P any](items []plan.Item, args []P, check func(P) plan.Result) ([]plan.Item, []P, []plan.Result) {
	var held []plan.Result
	kept := make([]bool, len(items))
	for i, item := range items {
		var result plan.Result
		if !item.Repeat {
			result = check(args[i])
		}
		kept[i] = !result.Deferred && result.Err == nil
		if !kept[i] {
			held = append(held, item.Ended(result))
		}
	}
	return those(items, kept), those(args, kept), held
}

// those returns the elements that are kept: most often all are.
func those[E any](list []E, kept []bool) []E {
	if !slices.Contains(kept, false) {
		return list
	}
	var some []E
	for i, e := range list {
		if kept[i] {
			some = append(some, e)
		}
	}
	return some
}

// create makes what qualifies and is valid. What is not valid now will not be valid
// later.
func create[P, Q, R any](
	items []plan.Item, args []P, qualifiers []Q, qualifies func(Q, P) bool, validate func(P) error,
	source func([]P) ([]R, error), result func(P, R) plan.Result,
) []plan.Result {
	items, args, held := admit(items, args, func(p P) plan.Result {
		for _, q := range qualifiers {
			if !qualifies(q, p) {
				return plan.Result{Deferred: true}
			}
		}
		return plan.Result{Err: storage.Permanent(validate(p))}
	})
	return append(bulk(items, args, source, result), held...)
}

// takeAway destroys the items, or releases those that are to be released, unless
// a guard holds them back.
func takeAway[G any](
	items []plan.Item, guards []G, allows func(G, string) bool, destroy, release func([]string) ([]error, error),
) []plan.Result {
	id := func(item plan.Item) string { return item.ID }
	items, ids, held := admit(items, arguments(items, id), func(id string) plan.Result {
		return plan.Result{Deferred: slices.ContainsFunc(guards, func(g G) bool { return !allows(g, id) })}
	})
	destroyed, released := make([]bool, len(items)), make([]bool, len(items))
	for i, item := range items {
		destroyed[i], released[i] = !item.Release, item.Release
	}
	results := bulk(those(items, destroyed), those(ids, destroyed), destroy, onlyError)
	results = append(results, bulk(those(items, released), those(ids, released), release, onlyError)...)
	return append(results, held...)
}

// cannotGrow is the error of growing storage whose source cannot do that.
func cannotGrow(what string) error {
	return errors.NewNotSupported(nil, "its provider cannot grow "+what+": add storage of that size, and move the data there")
}

// grown returns the result of growing. The provider's word is not taken for it.
func grown(info any, size, wanted uint64) plan.Result {
	if size < wanted {
		return plan.Result{Err: errors.Errorf("provider says that it is done, at %d MiB", size)}
	}
	return plan.Result{Info: info, Size: size}
}
