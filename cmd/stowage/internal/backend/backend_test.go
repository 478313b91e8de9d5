package backend_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/backend"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage/provider"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

var machine = names.NewMachineTag("0")

// storeView is the store as one server has it. before, if set, runs before the next transaction.
type storeView struct {
	kv.Store
	before func()
}

func (s *storeView) Update(ctx context.Context, fn func(kv.Tx) error) error {
	if before := s.before; before != nil {
		s.before = nil
		before()
	}
	if l, ok := kv.LeaseOf(ctx).(*lease); ok && l.ended {
		return kv.ErrLeaseLost
	}
	return s.Store.Update(ctx, fn)
}

type lease struct {
	kv.Lease
	ended bool
}

// server is one of several servers with one state.
type server struct {
	*backend.Backend
	t     testing.TB
	store *storeView
	state *state.State
	lease *lease // the last
}

func newServer(t testing.TB, store kv.Store) *server {
	t.Helper()
	s := &server{t: t, store: &storeView{Store: store}}
	registry := provider.CommonStorageProviders()
	var err error
	if s.state, err = state.Open(state.Config{Store: s.store, Clock: clock.WallClock, Registry: registry}); err != nil {
		t.Fatal(err)
	}
	if err := s.state.EnsureMachine(machine); err != nil {
		t.Fatal(err)
	}
	s.Backend = backend.New(backend.Config{
		State: s.state, Dir: datadir.Dir(t.TempDir()), Registry: registry, Clock: clock.WallClock, Manager: true,
		Server: &backend.Server{IsConnected: func(names.MachineTag) bool { return true }},
		ChangeLease: func(context.Context) (kv.Lease, func(), error) {
			s.lease = &lease{}
			return s.lease, func() {}, nil
		},
	})
	t.Cleanup(func() {
		if err := s.state.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newServers returns two servers with one state. The lease of neither excludes the other, as if it
// had always ended when it is needed.
func newServers(t testing.TB) (a, b *server) {
	store := kvtest.NewMemory()
	return newServer(t, store), newServer(t, store)
}

func (s *server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(errors.ErrorStack(err))
	}
}

// apply applies a file with entries such as "data loop,1M".
func (s *server) apply(entries ...string) (changes []string, err error) {
	content := "storage:\n"
	for _, entry := range entries {
		fields := append(strings.Fields(entry), "")
		content += fmt.Sprintf("- {name: %s, directive: '%s', machine: 0, kind: ", fields[0], fields[1])
		if fields[2] == "" {
			content += "block}\n"
		} else {
			content += "filesystem, mount: " + fields[2] + "}\n"
		}
	}
	result, err := s.Apply(context.Background(), user.ApplyArgs{File: "f", Content: content})
	for _, change := range result.Changes {
		changes = append(changes, strings.TrimSpace(fmt.Sprintf("%s %s %s", change.Action, change.Name, change.Detail)))
	}
	return changes, err
}

// one returns the storage with a name.
func (s *server) one(name string) user.Storage {
	s.t.Helper()
	rows, err := s.Storage(s.t.Context(), []string{name})
	s.must(err)
	return rows[0]
}

func (s *server) wantSize(name string, want uint64) {
	s.t.Helper()
	if got := s.one(name).WantedMiB; got != want {
		s.t.Errorf("%s: %d MiB are wanted, not %d", name, got, want)
	}
}

func wantError(t testing.TB, err error, says string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("error %v, want one that says %q", err, says)
	}
}

// An apply that another server overtakes is planned again: it compares the file with what there is
// when it is committed.
func TestApplyIsPlannedAgain(t *testing.T) {
	t.Run("added", func(t *testing.T) {
		a, b := newServers(t)
		a.store.before = func() {
			_, err := b.apply("data loop,100M")
			b.must(err)
		}
		changes, err := a.apply("data loop,200M")
		a.must(err)
		if want := []string{"grow data 100 MiB to 200 MiB"}; !slices.Equal(changes, want) {
			t.Errorf("changes %q, want %q", changes, want)
		}
		a.wantSize("data", 200)
	})
	t.Run("larger", func(t *testing.T) {
		a, b := newServers(t)
		a.store.before = func() {
			_, err := b.apply("data loop,200M")
			b.must(err)
		}
		_, err := a.apply("data loop,100M", "other loop,1M")
		wantError(t, err, "data has 200M and cannot become smaller")
		b.wantSize("data", 200)
		if _, err := a.Storage(t.Context(), []string{"other"}); !errors.Is(err, errors.NotFound) {
			t.Errorf("part of the file was applied: %v", err)
		}
	})
	t.Run("removed", func(t *testing.T) {
		a, b := newServers(t)
		_, err := a.apply("data loop,100M")
		a.must(err)
		a.store.before = func() { b.must(b.Remove(t.Context(), []string{"data"})) }
		_, err = a.apply("data loop,100M", "other loop,1M")
		wantError(t, err, "data is still being removed")
		if _, err := a.Storage(t.Context(), []string{"other"}); !errors.Is(err, errors.NotFound) {
			t.Errorf("part of the file was applied: %v", err)
		}
	})
}

// What a request adds to a size is added to that which there is when the request is committed.
func TestResizeIsPlannedAgain(t *testing.T) {
	a, b := newServers(t)
	_, err := a.apply("data loop,100M")
	a.must(err)
	more := user.ResizeArgs{Names: []string{"data"}, SizeMiB: 10, More: true}
	a.store.before = func() {
		_, err := b.Resize(t.Context(), more)
		b.must(err)
	}
	result, err := a.Resize(t.Context(), more)
	a.must(err)
	a.wantSize("data", 120)
	if len(result.Changes) != 1 || result.Changes[0].Detail != "110 MiB to 120 MiB" {
		t.Errorf("changes %+v", result.Changes)
	}
}

// Rules about several instances hold although a server has lost its lease while it planned.
func TestLostLease(t *testing.T) {
	a, b := newServers(t)
	a.store.before = func() {
		a.lease.ended = true
		_, err := b.apply("b tmpfs,1M /srv/data")
		b.must(err)
	}
	_, err := a.apply("a tmpfs,1M /srv/data")
	wantError(t, err, `"/srv/data" is already the mount point of b`)
	if _, err := a.Storage(t.Context(), []string{"a"}); !errors.Is(err, errors.NotFound) {
		t.Errorf("the storage was added all the same: %v", err)
	}
}

// A server gives up a change that others overtake each time, with an error that says what to do.
func TestChangeIsPlannedSomeTimes(t *testing.T) {
	a, b := newServers(t)
	_, err := a.apply("data loop,1M")
	a.must(err)
	plans := 0
	var overtake func()
	overtake = func() {
		plans++
		_, err := b.Resize(t.Context(), user.ResizeArgs{Names: []string{"data"}, SizeMiB: 1, More: true})
		b.must(err)
		a.store.before = overtake
	}
	a.store.before = overtake
	_, err = a.Resize(t.Context(), user.ResizeArgs{Names: []string{"data"}, SizeMiB: 100, More: true})
	if !errors.Is(err, errors.NotYetAvailable) {
		t.Errorf("error %v", err)
	}
	wantError(t, err, `storage "data"`)
	wantError(t, err, "try again")
	if plans < 2 || plans > 20 {
		t.Errorf("%d plans", plans)
	}
	a.wantSize("data", uint64(1+plans))
}

// Changes that two servers make at the same time are made one after the other: none is lost.
func TestServersRace(t *testing.T) {
	a, b := newServers(t)
	_, err := a.apply("sum loop,1M")
	a.must(err)
	const changes = 50
	var group sync.WaitGroup
	for _, s := range []*server{a, b} {
		group.Go(func() {
			again := func(change func() error) {
				err := change()
				for errors.Is(err, errors.NotYetAvailable) {
					err = change()
				}
				if err != nil {
					t.Error(err)
				}
			}
			for n := range changes {
				again(func() error {
					_, err := s.apply(fmt.Sprintf("data%d loop,1M", n))
					return err
				})
				again(func() error {
					_, err := s.Resize(t.Context(), user.ResizeArgs{Names: []string{"sum"}, SizeMiB: 1, More: true})
					return err
				})
			}
		})
	}
	group.Wait()
	rows, err := a.Storage(t.Context(), nil)
	a.must(err)
	if len(rows) != changes+1 {
		t.Errorf("%d instances, want %d", len(rows), changes+1)
	}
	a.wantSize("sum", 1+2*changes)
}

// A change with a condition is made only if the storage meets it when the change is committed.
func TestConditions(t *testing.T) {
	declared := user.Declaration{Directive: "loop,300M", Kind: "block", Machine: "0"}
	for _, test := range []struct {
		name   string
		on     func(revision string) user.Condition
		change func(*server, user.Condition) error
		says   string
	}{
		{"changed", func(r string) user.Condition { return user.Condition{Name: "data", Revisions: []string{r}} },
			func(s *server, on user.Condition) error { return s.Declare(s.t.Context(), on, declared) }, "somebody has changed it"},
		{"removed", func(r string) user.Condition { return user.Condition{Name: "data", Revisions: []string{"x", r}} },
			func(s *server, on user.Condition) error { return s.RemoveIf(s.t.Context(), on) }, "somebody has changed it"},
		{"added", func(string) user.Condition { return user.Condition{Name: "new", Absent: true} },
			func(s *server, on user.Condition) error { return s.Declare(s.t.Context(), on, declared) }, `storage "new" exists`},
		{"gone", func(string) user.Condition { return user.Condition{Name: "none", Exists: true} },
			func(s *server, on user.Condition) error { return s.Declare(s.t.Context(), on, declared) }, `storage "none" does not exist`},
		{"never there", func(r string) user.Condition { return user.Condition{Name: "none", Revisions: []string{r}} },
			func(s *server, on user.Condition) error { return s.RemoveIf(s.t.Context(), on) }, `storage "none" does not exist`},
	} {
		for _, overtaken := range []bool{false, true} {
			a, b := newServers(t)
			_, err := a.apply("data loop,100M")
			a.must(err)
			on := test.on(a.one("data").Revision)
			other := func() {
				_, err := b.apply("data loop,200M", "new loop,1M")
				b.must(err)
			}
			if overtaken {
				a.store.before = other // after the plan
			} else {
				other()
			}
			err = test.change(a, on)
			if !errors.Is(err, user.ErrPrecondition) {
				t.Errorf("%s: error %v", test.name, err)
			}
			wantError(t, err, test.says)
			if s := a.one("data"); (on.Name != "none" || !overtaken) && s.WantedMiB != 200 || s.Life != "alive" {
				t.Errorf("%s: data was changed to %+v", test.name, s)
			}
		}
	}

	a, _ := newServers(t)
	a.must(a.Declare(t.Context(), user.Condition{Name: "data", Absent: true}, declared))
	declared.Directive = "loop,400M"
	a.must(a.Declare(t.Context(), user.Condition{Name: "data", Revisions: []string{"old", a.one("data").Revision}}, declared))
	a.wantSize("data", 400)
	a.must(a.RemoveIf(t.Context(), user.Condition{Name: "data", Revisions: []string{a.one("data").Revision}}))
	if s := a.one("data"); s.Life != "dying" {
		t.Errorf("data is %+v", s)
	}
	if err := a.RemoveIf(t.Context(), user.Condition{Name: "none"}); !errors.Is(err, errors.NotFound) {
		t.Errorf("without a condition: %v", err)
	}
}
