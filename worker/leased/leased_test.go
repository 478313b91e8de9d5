package leased_test

import (
	"context"
	"testing"
	"time"

	"github.com/juju/clock/testclock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/leased"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

const patience = time.Minute

// fakeLease is a lease that the test ends.
type fakeLease struct {
	done     chan struct{}
	released chan struct{}
}

func newLease() *fakeLease {
	return &fakeLease{make(chan struct{}), make(chan struct{}, 1)}
}

func (l *fakeLease) Term() uint64          { return 1 }
func (l *fakeLease) Done() <-chan struct{} { return l.done }
func (l *fakeLease) Grace() time.Duration  { return 5 * time.Second }
func (l *fakeLease) Release(context.Context) error {
	l.released <- struct{}{}
	return nil
}

// fakeWorker is a worker whose calls return when the test wants.
type fakeWorker struct {
	killed chan struct{}
	ended  chan error
}

func (w *fakeWorker) Kill()       { w.killed <- struct{}{} }
func (w *fakeWorker) Wait() error { return <-w.ended }

// bench is a leased worker.
type bench struct {
	*testing.T
	lease       *fakeLease
	worker      *fakeWorker
	clock       *testclock.Clock
	lost, stuck chan struct{}
	leased      worker.Worker
}

func newBench(t *testing.T) *bench {
	b := &bench{
		T: t, lease: newLease(), worker: &fakeWorker{make(chan struct{}, 2), make(chan error, 1)},
		clock: testclock.NewClock(time.Unix(0, 0)), lost: make(chan struct{}, 1), stuck: make(chan struct{}, 1),
	}
	var err error
	b.leased, err = leased.Start(b.lease, leased.Config{
		Clock: b.clock,
		Lost:  func() { b.lost <- struct{}{} },
		Stuck: func() { b.stuck <- struct{}{} },
	}, func() (worker.Worker, error) { return b.worker, nil })
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) await(what string, happens <-chan struct{}) {
	b.Helper()
	select {
	case <-happens:
	case <-time.After(patience):
		b.Fatalf("%s: not within %s", what, patience)
	}
}

// A worker whose lease is lost ends. The process goes on if that is done before the lease ends.
// Fault F38.
func TestLostLeaseEndsWorker(t *testing.T) {
	b := newBench(t)
	close(b.lease.done)
	b.await("the loss is reported", b.lost)
	b.await("the worker is killed", b.worker.killed)
	if err := b.clock.WaitAdvance(5*time.Second-1, patience, 1); err != nil {
		t.Fatal(err)
	}
	b.worker.ended <- nil
	if err := b.leased.Wait(); !errors.Is(err, kv.ErrLeaseLost) {
		t.Errorf("it ends with %v", err)
	}
	b.await("the lease is released", b.lease.released)
	if len(b.stuck) > 0 {
		t.Error("the process is ended")
	}
}

// A server whose calls have not returned when the lease ends exits, whether it was stopping or not.
// Fault F38.
func TestStuckCallEndsProcess(t *testing.T) {
	for _, stopping := range []bool{false, true} {
		b := newBench(t)
		if stopping {
			b.leased.Kill()
			b.await("the worker is killed", b.worker.killed)
		}
		close(b.lease.done)
		b.await("the worker is killed", b.worker.killed)
		if err := b.clock.WaitAdvance(5*time.Second, patience, 1); err != nil {
			t.Fatal(err)
		}
		b.await("the process is ended", b.stuck)
		if len(b.lease.released) > 0 {
			t.Error("the lease is released although a call has not returned")
		}
		b.worker.ended <- nil
		_ = b.leased.Wait() // only the test goes on
	}
}

// A worker that ends by itself, or is stopped, releases the lease.
func TestLeaseIsReleasedAfterWorker(t *testing.T) {
	failure := errors.New("failure")
	b := newBench(t)
	b.worker.ended <- failure
	if err := b.leased.Wait(); !errors.Is(err, failure) {
		t.Errorf("it ends with %v", err)
	}
	b.await("the lease is released", b.lease.released)

	b = newBench(t)
	b.leased.Kill()
	b.await("the worker is killed", b.worker.killed)
	if len(b.lease.released) > 0 {
		t.Error("the lease is released before the worker has ended")
	}
	b.worker.ended <- nil
	if err := b.leased.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	b.await("the lease is released", b.lease.released)

	lease := newLease()
	valid := leased.Config{Clock: b.clock, Stuck: func() {}}
	if _, err := leased.Start(lease, valid, func() (worker.Worker, error) { return nil, failure }); !errors.Is(err, failure) {
		t.Errorf("a worker that does not start: %v", err)
	}
	b.await("the lease is released", lease.released)

	lease = newLease()
	if _, err := leased.Start(lease, leased.Config{}, nil); !errors.Is(err, errors.NotValid) {
		t.Errorf("a configuration without a clock: %v", err)
	}
	b.await("the lease is released", lease.released)
}
