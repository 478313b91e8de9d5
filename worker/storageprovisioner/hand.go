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
	create(calling, []plan.Item) []plan.Result
	attach(calling, []plan.Item) []plan.Result
	detach(calling, []plan.Item) []plan.Result
	destroy(calling, []plan.Item) []plan.Result
	resize(calling, []plan.Item) []plan.Result
	check(calling, []plan.Item) []plan.Result
	// owners returns whose the source's volumes or filesystems are, and false where it
	// does not keep that.
	owners(calling) ([]storage.OwnedObject, bool, error)
}

// calling is what a source is called with for a batch.
type calling struct {
	*shelter
	ctx   envcontext.ProviderCallContext
	batch plan.Batch
}

// about says what is done to items of the batch.
func (c calling) about(items ...plan.Item) string {
	keys := make([]plan.Key, len(items))
	for i, item := range items {
		keys[i] = item.Key
	}
	return describe(c.batch, someOf(keys))
}

// remark asks a source what it has to say about what it has attached. It is best effort.
func (c calling) remark(about names.Tag, ask func() string) (text string) {
	_ = c.call(theProvider, func() string { return "remarking on " + names.ReadableString(about) }, func() {
		text = cut(ask())
	})
	return text
}

// describe says what is done to the entities of a batch that are named.
func describe(batch plan.Batch, of string) string {
	return fmt.Sprintf("%s: %s %s", batch.Source, batch.Op, of)
}

// task is what a hand is given: a batch, and the environment in which to do it.
type task struct {
	// ctx ends when the worker does, or when the call has reached its time limit.
	ctx     context.Context
	batch   plan.Batch
	environ *environ
	call    *timedCall
}

