package datadir_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
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

// A state file that is missing or empty where one was is never replaced by a new
// state.
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

// A directory with other things in it is not taken over.
func TestPrepareRefusesAForeignDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "letters.txt"), "x")
	err := datadir.Dir(dir).Prepare()
	if err == nil || !strings.Contains(err.Error(), "holds other things") {
		t.Errorf("got error: %v", err)
	}
	write(t, filepath.Join(dir, "state.db"), "x")
	if err := datadir.Dir(dir).Prepare(); err != nil {
		t.Errorf("with a state file: %v", err)
	}
}
