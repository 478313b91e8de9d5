package state_test

import (
	"context"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
)

// leasedStore refuses updates with a lease of the test that has ended, as a shared store does with
// its own.
type leasedStore struct{ kv.Store }

func (s leasedStore) Update(ctx context.Context, fn func(kv.Tx) error) error {
	if lease := kv.LeaseOf(ctx); lease != nil {
		select {
		case <-lease.Done():
			return errors.Trace(kv.ErrLeaseLost)
		default:
			ctx = kv.WithLease(ctx, nil)
		}
	}
	return s.Store.Update(ctx, fn)
}

type lease chan struct{}

func (lease) Term() uint64                  { return 1 }
func (l lease) Done() <-chan struct{}       { return l }
func (lease) Grace() time.Duration          { return 5 * time.Second }
func (lease) Release(context.Context) error { return nil }

// What a server reports about the environment's storage counts only while it has the lease.
// Fault F38.
func TestLeaderReportsNothingLate(t *testing.T) {
	w := openWorld(t, leasedStore{newStore(t)})
	w.add("it", "disk", block)
	held := make(lease)
	leader := w.leader(held)
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

// leader returns the accessors of the holder of a lease.
func (w *world) leader(held kv.Lease) *state.Leader {
	w.t.Helper()
	leader, err := w.ForLeader(held)
	w.must(err)
	return leader
}

// Another server notices that the state was restored: what the one with the lease knows is no
// longer true, and it changes nothing, even after a user has accepted the restored state.
// Fault F38.
func TestLeaderEndsWhenRestoreIsNoticed(t *testing.T) {
	w := openWorld(t, leasedStore{newStore(t)})
	w.add("it", "disk", block)
	old := w.leader(make(lease))
	volume := w.one("it").Volume.Tag
	report := func(by *state.Leader) error {
		return by.SetStatus([]params.EntityStatusArgs{{Tag: volume.String(), Status: "error", Info: "reported"}})
	}
	w.must(report(old))
	w.must(w.RaiseGeneration())
	if err := report(old); !errors.Is(err, kv.ErrLeaseLost) {
		t.Errorf("a report after the restore: %v", err)
	}
	if err := old.NoteAttachmentCalls([]state.AttachmentCall{{Volume: names.NewVolumeTag("0"), Machine: machine0}}); !errors.Is(err, kv.ErrLeaseLost) {
		t.Errorf("a call after the restore: %v", err)
	}
	w.must(w.AcceptGeneration())
	if err := report(old); !errors.Is(err, kv.ErrLeaseLost) {
		t.Errorf("a report after the restored state was accepted: %v", err)
	}
	w.must(report(w.leader(make(lease))))
}

// ofTerm is a lease with a term.
type ofTerm struct {
	lease
	term uint64
}

func (l ofTerm) Term() uint64 { return l.term }

// Terms go on after the state was restored into a store whose leases begin again: a program that
// keeps the greatest term does not refuse the servers.
// Fault F40.
func TestTermsGoOnAfterRestore(t *testing.T) {
	w := openWorld(t, leasedStore{newStore(t)})
	first, second := w.leader(ofTerm{make(lease), 1 << 30}).Term(), w.leader(ofTerm{make(lease), 1<<30 + 1}).Term()
	w.must(w.RaiseGeneration())
	restored := w.leader(ofTerm{make(lease), 2}).Term()
	if first >= second || second >= restored || restored >= 1<<53 {
		t.Errorf("the terms are %d, %d, and %d after a restore", first, second, restored)
	}
}

// The calls that a server was making are known to the server that takes over, until one of them
// removes the notes.
// Fault F38.
func TestCallsAreNotedUnderTheirTerm(t *testing.T) {
	w := openWorld(t, leasedStore{newStore(t)})
	volume, other := names.NewVolumeTag("0"), names.NewVolumeTag("1")
	check := func(a *state.Leader, want ...state.AttachmentCall) {
		t.Helper()
		if got, err := a.AttachmentCalls(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the calls are %+v, %v, want %+v", got, err, want)
		}
	}
	first := ofTerm{make(lease), 9}
	old := w.leader(first)
	check(old)
	attach := state.AttachmentCall{Volume: volume, Machine: machine0, VolumeID: "a", InstanceID: "i-0", Provider: "disk", Window: time.Minute}
	making := state.AttachmentCall{Volume: other, Machine: machine1, Provider: "disk", Window: time.Second}
	w.must(old.NoteAttachmentCalls([]state.AttachmentCall{attach, making}))
	attach.Term, making.Term = old.Term(), old.Term()
	check(old, attach, making)

	// The outcome of one is not known when the next one is made.
	detach := attach
	detach.Detach, detach.Window = true, time.Second
	w.must(old.NoteAttachmentCalls([]state.AttachmentCall{detach}))
	detach.Window = time.Minute
	w.must(old.NoteAttachmentCalls([]state.AttachmentCall{attach}))
	check(old, detach, making)

	// Another server takes over. The first one can note nothing, and remove nothing.
	close(first.lease)
	leader := w.leader(ofTerm{make(lease), 10})
	for what, err := range map[string]error{
		"noting":   old.NoteAttachmentCalls([]state.AttachmentCall{attach}),
		"removing": old.RemoveAttachmentCalls([]state.AttachmentCall{detach, making}),
	} {
		if !errors.Is(err, kv.ErrLeaseLost) {
			t.Errorf("%s a call after the lease has ended: %v", what, err)
		}
	}
	w.must(leader.NoteAttachmentCalls([]state.AttachmentCall{attach}))
	again := attach
	again.Term = leader.Term()
	check(leader, detach, again, making)
	w.must(leader.RemoveAttachmentCalls([]state.AttachmentCall{again, making}))
	check(leader, detach)
	w.must(leader.RemoveAttachmentCalls([]state.AttachmentCall{detach, detach}))
	check(leader)
}

// As many calls as there are can be noted, in transactions that the store allows.
func TestCallsAreNotedInBoundedTransactions(t *testing.T) {
	w := openWorld(t, &boundedStore{Store: leasedStore{newStore(t)}, keys: 100})
	a := w.leader(ofTerm{make(lease), 1})
	calls := make([]state.AttachmentCall, 300)
	for i := range calls {
		calls[i] = state.AttachmentCall{Volume: names.NewVolumeTag(strconv.Itoa(i)), Machine: machine0}
	}
	w.must(a.NoteAttachmentCalls(calls))
	noted, err := a.AttachmentCalls()
	if err != nil || len(noted) != len(calls) {
		t.Errorf("%d calls are noted, %v", len(noted), err)
	}
	w.must(a.RemoveAttachmentCalls(noted))
	if noted, err = a.AttachmentCalls(); err != nil || len(noted) > 0 {
		t.Errorf("%d calls are noted, %v", len(noted), err)
	}
}

func TestMachineIsFoundByTag(t *testing.T) {
	w := newWorld(t)
	tag, err := w.AddMachine("web")
	w.must(err)
	w.must(w.FenceMachine(tag))
	if m, err := w.Machine(tag); err != nil || m.Tag != tag || m.Name != "web" || !m.Fenced.Equal(start) {
		t.Errorf("got %+v, %v", m, err)
	}
	if m, err := w.Machine(machine0); err != nil || m.Name != "0" || !m.Fenced.IsZero() {
		t.Errorf("got %+v, %v", m, err)
	}
	if _, err := w.Machine(names.NewMachineTag("99")); !errors.Is(err, errors.NotFound) {
		t.Errorf("a machine that does not exist: %v", err)
	}
}
