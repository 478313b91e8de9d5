package markfile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/markfile"
)

func mark(n uint64) state.Mark {
	return state.Mark{
		UUID:       "8d6e7e06-2b7a-4a1c-9b9d-6f5d0f3c9a11",
		Generation: 3,
		Before:     state.Numbers{Volume: n, Filesystem: 10 * n},
		After:      state.Numbers{Volume: n + 1, Filesystem: 10*n + 5},
	}
}

// expect requires that the file has one of the marks.
func expect(t *testing.T, path string, wanted ...state.Mark) {
	t.Helper()
	got, ok, err := markfile.New(path).Read()
	if err != nil || !ok {
		t.Fatalf("reading a mark: %t, %v", ok, err)
	}
	for _, want := range wanted {
		if got == want {
			return
		}
	}
	t.Errorf("read %+v, want one of %+v", got, wanted)
}

func TestWriteThenRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mark")
	if _, ok, err := markfile.New(path).Read(); ok || err != nil {
		t.Errorf("a mark that was never written: %t, %v", ok, err)
	}
	file := markfile.New(path)
	for n := range uint64(5) {
		if err := file.Write(mark(n)); err != nil {
			t.Fatal(err)
		}
		expect(t, path, mark(n))
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 || info.Size() != 8192 {
		t.Errorf("the file is %v (%v)", info, err)
	}
}

// write makes a file with mark 0 and then mark 1.
func write(t *testing.T) (path string, content []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "mark")
	file := markfile.New(path)
	for n := range uint64(2) {
		if err := file.Write(mark(n)); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, content
}

// A crash may leave any part of a write, over the previous contents.
func TestTornWriteLeavesMark(t *testing.T) {
	path, before := write(t)
	if err := markfile.New(path).Write(mark(2)); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := range before {
		if before[at] == after[at] && at%97 != 0 {
			continue
		}
		for _, torn := range [][]byte{
			append(bytes.Clone(after[:at]), before[at:]...),
			append(bytes.Clone(before[:at]), after[at:]...),
		} {
			if err := os.WriteFile(path, torn, 0o600); err != nil {
				t.Fatal(err)
			}
			expect(t, path, mark(1), mark(2))
			// The next write works after either.
			if err := markfile.New(path).Write(mark(3)); err != nil {
				t.Fatal(err)
			}
			expect(t, path, mark(3))
		}
	}
}

func TestDamagedFile(t *testing.T) {
	path, content := write(t)
	for name, damaged := range map[string][]byte{
		"empty":     nil,
		"truncated": content[:5000],
		"zeros":     make([]byte, len(content)),
		"changed":   bytes.ReplaceAll(content, []byte(`"generation":3`), []byte(`"generation":2`)),
		"no lines":  bytes.ReplaceAll(content, []byte("\n"), []byte(" ")),
	} {
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		_, ok, err := markfile.New(path).Read()
		if ok || !errors.Is(err, markfile.ErrDamaged) || !strings.Contains(err.Error(), path) ||
			!strings.Contains(err.Error(), "stowage recover") {
			t.Errorf("%s: read %t, %v", name, ok, err)
		}
		if err := markfile.New(path).Write(mark(7)); !errors.Is(err, markfile.ErrDamaged) {
			t.Errorf("%s: writing: %v", name, err)
		}
		if left, err := os.ReadFile(path); err != nil || !bytes.Equal(left, damaged) {
			t.Errorf("%s: the file was changed (%v)", name, err)
		}
		if err := markfile.New(path).Replace(mark(8)); err != nil {
			t.Errorf("%s: replacing: %v", name, err)
		}
		expect(t, path, mark(8))
	}
}

func TestLinkIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	path, target := filepath.Join(dir, "mark"), filepath.Join(dir, "target")
	if err := markfile.New(target).Write(mark(0)); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	file := markfile.New(path)
	if _, ok, err := file.Read(); ok || err == nil {
		t.Errorf("read through a link: %t, %v", ok, err)
	}
	if err := file.Write(mark(1)); err == nil {
		t.Error("wrote through a link")
	}
	if after, err := os.ReadFile(target); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the target of the link was changed (%v)", err)
	}
}

func TestTooLargeMarkIsNotValid(t *testing.T) {
	path, _ := write(t)
	large := mark(2)
	large.UUID = strings.Repeat("u", 4096)
	if err := markfile.New(path).Write(large); !errors.Is(err, errors.NotValid) {
		t.Errorf("a large mark: %v", err)
	}
	expect(t, path, mark(1))
}

func BenchmarkWrite(b *testing.B) {
	file := markfile.New(filepath.Join(b.TempDir(), "mark"))
	for n := uint64(0); b.Loop(); n++ {
		if err := file.Write(mark(n)); err != nil {
			b.Fatal(err)
		}
	}
}
