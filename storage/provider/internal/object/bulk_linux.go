package object

import (
	"cmp"
	"context"
	"sync"

	"github.com/juju/errors"
)

// Bulk describes a kind of bulk call, such as detaching volumes.
type Bulk[T any] struct {
	// Verb and Objects describe the call in errors: "detaching", "volumes".
	Verb, Objects string
	// Name returns what follows Verb in the error of an item, such as "volume 0". If Name is
	// nil, errors of items are not annotated.
	Name func(T) string
	// Key returns the object of an item. Several objects are worked on at once, but the items
	// of one object are carried out one after another. If Key is nil, so are all items.
	Key func(T) string
	// AtOnce limits how many objects are worked on at once. 0 means MaxAtOnce.
	AtOnce int
}

// MaxAtOnce limits how many objects a bulk call works on at once. That work takes little CPU
// time: it waits for the disk to write, and for the kernel to quiesce a device.
const MaxAtOnce = 32

// MaxWaiting replaces MaxAtOnce for work that mostly waits for the kernel.
const MaxWaiting = 2 * MaxAtOnce

// Do makes a bulk call: it begins a call, carries out each item, and ends the call. For each
// item it returns what result makes of the value, or the error, of carrying it out. Items that
// have not begun when ctx ends get its error.
func Do[C interface{ End() }, T, R, Out any](
	ctx context.Context, b Bulk[T], begin func(context.Context) (C, error), items []T,
	carryOut func(C, T) (R, error), result func(T, R, error) Out,
) ([]Out, error) {
	c, err := begin(ctx)
	if err != nil {
		return nil, errors.Annotatef(err, "%s %s", b.Verb, b.Objects)
	}
	defer c.End()
	each := func(item T) (R, error) {
		value, err := carryOut(c, item)
		if err != nil && b.Name != nil {
			err = errors.Annotatef(err, "%s %s", b.Verb, b.Name(item))
		}
		return value, err
	}
	var values []R
	var failures []error
	if b.Key == nil {
		values, failures = Collect(ctx, items, each)
	} else {
		values, failures = collectUpTo(ctx, cmp.Or(b.AtOnce, MaxAtOnce), items, b.Key, each)
	}
	results := make([]Out, len(items))
	for i, item := range items {
		results[i] = result(item, values[i], failures[i])
	}
	return results, nil
}

// DoEach is Do for items that have no result but an error.
func DoEach[C interface{ End() }, T any](
	ctx context.Context, b Bulk[T], begin func(context.Context) (C, error), items []T, carryOut func(C, T) error,
) ([]error, error) {
	return Do(ctx, b, begin, items,
		func(c C, item T) (struct{}, error) { return struct{}{}, carryOut(c, item) },
		func(_ T, _ struct{}, err error) error { return err })
}

// Collect runs do for the items of a bulk call, one after another. The results and errors have
// the length and order of the items. Items that have not begun when ctx ends get its error.
func Collect[T, R any](ctx context.Context, items []T, do func(T) (R, error)) ([]R, []error) {
	results, failures := make([]R, len(items)), make([]error, len(items))
	for i, item := range items {
		if failures[i] = ctx.Err(); failures[i] == nil {
			results[i], failures[i] = do(item)
		}
	}
	return results, failures
}

// CollectAtOnce is Collect with several objects at once. Items for which key returns the same
// object run one after another.
func CollectAtOnce[T, R any](ctx context.Context, items []T, key func(T) string, do func(T) (R, error)) ([]R, []error) {
	return collectUpTo(ctx, MaxAtOnce, items, key, do)
}

// collectUpTo is CollectAtOnce with a limit on how many objects are worked on at once.
func collectUpTo[T, R any](ctx context.Context, bound int, items []T, key func(T) string, do func(T) (R, error)) ([]R, []error) {
	results, failures := make([]R, len(items)), make([]error, len(items))
	byKey := make(map[string][]int)
	var keys []string
	for i, item := range items {
		k := key(item)
		if byKey[k] == nil {
			keys = append(keys, k)
		}
		byKey[k] = append(byKey[k], i)
	}
	next := make(chan string)
	var workers sync.WaitGroup
	for range min(bound, len(keys)) {
		workers.Go(func() {
			for k := range next {
				for _, i := range byKey[k] {
					if failures[i] = ctx.Err(); failures[i] == nil {
						results[i], failures[i] = do(items[i])
					}
				}
			}
		})
	}
	for _, k := range keys {
		next <- k
	}
	close(next)
	workers.Wait()
	return results, failures
}

// ByID returns an ID: the name, and the object, of an item that is an ID.
func ByID(id string) string { return id }
