package mounts

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/watcher"
)

// needRoot skips a test that needs root, or fails it where root was promised.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
		t.Fatal("mounting needs root, which STOWAGE_REQUIRE_ROOT=1 promises")
	}
	t.Skip("mounting needs root")
}

// start returns a watcher whose first event has been received.
func start(t *testing.T, gather time.Duration) watcher.NotifyWatcher {
	t.Helper()
	t.Cleanup(func() { leaktest.VerifyNone(t) })
	w, err := watch("/proc/self/mountinfo", gather)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Kill()
		if err := w.Wait(); err != nil {
			t.Error(err)
		}
	})
	next(t, w)
	return w
}

func next(t *testing.T, w watcher.NotifyWatcher) {
	t.Helper()
	select {
	case _, ok := <-w.Changes():
		if !ok {
			t.Fatal("the watcher has ended")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no event")
	}
}

func TestMountChangesAreReported(t *testing.T) {
	needRoot(t)
	w := start(t, time.Millisecond)
	dir := t.TempDir()
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	for _, change := range []struct {
		what string
		make func() error
	}{
		{"mounting", func() error { return unix.Mount("test", dir, "tmpfs", 0, "size=1M") }},
		{"making it read-only", func() error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "") }},
		{"mounting over it", func() error { return unix.Mount("test", dir, "tmpfs", 0, "size=1M") }},
		{"unmounting", func() error { return unix.Unmount(dir, 0) }},
	} {
		if err := change.make(); err != nil {
			t.Fatalf("%s: %v", change.what, err)
		}
		next(t, w)
	}
}

// Changes in quick succession are reported once.
func TestRapidChangesAreReportedOnce(t *testing.T) {
	needRoot(t)
	const gather = time.Second
	w := start(t, gather)
	dir := t.TempDir()
	begun := time.Now()
	for range 20 {
		if err := unix.Mount("test", dir, "tmpfs", 0, "size=1M"); err != nil {
			t.Fatal(err)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
	}
	next(t, w)
	if took := time.Since(begun); took < gather {
		t.Errorf("reported after %v", took)
	}
	select {
	case <-w.Changes():
		if time.Since(begun) < 2*gather {
			t.Error("reported twice")
		}
	default:
	}
}

// A killed watcher ends even if nobody takes its events, and while it waits for changes.
func TestKillEndsWatcher(t *testing.T) {
	needRoot(t)
	t.Cleanup(func() { leaktest.VerifyNone(t) })
	for range 10 {
		w, err := Watch()
		if err != nil {
			t.Fatal(err)
		}
		w.Kill()
		if err := w.Wait(); err != nil {
			t.Error(err)
		}
	}
}
