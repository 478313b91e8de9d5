package translate

import (
	"fmt"
	"slices"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// Operations carries out operations with one source: of volumes, of filesystems, or of
// attachment plans. Each method but owners returns a result for every item, whatever the
// source does.
type Operations interface {
	create(Call, []plan.Item) []plan.Result
	attach(Call, []plan.Item) []plan.Result
	detach(Call, []plan.Item) []plan.Result
	destroy(Call, []plan.Item) []plan.Result
	resize(Call, []plan.Item) []plan.Result
	check(Call, []plan.Item) []plan.Result
	// owners returns the owners of the source's volumes or filesystems, and false if the
	// source does not keep them.
	owners(Call) ([]storage.OwnedObject, bool, error)
}

// Call is one call of a source, for a batch.
type Call struct {
	Guard *guard.Guard
	Ctx   envcontext.ProviderCallContext
	Batch plan.Batch
}

// Describe describes what is done to items of the batch, for logs.
func (c Call) Describe(items ...plan.Item) string {
	keys := make([]plan.Key, len(items))
	for i := range items {
		keys[i] = items[i].Key()
	}
	return DescribeBatch(c.Batch, plan.JoinKeys(keys))
}

// remark returns what ask returns: a source's remark on what it has attached. Remarks are best
// effort.
func (c Call) remark(about names.Tag, ask func() string) (text string) {
	_ = c.Guard.Call(guard.Provider, func() string { return "getting the remark on " + names.ReadableString(about) }, func() {
		text = guard.Truncate(ask())
	})
	return text
}

// DescribeBatch describes what is done to the named entities of a batch, for logs.
func DescribeBatch(batch plan.Batch, of string) string {
	return fmt.Sprintf("%s: %s %s", batch.Source, batch.Op, of)
}

// Perform carries out the batch of a call, after asking the source for owners if the batch
// says so. It returns a result for each item.
func Perform(call Call, source Operations) []plan.Result {
	items, ended := checkOwners(call, source)
	if len(items) == 0 {
		return ended
	}
	return append(callOperation(call, source, items), ended...)
}

func callOperation(call Call, source Operations, items []plan.Item) []plan.Result {
	switch call.Batch.Op {
	case plan.Create:
		return source.create(call, items)
	case plan.Attach:
		return remarkOwners(source.attach(call, items))
	case plan.Detach:
		return source.detach(call, items)
	case plan.Destroy:
		return source.destroy(call, items)
	case plan.Resize:
		return source.resize(call, items)
	case plan.Check:
		return source.check(call, items)
	}
	return FailAll(items, errors.NotSupportedf("operation %s", call.Batch.Op))
}

// FailAll returns a result with the same error for each item.
func FailAll(items []plan.Item, err error) []plan.Result {
	results := make([]plan.Result, len(items))
	for i := range items {
		results[i] = items[i].Ended(plan.Result{Err: err})
	}
	return results
}

// MarkUnknown marks results of operations that may or may not have been carried out.
func MarkUnknown(results []plan.Result) {
	for i := range results {
		results[i].Unknown = true
	}
}

// MarkUntried marks results of operations for which the source was not called.
func MarkUntried(results []plan.Result) {
	for i := range results {
		results[i].Untried = true
	}
}

// unknownResult is the result of an operation that may have been carried out despite the
// error.
func unknownResult(err error) plan.Result {
	return plan.Result{Err: err, Unknown: true}
}

// callSource makes one bulk call of a source and pairs its results with the items, by
// position.
func callSource[P, R any](
	call Call, items []plan.Item, args []P, source func([]P) ([]R, error), result func(P, R) plan.Result,
) []plan.Result {
	if len(items) == 0 {
		return nil
	}
	var got []R
	var err error
	caught := call.Guard.Call(guard.Provider, func() string { return call.Describe(items...) }, func() {
		got, err = source(args)
		err = guard.SanitizeError(err)
	})
	switch {
	case caught != nil:
		err = caught
	case err == nil && len(got) != len(items):
		err = errors.Errorf("provider returned %d results for %d arguments", len(got), len(items))
	}
	if err != nil {
		results := FailAll(items, err)
		MarkUnknown(results)
		return results
	}
	results := make([]plan.Result, len(items))
	call.Guard.Each(guard.Provider, len(items), func(i int) string { return call.Describe(items[i]) }, func(i int) {
		r := result(args[i], got[i])
		r.Err = guard.SanitizeError(r.Err)
		results[i] = items[i].Ended(r)
	}, func(i int, err error) {
		results[i] = items[i].Ended(unknownResult(err))
	})
	return results
}

// arguments returns the arguments of a bulk call, one for each item.
func arguments[P any](items []plan.Item, param func(*plan.Item) P) []P {
	args := make([]P, len(items))
	for i := range items {
		args[i] = param(&items[i])
	}
	return args
}

func errorResult[P any](_ P, err error) plan.Result {
	return plan.Result{Err: err}
}

// admit separates the items, with their arguments, that may go ahead from those that check
// holds back or finds invalid, for which it returns results. It does not check a repeated
// operation, which is repeated to learn how it ended.
func admit[P any](call Call, items []plan.Item, args []P, check func(P) plan.Result) ([]plan.Item, []P, []plan.Result) {
	var held []plan.Result
	kept := make([]bool, len(items))
	call.Guard.EachInGoroutine(guard.Provider, len(items), func(i int) string { return call.Describe(items[i]) }, func(i int) {
		var result plan.Result
		if !items[i].Repeat {
			result = check(args[i])
			result.Err = guard.SanitizeError(result.Err)
		}
		kept[i] = !result.Deferred && result.Err == nil
		if !kept[i] {
			result.Untried = true
			held = append(held, items[i].Ended(result))
		}
	}, func(i int, err error) {
		held = append(held, items[i].Ended(plan.Result{Err: err, Untried: true}))
	})
	return selected(items, kept), selected(args, kept), held
}

// selected returns the elements to keep, usually the whole list.
func selected[E any](list []E, keep []bool) []E {
	if !slices.Contains(keep, false) {
		return list
	}
	var selection []E
	for i, e := range list {
		if keep[i] {
			selection = append(selection, e)
		}
	}
	return selection
}

// create creates the items that qualify and are valid. A validation error is permanent,
// because invalid parameters stay invalid.
func create[P, Q, R any](
	call Call, items []plan.Item, args []P, qualifiers []Q, qualifies func(Q, P) bool, validate func(P) error,
	source func([]P) ([]R, error), result func(P, R) plan.Result,
) []plan.Result {
	items, args, held := admit(call, items, args, func(p P) plan.Result {
		for _, q := range qualifiers {
			if !qualifies(q, p) {
				return plan.Result{Deferred: true}
			}
		}
		return plan.Result{Err: storage.Permanent(validate(p))}
	})
	return append(callSource(call, items, args, source, result), held...)
}

// createByOrigin creates the items that have an origin, and those that are empty, with a call each.
// The origins of the call are by the items' tags, and nil for empty ones. canCopy says whether the
// source can create anything with the contents of others, and noun is what it creates.
func createByOrigin(
	items []plan.Item, origin func(args any) *storage.Origin, canCopy bool, noun string,
	create func(items []plan.Item, origins map[names.Tag]storage.Origin) []plan.Result,
) []plan.Result {
	empty, copied := make([]bool, len(items)), make([]bool, len(items))
	origins := make(map[names.Tag]storage.Origin)
	for i := range items {
		of := origin(items[i].Args)
		empty[i], copied[i] = of == nil, of != nil
		if of != nil {
			origins[items[i].Tag()] = *of
		}
	}
	results := create(selected(items, empty), nil)
	if len(origins) == 0 {
		return results
	}
	if !canCopy {
		failed := FailAll(selected(items, copied), storage.Permanent(errors.NewNotSupported(nil, "the provider cannot make "+noun+"s with the contents of others")))
		MarkUntried(failed)
		return append(results, failed...)
	}
	return append(results, create(selected(items, copied), origins)...)
}

// destroyOrRelease destroys items, or releases those that are marked for release, unless a
// deletion guard holds them back.
func destroyOrRelease[G any](
	call Call, items []plan.Item, guards []G, allows func(G, string) bool, destroy, release func([]string) ([]error, error),
) []plan.Result {
	id := func(item *plan.Item) string { return item.ID }
	items, ids, held := admit(call, items, arguments(items, id), func(id string) plan.Result {
		return plan.Result{Deferred: slices.ContainsFunc(guards, func(g G) bool { return !allows(g, id) })}
	})
	destroyed, released := make([]bool, len(items)), make([]bool, len(items))
	for i := range items {
		destroyed[i], released[i] = !items[i].Release, items[i].Release
	}
	results := callSource(call, selected(items, destroyed), selected(ids, destroyed), destroy, errorResult)
	results = append(results, callSource(call, selected(items, released), selected(ids, released), release, errorResult)...)
	return append(results, held...)
}

// check checks what is attached. If the source cannot check (can is false), all items count as
// good.
func check(call Call, items []plan.Item, can bool, source func([]string) ([]error, error)) []plan.Result {
	if !can {
		return FailAll(items, nil)
	}
	return callSource(call, items, arguments(items, func(item *plan.Item) string { return item.ID }), source, errorResult)
}

// checkCreated returns an error if a provider's result is for another entity than the one
// asked for, or has no ID. A result without a tag counts as being for the entity asked for.
func checkCreated[T interface {
	names.Tag
	comparable
}](asked, got T, id string) error {
	var none T
	switch {
	case got != none && got != asked:
		return errors.Errorf("provider returned %s for %s", names.ReadableString(got), names.ReadableString(asked))
	case id == "":
		return errors.Errorf("provider returned no ID for %s", names.ReadableString(asked))
	}
	return nil
}

// checkAttached is checkCreated for attachments.
func checkAttached[T interface {
	names.Tag
	comparable
}](asked, got T, host, gotHost names.Tag) error {
	var none T
	if got != none && got != asked || host == nil || gotHost != nil && gotHost != host {
		return errors.Errorf("provider returned an attachment of %v to %v for one of %v to %v", got, gotHost, asked, host)
	}
	return nil
}

// cannotGrow returns the error of growing storage whose source cannot grow it.
func cannotGrow(what string) error {
	return errors.NewNotSupported(nil, "its provider cannot grow "+what+": add storage of that size, and move the data there")
}

// growResult returns the result of growing: a failure if the provider reports success but the
// storage is smaller than wanted.
func growResult(info any, size, wanted uint64) plan.Result {
	if size < wanted {
		return plan.Result{Err: errors.Errorf("provider reported success at %d MiB, less than the %d MiB requested", size, wanted)}
	}
	return plan.Result{Info: info, Size: size}
}
