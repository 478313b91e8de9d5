package kv

import (
	"context"
	"time"

	"github.com/juju/errors"
)

// Leaser is an optional capability of a [Store] that several processes share. A process that
// alone has a store, such as that of package boltkv, needs no lease.
type Leaser interface {
	// Acquire waits until no other process holds the lease of this name, and takes it. Then
	// snapshots have what the earlier holders have committed.
	Acquire(ctx context.Context, name string) (Lease, error)
}

// Lease is the right of one process at a time to do something. It ends when the process
// releases it, or cannot renew it any more. Its methods are safe for concurrent use.
type Lease interface {
	// Term returns a number that is greater than that of every earlier holder of the lease.
	Term() uint64

	// Done is closed when the holder must stop: early enough, by the holder's own clock, that
	// it has the time of Grace to do so before another process can acquire the lease.
	Done() <-chan struct{}

	// Grace is a third of the lease's duration.
	Grace() time.Duration

	// Release ends the lease, so that another process can acquire it at once. The holder calls
	// it after it has stopped. It may be called more than once.
	Release(ctx context.Context) error
}

// ErrLeaseLost is the error of an Update with [WithLease] whose lease has ended.
const ErrLeaseLost = errors.ConstError("the lease has ended")

type leaseKey struct{}

// WithLease returns a context in which the store that the lease is from commits a transaction
// only if the lease has not ended: the store decides that, not the clock of the process.
func WithLease(ctx context.Context, lease Lease) context.Context {
	return context.WithValue(ctx, leaseKey{}, lease)
}

// LeaseOf returns the lease of a context that [WithLease] has made, or nil.
func LeaseOf(ctx context.Context) Lease {
	lease, _ := ctx.Value(leaseKey{}).(Lease)
	return lease
}
