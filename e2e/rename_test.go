package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Storage that is in use gets another name, on disk, too, and stays as it is.
func TestRename(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(`storage:
- {name: data, directive: 'loop,16M', kind: filesystem, mount: MNT/data}
- {name: dir, directive: 'rootfs,1M', kind: filesystem, mount: MNT/dir}
`)
	m.start("--spec", m.spec)
	m.must("apply", "-f", m.spec, "--wait")
	for _, name := range []string{"data", "dir"} {
		if err := os.WriteFile(filepath.Join(m.mount(name), "kept"), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		r := m.must("rename", name, "old-"+name)
		if !strings.Contains(r.Stdout, "old-"+name) || !strings.Contains(r.Stderr, "change the name there, or storage "+name+" is made again, empty") {
			t.Error(r.All())
		}
	}
	if r := m.run("rename", "old-data", "old-dir"); r.Code != 1 || !strings.Contains(r.Stderr, `there is storage "old-dir": choose another name`) {
		t.Error(r.All())
	}
	records, err := filepath.Glob(filepath.Join(m.data, "storage", "*", "records", "*"))
	if err != nil || len(records) < 2 {
		t.Fatalf("records %q, %v", records, err)
	}
	for _, path := range records {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), `"stowage-storage-name":"old-`) {
			t.Errorf("%s: %v, %s", path, err, text)
		}
	}
	if r := m.must("events", "old-data"); !strings.Contains(r.Stdout, "renamed from data") || !strings.Contains(r.Stdout, "added") {
		t.Error(r.All())
	}
	if r := m.must("events", "data"); !strings.Contains(r.Stdout, "renamed to old-data") {
		t.Error(r.All())
	}
	m.kill()
	m.start()
	m.must("attach", "--wait", "old-data", "old-dir")
	for _, name := range []string{"data", "dir"} {
		content, err := os.ReadFile(filepath.Join(m.mount(name), "kept"))
		if err != nil || string(content) != name {
			t.Errorf("%s: %q, %v", name, content, err)
		}
	}
	m.must("remove", "--wait", "old-data", "old-dir")
}
