package storageprovisioner

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/internal/delay"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// operations are the calls of one source, of volumes or of filesystems. Each
// returns a result for every item, whatever the source did and returned.
type operations interface {
	create(providerCall, []plan.Item) []plan.Result
	attach(providerCall, []plan.Item) []plan.Result
	detach(providerCall, []plan.Item) []plan.Result
	destroy(providerCall, []plan.Item) []plan.Result
	resize(providerCall, []plan.Item) []plan.Result
	check(providerCall, []plan.Item) []plan.Result
	// owners returns whose the source's volumes or filesystems are, and false where it
	// does not keep that.
	owners(providerCall) ([]storage.OwnedObject, bool, error)
}

// providerCall is the context of one call of a source: it is for a batch.
type providerCall struct {
	*shelter
	ctx   envcontext.ProviderCallContext
	batch plan.Batch
}

// describe says what is done to items of the batch.
func (c providerCall) describe(items ...plan.Item) string {
	keys := make([]plan.Key, len(items))
	for i, item := range items {
		keys[i] = item.Key
	}
	return describeBatch(c.batch, joinKeys(keys))
}

// remark asks a source what it has to say about what it has attached. It is best effort.
func (c providerCall) remark(about names.Tag, ask func() string) (text string) {
	_ = c.run(theProvider, func() string { return "remarking on " + names.ReadableString(about) }, func() {
		text = truncate(ask())
	})
	return text
}

// describeBatch says what is done to the entities of a batch that are named.
func describeBatch(batch plan.Batch, of string) string {
	return fmt.Sprintf("%s: %s %s", batch.Source, batch.Op, of)
}

// request asks a runner to carry out a batch in an environment.
type request struct {
	// ctx ends when the worker does, or when the call has reached its time limit.
	ctx       context.Context
	batch     plan.Batch
	environ   *environ
	timedCall *timedCall
}

// response is what a runner answers to a request.
type response struct {
	batch     plan.Batch
	timedCall *timedCall
	results   []plan.Result
	// maxCalls is how many calls at once the source takes; 0: it could not be opened.
	maxCalls int
	// sourceCalled says that the source has been called; took is how long that lasted.
	sourceCalled bool
	took         time.Duration
}

// runners are the goroutines that call one source: as many as there have been calls
// at once. The loop owns all fields but the source.
type runners struct {
	requests chan request
	count    int
	busy     int
	source   lazySource
}

// send sends a request to a runner that is free, or starts a new one for it.
func (r *runners) send(req request, start func(func()), responses chan<- response) {
	if r.busy == r.count {
		r.count++
		shelter := req.environ.config.shelter
		start(func() { runner(shelter, &r.source, r.requests, responses) })
	}
	r.busy++
	r.requests <- req
}

// runner carries out one request at a time. A source that ends the goroutine on which it
// is called has failed; the runner goes on with another goroutine.
func runner(shelter *shelter, source *lazySource, requests <-chan request, responses chan<- response) {
	var resp response
	describe := func() string { return providerCall{batch: resp.batch}.describe(resp.batch.Items...) }
	for {
		err := shelter.runInGoroutine(theProvider, describe, func() {
			for req := range requests {
				resp = response{batch: req.batch, timedCall: req.timedCall}
				delay.At(delay.HandTask)
				resp.carryOut(source, req)
				delay.At(delay.HandDone)
				responses <- resp
				resp = response{} // it may be large
			}
		})
		if err == nil {
			return
		}
		resp.results = failAll(resp.batch.Items, err)
		if resp.sourceCalled {
			markUnknown(resp.results)
		} else {
			markUntried(resp.results)
		}
		responses <- resp
	}
}

// carryOut carries out a request. Until the source is called nothing has been done about
// the items of the batch.
func (resp *response) carryOut(lazy *lazySource, req request) {
	config := req.environ.config
	call := providerCall{shelter: config.shelter, batch: req.batch}
	var opened *source
	err := call.runError(theProvider, func() string { return call.describe(req.batch.Items...) }, func() (err error) {
		if opened, err = lazy.open(req); err != nil {
			return err
		}
		resp.maxCalls = opened.maxCalls
		if err := opened.waitToCall(req.ctx); err != nil {
			return err
		}
		if call.ctx = config.CallContext(req.ctx); call.ctx == nil {
			return errors.New("there is no context for provider calls")
		}
		return nil
	})
	if err != nil {
		resp.results = failAll(req.batch.Items, err)
		markUntried(resp.results)
		return
	}
	began := config.Clock.Now()
	resp.sourceCalled = true
	resp.results = perform(call, opened)
	explainLimit(req.ctx, resp.results)
	resp.took = config.Clock.Now().Sub(began)
}

func perform(call providerCall, source operations) []plan.Result {
	items, refused := checkOwners(call, source)
	if len(items) == 0 {
		return refused
	}
	return append(callOperation(call, source, items), refused...)
}

