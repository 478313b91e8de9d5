package statefile_test

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/juju/clock/testclock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/state/statefile"
	"github.com/stowage-io/stowage/worker"
)

const (
	settle   = 5 * time.Minute
	interval = time.Hour
)

// copied is a copier under test.
type copied struct {
	t        *testing.T
	path     string
	store    *boltkv.Store
	clock    *testclock.Clock
	copier   *statefile.Copier
	warnings chan string
}

func (c *copied) Debugf(string, ...any)               {}
func (c *copied) Warningf(format string, args ...any) { c.warnings <- fmt.Sprintf(format, args...) }

// startCopier starts a copier, and waits for its work at the start.
func startCopier(t *testing.T, path string, store *boltkv.Store) *copied {
	t.Helper()
	c := &copied{t: t, path: path, store: store, clock: testclock.NewClock(now), warnings: make(chan string, 10)}
	copier, err := statefile.NewCopier(statefile.CopierConfig{
		Store: store, Path: path, Identify: identify, Clock: c.clock, Logger: c,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.copier = copier
	t.Cleanup(func() { c.stop() })
	c.wait(0)
	return c
}

func (c *copied) stop() error {
	c.copier.Kill()
	return c.copier.Wait()
}

// wait advances the clock, and waits until the copier waits for its timer again.
func (c *copied) wait(d time.Duration) {
	c.t.Helper()
	if err := c.clock.WaitAdvance(d, 20*time.Second, 1); err != nil {
		c.t.Fatal(err)
	}
	if d == 0 {
		return
	}
	// The copier has finished once it waits again.
	if err := c.clock.WaitAdvance(0, 20*time.Second, 1); err != nil {
		c.t.Fatal(err)
	}
}

// expect requires that the copies have these values of the key, "" for none.
func (c *copied) expect(first, second string) {
	c.t.Helper()
	for i, want := range []string{first, second} {
		path := fmt.Sprintf("%s.copy-%d", c.path, i+1)
		got := ""
		if meta, err := statefile.Verify(path, identify); err == nil {
			got = contentsOf(c.t, path)["changing"]
			if meta.Kind != statefile.KindCopy {
				c.t.Errorf("%s is a %s", path, meta.Kind)
			}
		} else if !errors.Is(err, os.ErrNotExist) {
			c.t.Error(err)
		}
		if got != want {
			c.t.Errorf("%s has %q, want %q", path, got, want)
		}
	}
}

func (c *copied) change(value string) {
	c.t.Helper()
	put(c.t, c.store, "changing", value)
}

func (c *copied) noWarning() {
	c.t.Helper()
	select {
	case warning := <-c.warnings:
		c.t.Errorf("warning: %s", warning)
	default:
	}
}

func (c *copied) warned(text string) {
	c.t.Helper()
	select {
	case warning := <-c.warnings:
		if !strings.Contains(warning, text) {
			c.t.Errorf("the warning does not have %q: %s", text, warning)
		}
	default:
		c.t.Errorf("no warning of %q", text)
	}
}

var _ worker.Worker = (*statefile.Copier)(nil)

func TestCopierKeepsTwoCopies(t *testing.T) {
	path, store := newState(t, 1)
	put(t, store, "changing", "a")
	c := startCopier(t, path, store)
	c.expect("a", "")
	c.wait(settle)
	c.expect("a", "")

	c.change("b")
	c.wait(settle) // the state changed a moment ago
	c.expect("a", "")
	c.wait(settle)
	c.expect("a", "b")

	c.change("c")
	c.wait(settle)
	c.wait(settle)
	c.expect("c", "b")

	// A state that keeps changing is copied every hour.
	for i := time.Duration(0); i < interval-2*settle; i += settle {
		c.change(fmt.Sprint("d", i))
		c.wait(settle)
		c.expect("c", "b")
	}
	c.change("e")
	c.wait(settle)
	c.change("f")
	c.wait(settle)
	c.expect("c", "f")
	c.noWarning()
	if err := c.stop(); err != nil {
		t.Errorf("the copier ended with %v", err)
	}
	expectFiles(t, path, "state.db", "state.db.copy-1", "state.db.copy-2")

	// An unchanged state is not copied again.
	before, err := os.Stat(path + ".copy-1")
	if err != nil {
		t.Fatal(err)
	}
	c = startCopier(t, path, store)
	c.expect("c", "f")
	c.change("g")
	c.wait(settle)
	c.wait(settle)
	c.expect("g", "f")
	if after, err := os.Stat(path + ".copy-1"); err != nil || os.SameFile(before, after) {
		t.Errorf("a copy was overwritten rather than replaced (%v)", err)
	}
}

func TestCopierReplacesUnusableCopyFirst(t *testing.T) {
	_, otherStore := newState(t, 7)
	setIdentity(t, otherStore, statefile.Identity{Schema: 4, UUID: "another", Generation: 7})
	foreign, _ := backup(t, otherStore)
	for name, content := range map[string][]byte{
		"damaged":          []byte("damaged"),
		"of another state": readFile(t, foreign),
		"truncated":        readFile(t, foreign)[:9000],
	} {
		path, store := newState(t, 1)
		put(t, store, "changing", "a")
		c := startCopier(t, path, store)
		c.change("b")
		c.wait(settle)
		c.wait(settle)
		c.expect("a", "b")
		if err := c.stop(); err != nil {
			t.Fatal(err)
		}
		// The newer of the two copies is unusable.
		if err := os.WriteFile(path+".copy-2", content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+".copy-2.tmp1", content, 0o600); err != nil {
			t.Fatal(err)
		}
		c = startCopier(t, path, store)
		c.expect("a", "b")
		expectFiles(t, path, "state.db", "state.db.copy-1", "state.db.copy-2")
		if name != "of another state" {
			c.warned(".copy-2")
		}
		c.noWarning()
	}
}

// A restored state is older than its copies, until it has one of its own.
func TestCopierCopiesRestoredState(t *testing.T) {
	path, store := newState(t, 1)
	put(t, store, "changing", "a")
	saved, _ := backup(t, store)
	put(t, store, "changing", "b")
	c := startCopier(t, path, store)
	c.change("c")
	c.wait(settle)
	c.wait(settle)
	c.expect("b", "c")
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	store.Close()
	if _, _, err := statefile.Restore(saved, path, identify, now, nil); err != nil {
		t.Fatal(err)
	}
	store = open(t, path)
	// One more transaction: the state has as many as the copy.
	setIdentity(t, store, statefile.Identity{Schema: 4, UUID: stateUUID, Generation: 2})
	c = startCopier(t, path, store)
	c.expect("a", "c")
	c.noWarning()
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	store.Close()
	found, err := statefile.Newest(path, stateUUID, identify)
	if err != nil || !maps.Equal(contentsOf(t, found.Path), contentsOf(t, path)) {
		t.Errorf("the newest is %s (%v)", found.Path, err)
	}
}

func TestFailedStoreEndsCopier(t *testing.T) {
	path, store := newState(t, 1)
	c := startCopier(t, path, store)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := c.clock.WaitAdvance(settle, 20*time.Second, 1); err != nil {
		t.Fatal(err)
	}
	if err := c.copier.Wait(); !errors.Is(err, boltkv.ErrDamaged) {
		t.Errorf("the copier ended with %v", err)
	}
	c.noWarning()
}

func TestCopierConfigErrors(t *testing.T) {
	_, store := newState(t, 1)
	whole := statefile.CopierConfig{Store: store, Path: "state.db", Identify: identify}
	for field, spoil := range map[string]func(*statefile.CopierConfig){
		"Store":    func(c *statefile.CopierConfig) { c.Store = nil },
		"Path":     func(c *statefile.CopierConfig) { c.Path = "" },
		"Identify": func(c *statefile.CopierConfig) { c.Identify = nil },
		"Interval": func(c *statefile.CopierConfig) { c.Interval = -1 },
		"Settle":   func(c *statefile.CopierConfig) { c.Settle = -1 },
	} {
		config := whole
		spoil(&config)
		if _, err := statefile.NewCopier(config); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
