package mounts

import (
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/watcher"
)

// needRoot skips a test that needs root, or fails it where root was promised.
func needRoot(t testing.TB) {
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

// changer is a watcher that says what has changed.
type changer interface {
	ChangedMounts() (paths []string, all bool)
}

// awaitChanges waits until the watcher has reported the wanted paths below a directory, and no
// others there.
func awaitChanges(t *testing.T, w watcher.NotifyWatcher, dir string, want ...string) {
	t.Helper()
	var got []string
	for {
		next(t, w)
		paths, all := w.(changer).ChangedMounts()
		if all {
			t.Fatal("any mount may have changed")
		}
		for _, path := range paths {
			if below, ok := strings.CutPrefix(path, dir+"/"); ok && !slices.Contains(got, below) {
				got = append(got, below)
			}
		}
		slices.Sort(got)
		if slices.Equal(got, want) {
			return
		}
		if slices.ContainsFunc(got, func(path string) bool { return !slices.Contains(want, path) }) {
			t.Fatalf("mounts at %q have changed, want %q", got, want)
		}
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestChangedMounts(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("test", dir, "tmpfs", 0, "size=1M"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	// A mount can be moved only out of a private one.
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	at := func(path string) string { return filepath.Join(dir, path) }
	const odd = "a b\tc\nd\\040"
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf("many/%03d", i))
	}
	for _, path := range append([]string{"a", "b", "parent/child", "other", odd, "old/inside"}, many...) {
		mkdir(t, at(path))
	}
	w := start(t, time.Millisecond)
	if _, all := w.(changer).ChangedMounts(); !all {
		t.Error("at the first event, not any mount may have changed")
	}
	tmpfs := func(path string) error { return unix.Mount("test", at(path), "tmpfs", 0, "size=64k") }
	bind := func(from, to string) error { return unix.Mount(at(from), at(to), "", unix.MS_BIND, "") }
	remount := func(path string, flags uintptr) error {
		return unix.Mount("", at(path), "", unix.MS_REMOUNT|flags, "")
	}
	unmount := func(path string) error { return unix.Unmount(at(path), 0) }
	each := func(paths []string, do func(string) error) error {
		for _, path := range paths {
			if err := do(path); err != nil {
				return err
			}
		}
		return nil
	}
	for _, change := range []struct {
		what string
		make func() error
		want []string
	}{
		{"mounting", func() error { return tmpfs("a") }, []string{"a"}},
		{"making the mount read-only", func() error { return remount("a", unix.MS_BIND|unix.MS_RDONLY) }, []string{"a"}},
		{"making it writable", func() error { return remount("a", unix.MS_BIND) }, []string{"a"}},
		{"a second mount", func() error { return bind("a", "b") }, []string{"b"}},
		{"making the filesystem of both read-only", func() error { return remount("a", unix.MS_RDONLY) }, []string{"a", "b"}},
		{"mounting over it", func() error { return tmpfs("b") }, []string{"b"}},
		{"unmounting what is over it", func() error { return unmount("b") }, []string{"b"}},
		{"unmounting", func() error { return unmount("b") }, []string{"b"}},
		{"moving", func() error { return unix.Mount(at("a"), at("b"), "", unix.MS_MOVE, "") }, []string{"a", "b"}},
		{"unmounting and mounting again", func() error { return errors.Join(unmount("b"), tmpfs("b")) }, []string{"b"}},
		{"mounting in a directory", func() error { return tmpfs("parent/child") }, []string{"parent/child"}},
		{"mounting over the directory", func() error { return bind("other", "parent") }, []string{"parent"}},
		{"unmounting that", func() error { return unmount("parent") }, []string{"parent"}},
		{"mounting at an odd path", func() error { return tmpfs(odd) }, []string{odd}},
		{"mounting many", func() error { return each(many, tmpfs) }, many},
		{"unmounting many", func() error { return each(many, unmount) }, many},
		{"mounting in a directory that is renamed", func() error { return tmpfs("old/inside") }, []string{"old/inside"}},
		// The kernel does not report that a mount's path has changed.
		{"renaming it, and another change", func() error {
			return errors.Join(os.Rename(at("old"), at("new")), tmpfs("a"))
		}, []string{"a", "new/inside", "old/inside"}},
	} {
		if err := change.make(); err != nil {
			t.Fatalf("%s: %v", change.what, err)
		}
		t.Log(change.what)
		awaitChanges(t, w, dir, change.want...)
	}
}

// After a failure to read the table, any mount may have changed, even in the next reading.
func TestFailureToReadTable(t *testing.T) {
	const one, two = "1 0 0:1 / /a rw - tmpfs a rw\n", "2 0 0:2 / /b rw - tmpfs b rw\n"
	w := &mounts{path: filepath.Join(t.TempDir(), "mountinfo"), seed: maphash.MakeSeed()}
	for i, step := range []struct {
		text  string // empty: the file does not exist
		paths []string
		all   bool
	}{
		{one, nil, true},
		{one + two, []string{"/b"}, false},
		{"", nil, true},
		{two, nil, true},
		{two, nil, false},
		{one, []string{"/a", "/b"}, false},
		{strings.Repeat("x", 2*maxLine), nil, true},
		{one, nil, true},
	} {
		err := os.Remove(w.path)
		if step.text != "" {
			err = os.WriteFile(w.path, []byte(step.text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if paths, all := w.ChangedMounts(); !slices.Equal(paths, step.paths) || all != step.all {
			t.Errorf("step %d: paths %q, all %v, want %q, %v", i, paths, all, step.paths, step.all)
		}
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