// handed is what a hand gives back.
type handed struct {
	batch   plan.Batch
	call    *timedCall
	results []plan.Result
	// calls is how many calls at once the source takes; 0: it could not be opened.
	calls int
	// called says that the source has been called; it took so long.
	called bool
	took   time.Duration
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
func (h *hands) give(t task, start func(func()), done chan<- handed) {
	if h.busy == h.number {
		h.number++
		shelter := t.environ.config.shelter
		start(func() { hand(shelter, &h.source, h.tasks, done) })
	}
	h.busy++
	h.tasks <- t
}

// hand has one task at a time. A source that ends the goroutine on which it is called
// has failed, and is called on another.
func hand(shelter *shelter, source *lazySource, tasks <-chan task, done chan<- handed) {
	var h handed
	about := func() string { return calling{batch: h.batch}.about(h.batch.Items...) }
	for {
		err := shelter.apart(theProvider, about, func() {
			for t := range tasks {
				h = handed{batch: t.batch, call: t.call}
				delay.At(delay.HandTask)
				h.do(source, t)
				delay.At(delay.HandDone)
				done <- h
				h = handed{} // it may be large
			}
		})
		if err == nil {
			return
		}
		h.results = failAll(h.batch.Items, err)
		if h.called {
			unknown(h.results)
		} else {
			untried(h.results)
		}
		done <- h
	}
}

// do does a task. Until the source is called nothing has been done about its items.
func (h *handed) do(from *lazySource, t task) {
	config := t.environ.config
	call := calling{shelter: config.shelter, batch: t.batch}
	var opened *source
	err := call.ask(theProvider, func() string { return call.about(t.batch.Items...) }, func() (err error) {
		if opened, err = from.open(t); err != nil {
			return err
		}
		h.calls = opened.calls
		if err := opened.waitToCall(t.ctx); err != nil {
			return err
		}
		if call.ctx = config.CallContext(t.ctx); call.ctx == nil {
			return errors.New("there is no context for provider calls")
		}
		return nil
	})
	if err != nil {
		h.results = failAll(t.batch.Items, err)
		untried(h.results)
		return
	}
	began := config.Clock.Now()
	h.called = true
	h.results = perform(call, opened)
	explainLimit(t.ctx, h.results)
	h.took = config.Clock.Now().Sub(began)
}

func perform(call calling, source operations) []plan.Result {
	items, refused := checkOwners(call, source)
	if len(items) == 0 {
		return refused
	}
	return append(do(call, source, items), refused...)
}

func do(call calling, source operations, items []plan.Item) []plan.Result {
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

// unknown notes of results that nobody knows what has been done.
func unknown(results []plan.Result) {
	for i := range results {
		results[i].Unknown = true
	}
}

// untried notes of results that the source has not been called.
func untried(results []plan.Result) {
	for i := range results {
		results[i].Untried = true
	}
}

// doubtful is the result of an item that may have been done, whatever was said of it.
func doubtful(err error) plan.Result {
	return plan.Result{Err: err, Unknown: true}
}

// bulk makes one call of a source for the items and pairs its results with them.
// What a result is about is told by its place alone.
func bulk[P, R any](
	call calling, items []plan.Item, args []P, source func([]P) ([]R, error), result func(P, R) plan.Result,
) []plan.Result {
	if len(items) == 0 {
		return nil
	}
	var got []R
	var err error
	caught := call.call(theProvider, func() string { return call.about(items...) }, func() {
		got, err = source(args)
		err = heard(err)
	})
	switch {
	case caught != nil:
		err = caught
	case err == nil && len(got) != len(items):
		err = errors.Errorf("provider returned %d results for %d arguments", len(got), len(items))
	}
	if err != nil {
		results := failAll(items, err)
		unknown(results)
		return results
	}
	results := make([]plan.Result, len(items))
	each(call.call, theProvider, len(items), func(i int) string { return call.about(items[i]) }, func(i int) {
		r := result(args[i], got[i])
		r.Err = heard(r.Err)
		results[i] = items[i].Ended(r)
	}, func(i int, err error) {
		results[i] = items[i].Ended(doubtful(err))
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

func onlyError[P any](_ P, err error) plan.Result {
	return plan.Result{Err: err}
}

// admit splits items, with their arguments, into those to go ahead with, and the
// results of those that are held back or not valid. What is repeated to learn how it
// ended is not asked about again.
func admit[P any](call calling, items []plan.Item, args []P, check func(P) plan.Result) ([]plan.Item, []P, []plan.Result) {
	var held []plan.Result
	kept := make([]bool, len(items))
	each(call.apart, theProvider, len(items), func(i int) string { return call.about(items[i]) }, func(i int) {
		var result plan.Result
		if !items[i].Repeat {
			result = check(args[i])
			result.Err = heard(result.Err)
		}
		kept[i] = !result.Deferred && result.Err == nil
		if !kept[i] {
			result.Untried = true
			held = append(held, items[i].Ended(result))
		}
	}, func(i int, err error) {
		held = append(held, items[i].Ended(plan.Result{Err: err, Untried: true}))
	})
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
	call calling, items []plan.Item, args []P, qualifiers []Q, qualifies func(Q, P) bool, validate func(P) error,
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
	return append(bulk(call, items, args, source, result), held...)
}

// takeAway destroys the items, or releases those that are to be released, unless
// a guard holds them back.
func takeAway[G any](
	call calling, items []plan.Item, guards []G, allows func(G, string) bool, destroy, release func([]string) ([]error, error),
) []plan.Result {
	id := func(item plan.Item) string { return item.ID }
	items, ids, held := admit(call, items, arguments(items, id), func(id string) plan.Result {
		return plan.Result{Deferred: slices.ContainsFunc(guards, func(g G) bool { return !allows(g, id) })}
	})
	destroyed, released := make([]bool, len(items)), make([]bool, len(items))
	for i, item := range items {
		destroyed[i], released[i] = !item.Release, item.Release
	}
	results := bulk(call, those(items, destroyed), those(ids, destroyed), destroy, onlyError)
	results = append(results, bulk(call, those(items, released), those(ids, released), release, onlyError)...)
	return append(results, held...)
}

// check looks at what is attached, where the source can do that.
func check(call calling, items []plan.Item, can bool, look func([]string) ([]error, error)) []plan.Result {
	if !can {
		return failAll(items, nil)
	}
	return bulk(call, items, arguments(items, func(item plan.Item) string { return item.ID }), look, onlyError)
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

// grown returns the result of growing. The provider's word is not taken for it.
func grown(info any, size, wanted uint64) plan.Result {
	if size < wanted {
		return plan.Result{Err: errors.Errorf("provider says that it is done, at %d MiB", size)}
	}
	return plan.Result{Info: info, Size: size}
}
