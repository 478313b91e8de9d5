package providertest

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

func checkArgumentsAreNotChanged(b *bench) {
	first := b.source
	e := b.entity()
	_ = first.validate(e)
	b.create(e)
	b.attach(e)
	b.remove(e)
	for _, call := range first.argumentsChanged() {
		b.Errorf("%s changed its arguments", call)
	}
}

// checkOrder takes several entities through their lives, with each call in another order.
func checkOrder(b *bench) {
	all := b.entities(5)
	turn := func() {
		all = append(all[2:], all[:2]...)
	}
	for i, got := range b.create(all...) {
		b.checkMade(all[i], got)
	}
	turn()
	made := make(map[names.Tag]string)
	for i, got := range b.create(mapSlice(all, copyOf)...) {
		made[got.tag] = got.id
		if got.tag != all[i].tag || got.id != all[i].id {
			b.Errorf("%s with id %s is returned as %s with id %s", all[i].tag, all[i].id, got.tag, got.id)
		}
	}
	turn()
	for i, got := range b.attach(all...) {
		b.checkAttached(all[i], got)
		b.write(got)
	}
	turn()
	b.checkData(b.attach(all...)...)
	turn()
	b.detach(all...)
	turn()
	b.destroy(all...)
}

// checkCancelled checks the errors of a call whose context was cancelled: the caller must be
// able to distinguish them from others.
func (b *bench) checkCancelled(doing string, errs []error, err error) {
	b.Helper()
	for _, err := range append(slices.Clone(errs), err) {
		if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, storage.ErrInProgress) {
			b.Errorf("%s with a cancelled context: got %v, want success, context.Canceled or storage.ErrInProgress", doing, err)
		}
	}
}

// withinPatience fails the rule if a call does not return within the patience.
func (b *bench) withinPatience(doing string, call func()) {
	b.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	patience := time.NewTimer(b.Patience)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
		b.Fatalf("%s with a cancelled context: the call has not returned after %v", doing, b.Patience)
	}
}

// step is one bulk call in a life. It returns the errors of the items, and that of the call.
type step struct {
	doing string
	call  func(envcontext.ProviderCallContext, source, []*entity) ([]error, error)
}

// life returns the calls that create and finally destroy an entity.
func (b *bench) life() []step {
	return []step{{"creating", func(ctx envcontext.ProviderCallContext, s source, all []*entity) ([]error, error) {
		results, err := s.create(ctx, all)
		setIDs(all, results)
		return mapSlice(results, func(r created) error { return r.err }), err
	}}, {"attaching", func(ctx envcontext.ProviderCallContext, s source, all []*entity) ([]error, error) {
		results, err := s.attach(ctx, all)
		return mapSlice(results, func(r attached) error { return r.err }), err
	}}, {"detaching", func(ctx envcontext.ProviderCallContext, s source, all []*entity) ([]error, error) {
		return s.detach(ctx, all)
	}}, {"destroying", func(ctx envcontext.ProviderCallContext, s source, all []*entity) ([]error, error) {
		return s.destroy(ctx, mapSlice(all, identify))
	}}}
}

// interruptAndRepeat takes entities through a life. It makes each call with a context that may
// be cancelled during the call, and then again with one that is not cancelled; the second call
// must succeed.
func (b *bench) interruptAndRepeat(all []*entity, newContext func() envcontext.ProviderCallContext) {
	b.Helper()
	for _, step := range b.life() {
		var errs []error
		var err error
		ctx := newContext()
		b.withinPatience(step.doing, func() { errs, err = step.call(ctx, b.source, all) })
		b.checkCancelled(step.doing, errs, err)
		if step.doing == "creating" {
			// The entities must be cleaned up, but the interrupted call may not have returned
			// their IDs.
			before := mapSlice(all, identify)
			for i, got := range b.create(all...) {
				if before[i] != "" && got.id != before[i] {
					b.Errorf("%s was made as %s, and again as %s", got.tag, before[i], got.id)
				}
			}
			continue
		}
		errs, err = step.call(b.ctx, b.source, all)
		b.successes(step.doing+" what was interrupted", answers(b, step.doing, len(all), errs, err))
	}
}

