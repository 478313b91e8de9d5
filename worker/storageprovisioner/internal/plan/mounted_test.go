package plan_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

func mountedAt(path string) func(*plan.Result) {
	return func(r *plan.Result) { r.MountPoint = path }
}

// mountsAt has the core attach filesystems at the paths, which it returns by their attachments.
func mountsAt(t *testing.T, paths ...string) (*script, map[plan.Key]string) {
	t.Helper()
	s := play(t, func(o *plan.Options) { o.Mounts = true })
	at := make(map[plan.Key]string)
	for i, path := range paths {
		f := filesystem(string(rune('0' + i)))
		a := on(machine, f)
		at[a] = path
		s.observe(wanted(f, recorded), wanted(a))
		s.does("attach " + a.String())
		s.ends(a, mountedAt(path))
		s.does("record " + a.String() + ": info")
		s.taken(a)
		s.does()
	}
	s.passes(time.Second)
	s.mountsChange()
	s.checks(at)
	return s, at
}

// mountsChange reports changes of mounts.
func (s *script) mountsChange(paths ...string) {
	s.core.ReadingMounts()
	s.core.CheckMounts(paths)
}

// checks returns the mount points of the filesystems that the core checks now. The checks of
// those in failing find a difference.
func (s *script) checks(at map[plan.Key]string, failing ...string) string {
	s.t.Helper()
	var checked []string
	for _, batch := range s.core.Batches() {
		if batch.Op != plan.Check {
			s.t.Fatalf("%s %v", batch.Op, batch.Items)
		}
		var results []plan.Result
		for _, item := range batch.Items {
			path := at[item.Key()]
			checked = append(checked, path)
			r := item.Ended(plan.Result{})
			if slices.Contains(failing, path) {
				r.Err = storage.Permanent(errors.New("it was unmounted"))
			}
			results = append(results, r)
		}
		s.core.Finished(batch.Source, results)
	}
	slices.Sort(checked)
	return strings.Join(checked, " ")
}

// A change of mounts concerns the filesystems mounted there, and those below, which a mount
// hides.
func TestMountChangeConcernsMountPointsThereAndBelow(t *testing.T) {
	s, at := mountsAt(t, "/srv/a", "/srv/a/b", "/srv/ab", "/mnt/a", "/mnt")
	for _, test := range []struct {
		changed []string
		want    string
	}{
		{nil, ""},
		{[]string{"/srv/a"}, "/srv/a /srv/a/b"},
		{[]string{"/srv/a/b"}, "/srv/a/b"},
		{[]string{"/srv/a/b/c"}, ""},
		{[]string{"/sr", "/srv/", "/tmp"}, ""},
		{[]string{"/srv"}, "/srv/a /srv/a/b /srv/ab"},
		{[]string{"/mnt"}, "/mnt /mnt/a"},
		{[]string{"/srv/ab", "/mnt/a"}, "/mnt/a /srv/ab"},
		{[]string{"/"}, "/mnt /mnt/a /srv/a /srv/a/b /srv/ab"},
	} {
		s.mountsChange(test.changed...)
		if got := s.checks(at); got != test.want {
			t.Errorf("mounts at %q change: checked are %q, want %q", test.changed, got, test.want)
		}
	}
	s.core.CheckAllMounts()
	if got, want := s.checks(at), "/mnt /mnt/a /srv/a /srv/a/b /srv/ab"; got != want {
		t.Errorf("any mount may have changed: checked are %q, want %q", got, want)
	}
}

// What a check has found may depend on mounts elsewhere: a filesystem that was unmounted may be
// mounted at another path. The provider need not say where a filesystem is.
func TestFailedAndUnknownMountsCheckedAfterAnyChange(t *testing.T) {
	s, at := mountsAt(t, "/srv/a", "/srv/b", "")
	for _, step := range []struct{ changed, want, failing string }{
		{"/srv/a", " /srv/a", "/srv/a"},
		{"/elsewhere", " /srv/a", ""},
		{"/elsewhere", "", ""},
	} {
		s.mountsChange(step.changed)
		if got := s.checks(at, step.failing); got != step.want {
			t.Errorf("a mount at %s changes: checked are %q, want %q", step.changed, got, step.want)
		}
	}
}

