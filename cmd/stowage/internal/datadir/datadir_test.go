package datadir_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A state file that was lost or emptied is never replaced by a new state.
func TestCheckState(t *testing.T) {
	const record = "storage/loop/records/volume-0-0.json"
	for _, test := range []struct {
		about string
		files map[string]string
		want  string // in the error; empty: no error
	}{
		{"new directory", nil, ""},
		{"state", map[string]string{"state.db": "x", "state.mark": "x", record: "{}"}, ""},
		{"missing beside a mark", map[string]string{"state.mark": "x"}, "state.db is missing"},
		{"missing beside a record", map[string]string{record: "{}"}, "state.db is missing"},
		{"missing beside a driver's record", map[string]string{"storage/a.b/c/volumes/records/volume-0-0.json": "{}"}, "state.db is missing"},
		{"empty beside a mark", map[string]string{"state.db": "", "state.mark": "x"}, "state.db is empty"},
		{"empty beside a record", map[string]string{"state.db": "", record: "{}"}, "state.db is empty"},
		{"missing, nothing made", map[string]string{"storage/loop/volumes/README": "x"}, ""},
	} {
		t.Run(test.about, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "a[b]*")
			for name, content := range test.files {
				write(t, filepath.Join(dir, name), content)
			}
			err := datadir.Dir(dir).CheckState()
			if test.want == "" {
				if err != nil {
					t.Errorf("got error: %v", err)
				}
				return
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range []string{test.want, "stowage restore", "stowage recover"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
}

// OpenStore creates a new store over the remains of an interrupted first start, but over no
// other file.
func TestOpenStore(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "state.db")
	store, err := boltkv.Open(whole)
	if err != nil {
		t.Fatal(err)
	}
	store.Close()
	data, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	half := string(data[:2*os.Getpagesize()])
	zeros := strings.Repeat("\x00", len(half))
	for _, test := range []struct {
		about string
		files map[string]string
		made  bool
	}{
		{"no file", nil, true},
		{"empty", map[string]string{"state.db": ""}, true},
		{"zeros", map[string]string{"state.db": zeros}, true},
		{"zeros beside a mark", map[string]string{"state.db": zeros, "state.mark": "x"}, false},
		{"the first temporary file", map[string]string{"state.db.new": "x"}, true},
		{"truncated after use", map[string]string{"state.db": half}, false},
		{"of another program", map[string]string{"state.db": "SQLite format 3\x00"}, false},
	} {
		t.Run(test.about, func(t *testing.T) {
			dir := datadir.Dir(t.TempDir())
			for name, content := range test.files {
				write(t, filepath.Join(string(dir), name), content)
			}
			if err := dir.Prepare(); err != nil {
				t.Error(err)
			}
			store, err := dir.OpenStore()
			if err == nil {
				store.Close()
			}
			if (err == nil) != test.made {
				t.Errorf("opened: %t, want %t; error %v", err == nil, test.made, err)
			}
			if after, err := os.ReadFile(dir.StateFile()); !test.made && (err != nil || string(after) != test.files["state.db"]) {
				t.Errorf("the file has changed, %v", err)
			}
		})
	}
}

// An error of a store that cannot be read does not call the state damaged.
func TestOpenStateOnClosedStore(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	store, err := dir.OpenStore()
	if err != nil {
		t.Fatal(err)
	}
	store.Close()
	_, err = dir.OpenState(store, state.Config{})
	if !errors.Is(err, kv.ErrClosed) || strings.Contains(err.Error(), "damaged") {
		t.Errorf("got error: %v", err)
	}
}

// A directory that contains other files is not used.
func TestPrepareRefusesForeignDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "letters.txt"), "x")
	err := datadir.Dir(dir).Prepare()
	if err == nil || !strings.Contains(err.Error(), "contains files that are not an agent's") {
		t.Errorf("got error: %v", err)
	}
	write(t, filepath.Join(dir, "state.db"), "x")
	if err := datadir.Dir(dir).Prepare(); err != nil {
		t.Errorf("with a state file: %v", err)
	}
}
