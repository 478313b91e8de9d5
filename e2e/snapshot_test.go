package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A snapshot keeps what storage had, and new storage gets that, beside what became of the storage. Nothing
// depends on anything else: they go in any order, and kill -9 leaves nothing.
func TestSnapshots(t *testing.T) {
	m := newMachine(t)
	m.start()
	const before = `storage:
- {name: data, directive: 'loop,32M', kind: filesystem, mount: MNT/data}
- {name: raw, directive: 'loop,16M', kind: block}
`
	m.writeSpec(before)
	m.must("apply", "-f", m.spec, "--wait")
	write := func(dir, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(m.mount(dir), "file"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(dir, want string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(m.mount(dir), "file")); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v; want %q", dir, got, err, want)
		}
	}
	write("data", "monday")
	m.must("snapshot", "create", "monday", "data", "--wait")
	m.must("snapshot", "create", "monday", "data", "--wait")
	write("data", "tuesday")
	m.must("snapshot", "create", "tuesday", "data")
	m.kill()
	m.start()
	m.must("snapshot", "create", "tuesday", "data", "--wait")
	write("data", "wednesday")
	if list := m.must("snapshot", "list").Stdout; strings.Count(list, "ready") != 2 {
		t.Errorf("the snapshots are\n%s", list)
	}
	m.writeSpec(before + `- {name: restored, directive: 'loop,64M', kind: filesystem, mount: MNT/restored, from: monday}
- {name: second, directive: 'loop,32M', kind: filesystem, mount: MNT/second, from: tuesday}
`)
	m.must("apply", "-f", m.spec, "--wait")
	m.must("apply", "-f", m.spec, "--wait")
	read("restored", "monday")
	read("second", "tuesday")
	read("data", "wednesday")
	write("restored", "thursday")
	read("data", "wednesday")

	m.must("remove", "--wait", "data")
	m.must("snapshot", "delete", "monday", "tuesday", "--wait")
	read("restored", "thursday")
	m.kill()
	m.start()
	read("second", "tuesday")
	m.must("remove", "--wait", "restored", "second", "raw")
	if list := m.must("snapshot", "list", "-o", "json").Stdout; strings.Contains(list, "monday") {
		t.Errorf("the snapshots are\n%s", list)
	}
}