// A change that is reported while a filesystem is being attached or checked is followed by a
// check.
func TestMountChangeDuringAttachOrCheck(t *testing.T) {
	s, at := mountsAt(t, "/srv/a")
	f, a := filesystem("9"), on(machine, filesystem("9"))
	at[a] = "/srv/9"
	s.observe(wanted(f, recorded), wanted(a))
	s.does("attach " + a.String())
	s.passes(time.Second)
	s.mountsChange("/srv/9")
	if got := s.checks(at); got != "" {
		t.Errorf("checked during the attachment: %q", got)
	}
	s.ends(a, mountedAt("/srv/9"))
	s.does("record " + a.String() + ": info")
	s.taken(a)
	s.does("check " + a.String())

	s.mountsChange("/srv/9")
	s.does()
	s.ends(a)
	s.does("check " + a.String())
	s.ends(a)
	s.does()
}

// A filesystem may be unmounted before a reading of the mounts has shown it. So it is checked
// after the first reading that began when it was attached, and after one during which it was
// attached.
func TestNewMountIsCheckedOnce(t *testing.T) {
	s, at := mountsAt(t, "/srv/a")
	attach := func(id, path string) {
		f, a := filesystem(id), on(machine, filesystem(id))
		at[a] = path
		s.observe(wanted(f, recorded), wanted(a))
		s.does("attach " + a.String())
		s.ends(a, mountedAt(path))
		s.does("record " + a.String() + ": info")
		s.taken(a)
	}
	attach("8", "/srv/before")
	s.core.ReadingMounts()
	attach("9", "/srv/during")
	s.core.CheckMounts(nil)
	for i, want := range []string{"/srv/before /srv/during", "/srv/during", ""} {
		if got := s.checks(at); got != want {
			t.Errorf("after reading %d are checked %q, want %q", i, got, want)
		}
		s.mountsChange()
	}
}

// A filesystem that was detached and attached elsewhere is checked there.
func TestMountPointChangesWithAttachment(t *testing.T) {
	s, at := mountsAt(t, "/srv/a", "/srv/b")
	f, a := filesystem("0"), on(machine, filesystem("0"))
	s.observe(wanted(a, recorded, dying))
	s.does("detach " + a.String())
	s.mountsChange("/srv/a")
	s.ends(a)
	s.does("remove " + a.String())
	s.taken(a)
	s.mountsChange("/srv/a")
	s.does()
	s.observe(wanted(f, recorded), wanted(a))
	s.does("attach " + a.String())
	s.ends(a, mountedAt("/srv/c"))
	s.taken(a)
	s.passes(time.Second)
	s.core.Take()
	at[a] = "/srv/c"
	s.mountsChange()
	s.checks(at)
	for _, path := range []string{"/srv/a", "/srv/b", "/srv/c"} {
		want := path
		if path == "/srv/a" {
			want = ""
		}
		s.mountsChange(path)
		if got := s.checks(at); got != want {
			t.Errorf("a mount at %s changes: checked are %q, want %q", path, got, want)
		}
	}
}

// A user asks for a filesystem that was unmounted to be attached again, while it is being checked
// once more. The result of that check is out of date: it is not shown, and the filesystem is
// attached.
func TestRetryDuringCheck(t *testing.T) {
	s, at := mountsAt(t, "/srv/a")
	f, a := filesystem("0"), on(machine, filesystem("0"))
	s.mountsChange("/srv/a")
	s.checks(at, "/srv/a")
	s.mountsChange("/srv/a")
	s.does("check " + a.String())
	s.core.Retry(f)
	s.statuses = nil
	s.ends(a, failing(storage.Permanent(errors.New("it was unmounted"))))
	for range 2 {
		for _, key := range unread(s.core) {
			s.observe(wanted(key, recorded))
		}
		for _, batch := range s.core.Batches() {
			for _, item := range batch.Items {
				if batch.Op == plan.Attach && item.Key() == a {
					s.statuses = append(s.statuses, s.core.Take().Publish.Statuses...)
					for _, st := range s.statuses {
						t.Errorf("status of %s: %s: %s", st.Key(), st.Status, st.Message)
					}
					return
				}
			}
		}
	}
	t.Error("the filesystem is not attached again")
}
