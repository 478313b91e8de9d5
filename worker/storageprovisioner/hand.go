package storageprovisioner

import (
	"context"

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
}

// hand is the goroutine that calls one source. It has one task at a time, and
// keeps its source until the environment changes.
func hand(ctx context.Context, tasks <-chan task, done chan<- handed) {
	var opened *environ
	var source operations
	for t := range tasks {
		var err error
		if opened != t.environ {
			opened = nil
			if source, err = t.environ.open(t.batch.Source); err == nil {
				opened = t.environ
			}
		}
		callCtx := t.environ.config.CallContext(ctx)
		done <- handed{t.batch, perform(callCtx, source, err, t.batch)}
	}
}

func perform(ctx envcontext.ProviderCallContext, source operations, err error, batch plan.Batch) []plan.Result {
	if err != nil {
		return failAll(batch.Items, err)
	}
	switch batch.Op {
	case plan.Create:
		return source.create(ctx, batch.Items)
	case plan.Attach:
		return source.attach(ctx, batch.Items)
	case plan.Detach:
		return source.detach(ctx, batch.Items)
	case plan.Destroy:
		return source.destroy(ctx, batch.Items)
	}
	return failAll(batch.Items, errors.NotSupportedf("operation %s", batch.Op))
}

// failAll returns the same error for all items: nothing is known of any.
func failAll(items []plan.Item, err error) []plan.Result {
	results := make([]plan.Result, len(items))
	for i, item := range items {
		results[i] = plan.Result{Key: item.Key, Err: err}
	}
	return results
}

// bulk makes one call of a source for the items and pairs its results with them.
// What a result is about is told by its place alone.
func bulk[P, R any](
	items []plan.Item, param func(plan.Item) P, source func([]P) ([]R, error), result func(P, R) plan.Result,
) []plan.Result {
	if len(items) == 0 {
		return nil
	}
	args := make([]P, len(items))
	for i, item := range items {
		args[i] = param(item)
	}
	got, err := source(args)
	if err == nil && len(got) != len(items) {
		err = errors.Errorf("provider returned %d results for %d arguments", len(got), len(items))
	}
	if err != nil {
		return failAll(items, err)
	}
	results := make([]plan.Result, len(items))
	for i, item := range items {
		results[i] = result(args[i], got[i])
		results[i].Key = item.Key
	}
	return results
}

func onlyError[P any](_ P, err error) plan.Result {
	return plan.Result{Err: err}
}

// validated splits items into those whose parameters are valid, and the results
// of those whose are not. What is not valid now will not be valid later.
func validated[P any](items []plan.Item, param func(plan.Item) P, validate func(P) error) ([]plan.Item, []plan.Result) {
	var valid []plan.Item
	var results []plan.Result
	for _, item := range items {
		if err := validate(param(item)); err != nil {
			results = append(results, plan.Result{Key: item.Key, Err: storage.Permanent(err)})
			continue
		}
		valid = append(valid, item)
	}
	return valid, results
}

// takeAway destroys the items, or releases those that are to be released.
func takeAway(items []plan.Item, destroy, release func([]string) ([]error, error)) []plan.Result {
	var destroyed, released []plan.Item
	for _, item := range items {
		if item.Release {
			released = append(released, item)
		} else {
			destroyed = append(destroyed, item)
		}
	}
	id := func(item plan.Item) string { return item.ID }
	return append(bulk(destroyed, id, destroy, onlyError), bulk(released, id, release, onlyError)...)
}
