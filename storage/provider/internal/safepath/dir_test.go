//go:build linux

package safepath

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
)

func makeDir(t *testing.T) *Dir {
	t.Helper()
	dir, err := Make(filepath.Join(t.TempDir(), "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dir.Close)
	return dir
}

func touch(t *testing.T, dir *Dir, name string) {
	t.Helper()
	f, err := dir.OpenFile(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func names(t *testing.T, dir *Dir) []string {
	t.Helper()
	found, err := dir.Names()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

func TestMakeIsPrivate(t *testing.T) {
	dir := makeDir(t)
	if err := os.Chmod(dir.Path(), 0o755); err != nil {
		t.Fatal(err)
	}
	again, err := Make(dir.Path())
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	for _, path := range []string{dir.Path(), filepath.Dir(dir.Path())} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}

// Promise S13.
func TestMakeRefusals(t *testing.T) {
	dir := t.TempDir()
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", "relative", dir + "/../x", dir + "/", link, file} {
		if made, err := Make(path); err == nil {
			made.Close()
			t.Errorf("made %q", path)
		}
	}
}

func TestEntries(t *testing.T) {
	dir := makeDir(t)
	touch(t, dir, "one")
	touch(t, dir, "two")
	if err := dir.Move("one", dir, "two"); !errors.Is(err, unix.EEXIST) {
		t.Errorf("moving over a file: %v", err)
	}
	if err := dir.Move("one", dir, "three"); err != nil {
		t.Error(err)
	}
	if err := dir.Rename("three", "two"); err != nil {
		t.Error(err)
	}
	if err := dir.Mkdir("sub"); err != nil {
		t.Error(err)
	}
	if got, want := names(t, dir), []string{"sub", "two"}; !slices.Equal(got, want) {
		t.Errorf("entries %v, want %v", got, want)
	}
	sub, err := dir.OpenDir("sub")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if err := dir.Move("two", sub, "two"); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := sub.Unlink("two"); err != nil {
			t.Error(err)
		}
	}
	if has, err := sub.Has("two"); has || err != nil {
		t.Errorf("has %v, %v", has, err)
	}
	if has, err := dir.Has("sub"); !has || err != nil {
		t.Errorf("has %v, %v", has, err)
	}
}

// Promise S13.
func TestLinksAreNotFollowed(t *testing.T) {
	dir := makeDir(t)
	if err := os.Symlink("/etc", dir.Entry("link")); err != nil {
		t.Fatal(err)
	}
	if _, err := dir.OpenFile("link", unix.O_RDONLY, 0); !errors.Is(err, unix.ELOOP) {
		t.Errorf("opening: %v", err)
	}
	if _, err := dir.OpenDir("link"); err == nil {
		t.Error("opened as a directory")
	}
	if st, err := dir.Lstat("link"); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		t.Errorf("mode %o, %v", st.Mode, err)
	}
}

func TestOpenReal(t *testing.T) {
	dir := makeDir(t)
	touch(t, dir, "file")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Dir(dir.Path()), link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		dir.Path():                          nil,
		"relative":                          errors.NotValid,
		dir.Entry("file"):                   errors.NotValid,
		link:                                errors.NotValid,
		filepath.Join(link, "b"):            errors.NotValid,
		dir.Entry("missing"):                unix.ENOENT,
		filepath.Join(dir.Path(), "x", "y"): unix.ENOENT,
	} {
		got, err := OpenReal(path)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
		if err == nil {
			got.Close()
		}
	}
}

func FuzzCheck(f *testing.F) {
	for _, name := range []string{"", ".", "..", "a/b", "/a", "a\x00b", "volume-0-1"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if check(name) == nil && filepath.Dir(filepath.Join("/dir", name)) != "/dir" {
			t.Errorf("%q leads elsewhere", name)
		}
	})
}

// A directory that was synced is not synced again.
func TestSettleSyncsOnce(t *testing.T) {
	top, err := OpenReal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	if err := os.Mkdir(top.Entry("old"), 0o700); err != nil {
		t.Fatal(err)
	}
	settled.dirs = make(map[dirID]*dirState) // it may have the inode of a removed directory
	for _, err := range []error{top.Settle(), settleParent(top.Path())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name  string
		syncs []string // of directories, at the first use
	}{
		{"new", []string{top.Path()}}, // its parent
		{"old", []string{top.Entry("old")}},
	} {
		for _, want := range [][]string{test.syncs, nil} {
			var got []string
			err := syscalltest.Intercept(t, []int{unix.SYS_FSYNC}, func(c syscalltest.Call) syscalltest.Result {
				got = append(got, c.Path())
				return syscalltest.Pass
			}, func() error {
				dir, err := Make(top.Entry(test.name))
				if err != nil {
					return err
				}
				defer dir.Close()
				return dir.Settle()
			})
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: synced %q, want %q: %v", test.name, got, want, err)
			}
		}
	}
}

// Callers that ask for a sync while another one runs share the next one.
func TestConcurrentSyncsAreShared(t *testing.T) {
	failure := errors.New("input/output error")
	for name, test := range map[string]struct {
		first, second error // of the two syncs
		want          error // of the callers that share the second
	}{
		"success":             {nil, nil, nil},
		"second sync fails":   {nil, failure, failure},
		"failure during wait": {failure, nil, failure},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const sharing = 3
				syncs, finish := make(chan bool, sharing), make(chan error)
				r := registry{dirs: make(map[dirID]*dirState), syncFile: func(*os.File) error {
					syncs <- true
					return <-finish
				}}
				results := make(chan error, sharing)
				ask := func() { go func() { results <- r.sync(dirID{}, nil) }() }
				ask()
				synctest.Wait()
				for range sharing {
					ask()
				}
				synctest.Wait()
				if len(syncs) != 1 {
					t.Fatalf("%d syncs run at once", len(syncs))
				}
				finish <- test.first
				if err := <-results; !errors.Is(err, test.first) {
					t.Errorf("the first caller got %v, want %v", err, test.first)
				}
				synctest.Wait()
				if len(syncs) != 2 {
					t.Fatalf("%d syncs have begun, want 2", len(syncs))
				}
				finish <- test.second
				for range sharing {
					if err := <-results; !errors.Is(err, test.want) {
						t.Errorf("a caller that shares a sync got %v, want %v", err, test.want)
					}
				}
				if len(syncs) != 2 || r.has(dirID{}) != (test.want == nil) {
					t.Errorf("%d syncs, settled %v", len(syncs), r.has(dirID{}))
				}
				if test.want == nil {
					return
				}
				// A failure affects only the callers that were there.
				ask()
				finish <- nil
				if err := <-results; err != nil || !r.has(dirID{}) {
					t.Errorf("a later caller got %v, settled %v", err, r.has(dirID{}))
				}
			})
		})
	}
}
