package state_test

import (
	"context"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state/kv"
)

// leasedStore refuses updates with a lease that has ended, as a shared store does.
type leasedStore struct{ kv.Store }

func (s leasedStore) Update(ctx context.Context, fn func(kv.Tx) error) error {
	if lease := kv.LeaseOf(ctx); lease != nil {
		select {
		case <-lease.Done():
			return errors.Trace(kv.ErrLeaseLost)
		default:
		}
	}
	return s.Store.Update(ctx, fn)
}

type lease chan struct{}

func (lease) Term() uint64                  { return 1 }
func (l lease) Done() <-chan struct{}       { return l }
func (lease) Release(context.Context) error { return nil }

// What a server reports about the environment's storage counts only while it has the lease.
// Fault F38.
func TestLeaderReportsNothingLate(t *testing.T) {
	w := openWorld(t, leasedStore{newStore(t)})
	w.add("it", "disk", block)
	held := make(lease)
	leader := w.ForLeader(held)
	volume := w.one("it").Volume.Tag
	report := func() error {
		return leader.SetStatus([]params.EntityStatusArgs{{Tag: volume.String(), Status: "error", Info: "reported"}})
	}
	w.must(report())
	close(held)
	if err := report(); !errors.Is(err, kv.ErrLeaseLost) {
		t.Errorf("a report after the lease has ended: %v", err)
	}
	if _, err := leader.Remove([]names.Tag{volume}); !errors.Is(err, kv.ErrLeaseLost) {
		t.Errorf("a removal after the lease has ended: %v", err)
	}
	if results, err := leader.Life([]names.Tag{volume}); err != nil || results[0].Error != nil {
		t.Errorf("reading after the lease has ended: %v, %v", results, err)
	}
}
