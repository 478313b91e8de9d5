package owner_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stowage-io/stowage/internal/owner"
)

// place creates the files of a test, in a directory that only we can write to.
type place struct {
	*testing.T
	dir string
}

func newPlace(t *testing.T) place {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := place{t, filepath.Join(dir, "ours")}
	p.do(os.Mkdir(p.dir, 0o755))
	// Independent of the umask.
	p.do(os.Chmod(dir, 0o755))
	p.do(os.Chmod(filepath.Dir(dir), 0o755))
	return p
}

func (p place) do(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p place) path(name string) string { return filepath.Join(p.dir, name) }

func (p place) mkdir(name string, mode fs.FileMode) {
	p.Helper()
	p.do(os.Mkdir(p.path(name), 0o755))
	p.do(os.Chmod(p.path(name), mode))
}

func (p place) file(name string, mode fs.FileMode) {
	p.Helper()
	p.do(os.WriteFile(p.path(name), nil, 0o600))
	p.do(os.Chmod(p.path(name), mode))
}

func (p place) link(to, name string) {
	p.Helper()
	p.do(os.Symlink(to, p.path(name)))
}

// check requires that Check names at as the first path that others can change, or none if at is
// empty.
func (p place) check(name, at string) {
	p.Helper()
	got, err := owner.Check(p.path(name))
	if at != "" {
		at = p.path(at)
	}
	if got != at || err != nil {
		p.Errorf("%s: got %q, %v, want %q", name, got, err, at)
	}
}

func TestCheckOwnPaths(t *testing.T) {
	p := newPlace(t)
	p.mkdir("dir", 0o755)
	p.file("dir/file", 0o644)
	p.link("dir", "relative")
	p.link(p.path("relative"), "absolute")
	p.link("..//ours/./dir/../absolute", "roundabout")
	p.mkdir("sticky", fs.ModeSticky|0o777)
	p.mkdir("sticky/dir", 0o700)
	for _, name := range []string{"", "dir", "dir/file", "relative/file", "absolute/file", "roundabout/file", "sticky/dir"} {
		p.check(name, "")
	}
}

// Promise S6.
func TestCheckWritableByOthers(t *testing.T) {
	p := newPlace(t)
	p.mkdir("group", 0o775)
	p.mkdir("group/dir", 0o700)
	p.mkdir("world", 0o757)
	p.file("file", 0o620)
	p.mkdir("sticky", fs.ModeSticky|0o777)
	p.link("group/dir", "link")
	p.link("sticky", "to-sticky")
	p.mkdir("sticky/dir", 0o700)
	p.link("..", "sticky/dir/up")
	for name, at := range map[string]string{
		"group": "group", "group/dir": "group", "world": "world", "file": "file", "link": "group",
		// Others can create anything in it.
		"sticky": "sticky", "to-sticky": "sticky", "sticky/dir/up": "sticky",
	} {
		p.check(name, at)
	}
}

// Promise S6.
func TestCheckOwnedByOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
			t.Fatal("giving files away needs root, which STOWAGE_REQUIRE_ROOT=1 promises")
		}
		t.Skip("giving files away needs root")
	}
	const user = 1000
	p := newPlace(t)
	p.mkdir("target", 0o755)
	p.mkdir("sticky", fs.ModeSticky|0o777)
	p.link("../target", "sticky/link")
	p.mkdir("sticky/dir", 0o755)
	p.mkdir("sticky/dir/ours", 0o755)
	p.file("file", 0o600)
	for _, name := range []string{"sticky/link", "sticky/dir", "file"} {
		p.do(os.Lchown(p.path(name), user, user))
	}
	p.check("file", "file")
	p.check("sticky/link", "sticky/link")
	p.check("sticky/dir/ours", "sticky/dir")
	p.check("target", "")
}

func TestCheckErrors(t *testing.T) {
	p := newPlace(t)
	p.mkdir("open", 0o777)
	p.link("loop", "loop")
	if _, err := owner.Check(p.path("none/at/all")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	// That others can create it takes precedence over its absence.
	p.check("open/none", "open")
	if _, err := owner.Check(p.path("loop")); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("got %v", err)
	}
	if _, err := owner.Check("relative"); err == nil {
		t.Error("a relative path is accepted")
	}
}
