package storageprovisioner

import (
	"context"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/delay"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/translate"
)

// request asks a runner to carry out a batch in an environment.
type request struct {
	// ctx ends when the worker ends or the call reaches its time limit.
	ctx       context.Context
	batch     plan.Batch
	environ   *environ
	timedCall *timedCall
}

// response is a runner's answer to a request.
type response struct {
	batch     plan.Batch
	timedCall *timedCall
	results   []plan.Result
	// maxCalls is how many concurrent calls the source allows; 0: it could not be opened.
	maxCalls int
	// sourceCalled says that the source has been called; took is the duration of the call.
	sourceCalled bool
	took         time.Duration
}

// runners are the goroutines that call one source, as many as the source has had concurrent
// calls. The loop owns all fields but source.
type runners struct {
	requests chan request
	count    int
	busy     int
	source   lazySource
}

// send sends a request to a free runner, starting one if all are busy.
func (r *runners) send(req request, start func(func()), responses chan<- response) {
	if r.busy == r.count {
		r.count++
		g := req.environ.config.guard
		start(func() { runner(g, &r.source, r.requests, responses) })
	}
	r.busy++
	r.requests <- req
}

// runner carries out one request at a time. If a source ends the goroutine that calls it, the
// request has failed, and the runner goes on with another goroutine.
func runner(g *guard.Guard, source *lazySource, requests <-chan request, responses chan<- response) {
	var resp response
	describe := func() string { return translate.Call{Batch: resp.batch}.Describe(resp.batch.Items...) }
	for {
		err := g.CallInGoroutine(guard.Provider, describe, func() {
			for req := range requests {
				resp = response{batch: req.batch, timedCall: req.timedCall}
				delay.At(delay.RunnerTask)
				resp.carryOut(source, req)
				delay.At(delay.RunnerDone)
				responses <- resp
				resp = response{} // it may be large
			}
		})
		if err == nil {
			return
		}
		resp.results = translate.FailAll(resp.batch.Items, err)
		if resp.sourceCalled {
			translate.MarkUnknown(resp.results)
		} else {
			translate.MarkUntried(resp.results)
		}
		responses <- resp
	}
}

// carryOut carries out a request. Until the source is called, nothing has been done to the
// items of the batch.
func (resp *response) carryOut(lazy *lazySource, req request) {
	config := req.environ.config
	call := translate.Call{Guard: config.guard, Batch: req.batch}
	var opened *source
	err := call.Guard.CallErr(guard.Provider, func() string { return call.Describe(req.batch.Items...) }, func() (err error) {
		if opened, err = lazy.open(req); err != nil {
			return err
		}
		resp.maxCalls = opened.maxCalls
		if err := opened.waitToCall(req.ctx); err != nil {
			return err
		}
		if call.Ctx = config.CallContext(req.ctx); call.Ctx == nil {
			return errors.New("no context for provider calls: Config.CallContext returned nil")
		}
		return nil
	})
	if err != nil {
		resp.results = translate.FailAll(req.batch.Items, err)
		translate.MarkUntried(resp.results)
		return
	}
	began := config.Clock.Now()
	resp.sourceCalled = true
	resp.results = translate.Perform(call, opened)
	explainLimit(req.ctx, resp.results)
	resp.took = config.Clock.Now().Sub(began)
}