func checkCancelledBefore(b *bench) {
	if v, ok := b.source.(*volumes); ok {
		made := b.one()
		b.withinPatience("listing", func() {
			_, err := v.ListVolumes(b.cancelled())
			b.checkCancelled("listing", nil, err)
		})
		b.withinPatience("describing", func() {
			results, err := v.DescribeVolumes(b.cancelled(), []string{made.id})
			b.checkCancelled("describing", mapSlice(results, func(r storage.DescribeVolumesResult) error { return r.Error }), err)
		})
	}
	b.interruptAndRepeat(b.entities(2), b.cancelled)
}

// fuse is a context that is cancelled when it is checked for the nth time. With increasing n,
// a provider's caller gives up at each point at which the provider checks the context.
type fuse struct {
	context.Context
	cancel context.CancelFunc
	left   atomic.Int64
}

func newFuse(ctx context.Context, n int) *fuse {
	f := &fuse{}
	f.Context, f.cancel = context.WithCancel(ctx)
	f.left.Store(int64(n))
	return f
}

func (f *fuse) check() {
	if f.left.Add(-1) == 0 {
		f.cancel()
	}
}

// Done implements [context.Context].
func (f *fuse) Done() <-chan struct{} {
	f.check()
	return f.Context.Done()
}

// Err implements [context.Context].
func (f *fuse) Err() error {
	f.check()
	return f.Context.Err()
}

// maxChecks limits the number of points at which a life is cancelled.
const maxChecks = 16

func checkInterrupted(b *bench) {
	for n := 1; n <= maxChecks; n++ {
		var fuses []*fuse
		b.interruptAndRepeat(b.entities(2), func() envcontext.ProviderCallContext {
			f := newFuse(b.ctx, n)
			fuses = append(fuses, f)
			return envcontext.New(f)
		})
		burnt := false
		for _, f := range fuses {
			burnt = burnt || f.left.Load() <= 0
			f.cancel()
		}
		if !burnt {
			return // the provider does not check the context that often
		}
	}
}

func checkSourcesAreIndependent(b *bench) {
	b.atOnce([]source{b.source, b.openSource(b.Provider), b.openSource(b.Provider)})
}

func checkConcurrentSource(b *bench) {
	// A source's own declaration overrides the provider's.
	c := b.source.concurrent()
	if c == nil {
		c, _ = b.Provider.(storage.ConcurrentSource)
	}
	if c == nil || c.MaxConcurrentCalls() < 2 {
		b.Skip("the source takes one call at a time")
	}
	sources := make([]source, min(c.MaxConcurrentCalls(), 8))
	for i := range sources {
		sources[i] = b.source
	}
	b.atOnce(sources)
}

// atOnce makes each source take entities of its own through their lives, all at the same time.
func (b *bench) atOnce(sources []source) {
	b.Helper()
	const rounds = 3
	all := make([][]*entity, len(sources))
	for i := range sources {
		all[i] = b.entities(2)
	}
	for range rounds {
		for _, step := range b.life() {
			results, failures := make([][]error, len(sources)), make([]error, len(sources))
			start := make(chan struct{})
			var callers sync.WaitGroup
			for i, s := range sources {
				callers.Go(func() {
					<-start
					results[i], failures[i] = step.call(b.ctx, s, all[i])
				})
			}
			close(start)
			callers.Wait()
			if step.doing == "creating" {
				b.made = slices.DeleteFunc(slices.Concat(all...), func(e *entity) bool { return e.id == "" })
			}
			for i := range sources {
				b.successes(step.doing+" at once", answers(b, step.doing, len(all[i]), results[i], failures[i]))
			}
		}
		if all[0][0].isBacked() {
			return // the volume already contains data, and is not formatted again
		}
	}
}

func checkNothingIsLeft(b *bench) {
	all := b.some(2)
	b.write(b.attach(all...)...)
	b.restart()
	b.remove(all...)
	b.checkLeaks("left behind")
	if b.kind.noun == "volume" {
		if listed := b.list(); len(listed) > 0 {
			b.Errorf("volumes %q are still listed", listed)
		}
	}
}
