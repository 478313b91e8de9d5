package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Storage is made, saved and restored without a file, and a command that is repeated changes nothing.
func TestStorageWithoutFile(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.must("create", "data", "--size", "16M", "--mount", m.mount("data"), "--wait")
	if err := os.WriteFile(filepath.Join(m.mount("data"), "file"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, want string }{
		{"create data --size 32M", `stowage: there is storage "data" already: "stowage describe data" shows it`},
		{"create more --size 16M --mount srv", `stowage: storage more: mount: "srv" is not absolute: begin it with /`},
		{"create more --size 16M --pool none", `stowage: storage more: directive: pool "none" is not known`},
		{"create More --size 16M", `stowage: storage[0]: name: "More" is not a name`},
	} {
		if r := m.run(strings.Fields(test.args)...); r.Code != 1 || !strings.HasPrefix(r.Stderr, test.want) {
			t.Errorf("%s: want %q:\n%s", test.args, test.want, r.All())
		}
	}
	m.must("snapshot", "create", "monday", "data", "--wait")
	m.must("create", "restored", "--size", "16M", "--mount", m.mount("restored"), "--from", "monday", "--wait")
	if got, err := os.ReadFile(filepath.Join(m.mount("restored"), "file")); err != nil || string(got) != "precious" {
		t.Errorf("restored %q, %v", got, err)
	}
	if text := m.must("describe", "restored").Stdout; !strings.Contains(text, "Made from:   snapshot monday\n") {
		t.Errorf("described as\n%s", text)
	}
	m.must("create", "raw", "--size", "16M", "--count", "2", "--detached", "--wait")
	m.must("remove", "data", "restored", "raw", "--wait")
	m.must("snapshot", "delete", "monday", "--wait")
	m.stop()
}
