package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A filesystem is mounted in another place, by the file or by a request, and keeps its data.
func TestMountElsewhere(t *testing.T) {
	m := newMachine(t)
	m.start()
	const entries = `storage:
- {name: data, directive: 'loop,16M', kind: filesystem, mount: MNT/data}
- {name: dir, directive: 'rootfs,1M', kind: filesystem, mount: MNT/dir}
`
	names := []string{"data", "dir"}
	m.writeSpec(entries)
	m.must("apply", "-f", m.spec, "--wait")
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(m.mount(name), "kept"), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when, prefix string) {
		t.Helper()
		for _, name := range names {
			path := m.mount(prefix + name)
			content, err := os.ReadFile(filepath.Join(path, "kept"))
			if err != nil || string(content) != name || m.status()[name].Location != path {
				t.Errorf("%s: %s has %q, %v; the status is %+v", when, path, content, err, m.status()[name])
			}
		}
	}

	// What is attached stays where it is.
	m.writeSpec(strings.ReplaceAll(entries, "MNT/", "MNT/new-"))
	if r := m.run("apply", "-f", m.spec); r.Code != 1 || !strings.Contains(r.Stderr, "stowage detach --wait data") {
		t.Errorf("apply: %+v", r)
	}
	want("after it was refused", "")

	m.must("detach", "--wait", "data", "dir")
	m.must("apply", "-f", m.spec, "--wait")
	want("by the file", "new-")
	m.must("detach", "--wait", "data", "dir")
	for _, name := range names {
		m.must("attach", "--wait", name, "--mount", m.mount("last-"+name))
	}
	want("by a request", "last-")
	m.stop()
	m.start()
	m.must("attach", "--wait", "data", "dir")
	want("after a start", "last-")

	if r := m.run("attach", "data", "--mount-options", "noatime"); r.Code != 1 || !strings.Contains(r.Stderr, "stowage detach --wait data") {
		t.Errorf("other options while it is attached: %+v", r)
	}
	m.must("detach", "--wait", "data", "dir")
	if r := m.run("attach", "data", "dir", "--mount-options", "subvol=/"); r.Code != 1 || !strings.Contains(r.Stderr, "allowed are") {
		t.Errorf("options of another filesystem: %+v", r)
	}
	m.must("attach", "--wait", "data", "dir", "--mount-options", "noatime")
	want("with other options", "last-")
	m.stop()
	m.start()
	m.must("attach", "--wait", "data", "dir")
	for _, mounted := range mountsBelow(m, m.mount("")) {
		if !strings.Contains(mounted.Options, "noatime") {
			t.Errorf("%s is mounted with %s", mounted.Mountpoint, mounted.Options)
		}
	}
	m.must("remove", "--wait", "data", "dir")
}