func callOperation(call providerCall, source operations, items []plan.Item) []plan.Result {
	switch call.batch.Op {
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
	return failAll(items, errors.NotSupportedf("operation %s", call.batch.Op))
}

// failAll returns the same error for all items.
func failAll(items []plan.Item, err error) []plan.Result {
	results := make([]plan.Result, len(items))
	for i, item := range items {
		results[i] = item.Ended(plan.Result{Err: err})
	}
	return results
}

// markUnknown marks results whose operations may have been carried out or not.
func markUnknown(results []plan.Result) {
	for i := range results {
		results[i].Unknown = true
	}
}

// markUntried marks results for which the source has not been called.
func markUntried(results []plan.Result) {
	for i := range results {
		results[i].Untried = true
	}
}

// unknownResult is the result of an item that may have been done in spite of the error.
func unknownResult(err error) plan.Result {
	return plan.Result{Err: err, Unknown: true}
}

// callSource makes one call of a source for the items and pairs its results with them,
// by their positions alone.
func callSource[P, R any](
	call providerCall, items []plan.Item, args []P, source func([]P) ([]R, error), result func(P, R) plan.Result,
) []plan.Result {
	if len(items) == 0 {
		return nil
	}
	var got []R
	var err error
	caught := call.run(theProvider, func() string { return call.describe(items...) }, func() {
		got, err = source(args)
		err = sanitizeError(err)
	})
	switch {
	case caught != nil:
		err = caught
	case err == nil && len(got) != len(items):
		err = errors.Errorf("provider returned %d results for %d arguments", len(got), len(items))
	}
	if err != nil {
		results := failAll(items, err)
		markUnknown(results)
		return results
	}
	results := make([]plan.Result, len(items))
	each(call.run, theProvider, len(items), func(i int) string { return call.describe(items[i]) }, func(i int) {
		r := result(args[i], got[i])
		r.Err = sanitizeError(r.Err)
		results[i] = items[i].Ended(r)
	}, func(i int, err error) {
		results[i] = items[i].Ended(unknownResult(err))
	})
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

func errorResult[P any](_ P, err error) plan.Result {
	return plan.Result{Err: err}
}

// admit splits items, with their arguments, into those to go ahead with, and the
// results of those that are held back or not valid. What is repeated to learn how it
// ended is not asked about again.
func admit[P any](call providerCall, items []plan.Item, args []P, check func(P) plan.Result) ([]plan.Item, []P, []plan.Result) {
	var held []plan.Result
	kept := make([]bool, len(items))
	each(call.runInGoroutine, theProvider, len(items), func(i int) string { return call.describe(items[i]) }, func(i int) {
		var result plan.Result
		if !items[i].Repeat {
			result = check(args[i])
			result.Err = sanitizeError(result.Err)
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

// selected returns the elements to keep: most often all of them.
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

// create makes what qualifies and is valid. What is not valid now will not be valid
// later.
func create[P, Q, R any](
	call providerCall, items []plan.Item, args []P, qualifiers []Q, qualifies func(Q, P) bool, validate func(P) error,
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

// destroyOrRelease destroys the items, or releases those that are to be released, unless
// a guard holds them back.
func destroyOrRelease[G any](
	call providerCall, items []plan.Item, guards []G, allows func(G, string) bool, destroy, release func([]string) ([]error, error),
) []plan.Result {
	id := func(item plan.Item) string { return item.ID }
	items, ids, held := admit(call, items, arguments(items, id), func(id string) plan.Result {
		return plan.Result{Deferred: slices.ContainsFunc(guards, func(g G) bool { return !allows(g, id) })}
	})
	destroyed, released := make([]bool, len(items)), make([]bool, len(items))
	for i, item := range items {
		destroyed[i], released[i] = !item.Release, item.Release
	}
	results := callSource(call, selected(items, destroyed), selected(ids, destroyed), destroy, errorResult)
	results = append(results, callSource(call, selected(items, released), selected(ids, released), release, errorResult)...)
	return append(results, held...)
}

// check looks at what is attached, where the source can do that.
func check(call providerCall, items []plan.Item, can bool, look func([]string) ([]error, error)) []plan.Result {
	if !can {
		return failAll(items, nil)
	}
	return callSource(call, items, arguments(items, func(item plan.Item) string { return item.ID }), look, errorResult)
}

// checkCreated returns what is wrong with how a provider names what it has made, if
// anything: a result without a tag is about what was asked for.
func checkCreated[T interface {
	names.Tag
	comparable
}](asked, got T, id string) error {
	var none T
	switch {
	case got != none && got != asked:
		return errors.Errorf("provider returned %s for %s", names.ReadableString(got), names.ReadableString(asked))
	case id == "":
		return errors.Errorf("provider gave %s no id", names.ReadableString(asked))
	}
	return nil
}

// checkAttached returns what is wrong with how a provider names what it has attached,
// as checkCreated does.
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

// cannotGrow is the error of growing storage whose source cannot do that.
func cannotGrow(what string) error {
	return errors.NewNotSupported(nil, "its provider cannot grow "+what+": add storage of that size, and move the data there")
}

// growResult returns the result of growing: a failure if the storage is smaller than wanted,
// although the provider reported no error.
func growResult(info any, size, wanted uint64) plan.Result {
	if size < wanted {
		return plan.Result{Err: errors.Errorf("provider says that it is done, at %d MiB", size)}
	}
	return plan.Result{Info: info, Size: size}
}
