package backend_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/backend"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
	"github.com/stowage-io/stowage/testing/providerfake"
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

// testLogger writes messages to the log of a test.
type testLogger struct{ testing.TB }

func (l testLogger) Warningf(format string, args ...any) { l.Logf(format, args...) }

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
	cloud *providerfake.Provider
	lease *lease // the last
	// progress is what workers report, whatever they are asked about.
	progress map[string]any
	leases   int // how many there were
}

func newServer(t testing.TB, store kv.Store) *server {
	t.Helper()
	s := &server{t: t, store: &storeView{Store: store}, cloud: providerfake.New(providerfake.Options{})}
	registry := storage.ChainedProviderRegistry{provider.CommonStorageProviders(), storage.StaticProviderRegistry{
		Providers: map[storage.ProviderType]storage.Provider{"cloud": s.cloud},
	}}
	var err error
	if s.state, err = state.Open(state.Config{Store: s.store, Clock: clock.WallClock, Registry: registry}); err != nil {
		t.Fatal(err)
	}
	if err := s.state.EnsureMachine(machine); err != nil {
		t.Fatal(err)
	}
	s.Backend = backend.New(backend.Config{
		State: s.state, Dir: datadir.Dir(t.TempDir()), Registry: registry, Clock: clock.WallClock, Manager: true, Logger: testLogger{t},
		Progress: func([]names.Tag) map[string]any { return s.progress },
		Server:   &backend.Server{IsConnected: func(names.MachineTag) bool { return true }},
		ChangeLease: func(context.Context) (kv.Lease, func(), error) {
			s.lease = &lease{}
			s.leases++
			return s.lease, func() {}, nil
		},
	})
	t.Cleanup(func() {
		s.Close()
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
		a.store.before = func() { b.must(b.Remove(t.Context(), user.RemoveArgs{Names: []string{"data"}})) }
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

// No change is committed without the lease, and each is planned again with another one.
func TestEveryChangeNeedsTheLease(t *testing.T) {
	a, _ := newServers(t)
	_, err := a.apply("data tmpfs,1M /srv/data", "dir rootfs,1M /srv/dir")
	a.must(err)
	for _, change := range []struct {
		name string
		make func() error
	}{
		{"attach", func() error {
			_, err := a.Attach(t.Context(), user.AttachArgs{Names: []string{"data"}, Machine: "0"})
			return err
		}},
		{"retry", func() error { return a.Retry(t.Context(), []string{"data"}) }},
		{"detach", func() error { return a.Detach(t.Context(), []string{"data"}) }},
		{"remove", func() error { return a.Remove(t.Context(), user.RemoveArgs{Names: []string{"data"}}) }},
		{"release", func() error { return a.Release(t.Context(), user.RemoveArgs{Names: []string{"dir"}}) }},
	} {
		before := a.leases
		a.store.before = func() { a.lease.ended = true }
		if err := change.make(); err != nil {
			t.Errorf("%s: %v", change.name, err)
		}
		if n := a.leases - before; n != 2 {
			t.Errorf("%s: %d leases, want one that ends and one more", change.name, n)
		}
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

// finish lets the machine finish the removal of storage whose only volume has an ID.
func (s *server) finish(volume string) {
	s.t.Helper()
	worker := s.state.ForMachine(machine)
	tag := names.NewVolumeTag(volume)
	results, err := worker.RemoveAttachments([]params.MachineStorageId{{MachineTag: machine.String(), AttachmentTag: tag.String()}})
	s.must(err)
	removed, err := worker.Remove([]names.Tag{tag})
	s.must(err)
	if results[0].Error != nil || removed[0].Error != nil {
		s.t.Fatal(results, removed)
	}
}

// watched is a request to watch.
type watched struct {
	t      testing.TB
	events chan user.Event
	ended  chan error
	cancel context.CancelFunc
}

func (s *server) watch(args user.WatchArgs) *watched {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watched{s.t, make(chan user.Event), make(chan error, 1), cancel}
	go func() {
		w.ended <- s.Watch(ctx, args, func(event user.Event) error {
			select {
			case w.events <- event:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return w
}

func (w *watched) next() user.Event {
	w.t.Helper()
	select {
	case event := <-w.events:
		return event
	case err := <-w.ended:
		w.t.Fatalf("the watch has ended: %v", err)
	case <-time.After(time.Minute):
		w.t.Fatal("no event")
	}
	panic("not reached")
}

// until takes events until one is about storage that satisfies the condition, or says that something is
// gone. It returns the position.
func (w *watched) until(condition func(user.Event) bool) string {
	w.t.Helper()
	for {
		if event := w.next(); condition(event) {
			return event.Position
		}
	}
}

func (w *watched) end() error {
	w.cancel()
	return <-w.ended
}

func has(name string) func(user.Event) bool {
	return func(e user.Event) bool {
		return slices.ContainsFunc(e.Storage, func(s user.Storage) bool { return s.Name == name })
	}
}

// lines returns what an event says.
func lines(e user.Event) string {
	var all []string
	for _, s := range e.Storage {
		all = append(all, fmt.Sprintf("%s %d", s.Name, s.WantedMiB))
	}
	for _, name := range e.Gone {
		all = append(all, name+" gone")
	}
	return strings.Join(all, ", ")
}

// A client that was cut off gets what it has missed, and what is gone, and nothing else.
func TestWatchGoesOn(t *testing.T) {
	store := kvtest.NewMemory()
	s := newServer(t, store)
	_, err := s.apply("gone loop,1M", "grown loop,1M", "other loop,1M", "same loop,1M")
	s.must(err)
	names := []string{"brief", "gone", "grown", "new", "same"}
	w := s.watch(user.WatchArgs{Names: names})
	first := w.next()
	if got := lines(first); got != "gone 1, grown 1, same 1" {
		t.Errorf("first: %s", got)
	}
	_, err = s.apply("early loop,1M", "new loop,1M")
	s.must(err)
	from := w.until(has("new"))
	if err := w.end(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}

	s.must(s.Remove(t.Context(), user.RemoveArgs{Names: []string{"gone"}}))
	s.finish("0/0")
	_, err = s.apply("brief loop,1M", "grown loop,2M", "other loop,2M")
	s.must(err)
	s.must(s.Remove(t.Context(), user.RemoveArgs{Names: []string{"brief"}}))
	s.finish("0/6")
	// The journal has all that once somebody else has seen the last of it.
	other := s.watch(user.WatchArgs{})
	other.next()
	_, err = s.apply("last loop,1M")
	s.must(err)
	other.until(has("last"))
	other.cancel()

	w = s.watch(user.WatchArgs{Names: names, From: from})
	event := w.next()
	if got := lines(event); got != "grown 2, brief gone, gone gone" && got != "grown 2, gone gone" {
		t.Errorf("missed: %s", got)
	}
	// It goes on with storage that it has known since the first connection.
	s.must(s.Remove(t.Context(), user.RemoveArgs{Names: []string{"same"}}))
	w.until(has("same"))
	s.finish("0/3")
	from = w.until(func(e user.Event) bool { return slices.Contains(e.Gone, "same") })
	s.must(ignoreCanceled(w.end()))

	w = s.watch(user.WatchArgs{Names: names, From: from})
	// The journal may have learned of the last change after the client, which is then told again.
	if got := lines(w.next()); got != "" && got != "same gone" {
		t.Errorf("nothing was missed: %s", got)
	}
	s.must(ignoreCanceled(w.end()))
	<-other.ended

	// Another server, or the same after a restart, does not know what was missed.
	for _, test := range []struct {
		from string
		kind errors.ConstError
		says string
	}{
		{from, user.ErrGone, "watch from the beginning"},
		{"x", errors.NotValid, `"x" is not the position of an event`},
		{"", "", ""},
	} {
		another := newServer(t, store)
		w := another.watch(user.WatchArgs{Names: names, From: test.from})
		select {
		case <-w.events:
			if test.kind != "" {
				t.Errorf("%q is served", test.from)
			}
			s.must(ignoreCanceled(w.end()))
		case err := <-w.ended:
			if test.kind == "" || !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%q is answered with %v", test.from, err)
			}
		}
	}
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// A backend that is closed ends its watches, and begins none.
func TestCloseEndsWatches(t *testing.T) {
	s := newServer(t, kvtest.NewMemory())
	w := s.watch(user.WatchArgs{})
	w.next()
	s.Close()
	wantError(t, <-w.ended, "stopping")
	wantError(t, s.Watch(t.Context(), user.WatchArgs{}, nil), "stopping")
}
