package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestApplyAgainChangesNothing(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(fourKinds)
	m.start()
	first := m.apply()
	for _, name := range []string{"raw", "data", "scratch", "logs"} {
		if !strings.Contains(first.Stdout, "+ "+name) {
			t.Errorf("the first apply does not list %s:\n%s", name, first.Stdout)
		}
	}
	before, loops := m.status(), loopsBelow(t, m.dir)

	again := m.apply()
	if !strings.Contains(again.Stdout, "nothing to change") {
		t.Errorf("the second apply does not say that nothing changes:\n%s", again.Stdout)
	}
	if after := m.status(); !reflect.DeepEqual(after, before) {
		t.Errorf("status\n%+v\nwas\n%+v", after, before)
	}
	if after := loopsBelow(t, m.dir); !reflect.DeepEqual(after, loops) {
		t.Errorf("loop devices %+v, were %+v", after, loops)
	}

	m.must("remove", "raw", "data", "scratch", "logs", "--wait")
	m.stop()
}

func TestApplyAddsToExistingStorage(t *testing.T) {
	m := newMachine(t)
	one := `
storage:
  - name: one
    directive: tmpfs,1M
    kind: filesystem
    mount: MNT/one
`
	m.writeSpec(one)
	m.start()
	m.apply()
	two := one + `
  - name: two
    directive: quick,1M,2
    kind: filesystem
    mount: MNT/two
pools:
  - name: quick
    provider: tmpfs
`
	m.writeSpec(two)
	dry := m.must("apply", "-f", m.spec, "--dry-run")
	for _, line := range []string{"+ two", "+ pool quick"} {
		if !strings.Contains(dry.Stdout, line) {
			t.Errorf("--dry-run does not show %q:\n%s", line, dry.Stdout)
		}
	}
	if status := m.status(); len(status) != 1 {
		t.Errorf("--dry-run changed something: %+v", status)
	}

	m.apply()
	status := m.status()
	if len(status) != 3 || status["two/1"].Status != "attached" || status["two/1"].Location != m.mount("two/1") || status["two/1"].Pool != "quick" {
		t.Errorf("status %+v", status)
	}
	if pools := m.must("pools").Stdout; !strings.Contains(pools, "quick") {
		t.Errorf("pools:\n%s", pools)
	}

	// Storage that is not in the file stays, and --dry-run lists it.
	m.writeSpec(strings.ReplaceAll(one, "one", "three"))
	if dry := m.must("apply", "-f", m.spec, "--dry-run"); !strings.Contains(dry.Stdout, "! one") {
		t.Errorf("--dry-run does not list storage that is not in the file:\n%s", dry.Stdout)
	}
	m.apply()
	if status := m.status(); len(status) != 4 {
		t.Errorf("status %+v", status)
	}

	m.must("remove", "one", "two", "three", "--wait")
	m.wantNoStorage()
	m.stop()
}

func TestSpecFromStandardInput(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage: [{name: a, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/a}]")
	m.start()
	file, err := os.Open(m.spec)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	apply := exec.Command(stowage, "apply", "-f", "-", "--wait", "--data-dir", m.data)
	apply.Stdin = file
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m.must("remove", "a", "--wait")
	m.stop()
}

func TestInvalidSpecChangesNothing(t *testing.T) {
	m := newMachine(t)
	m.start()
	const good = `storage:
  - name: good
    directive: tmpfs,1M
    kind: filesystem
    mount: MNT/good
`
	full := m.mount("full")
	if err := os.MkdirAll(full, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		about, spec string
		line        string // of the error
		field       string
	}{
		{"unknown field", good + "    colour: blue\n", "6", "colour"},
		{"unknown top field", good + "disks: []\n", "6", "disks"},
		{"not YAML", good + "  - }{\n", "", ""},
		{"bad directive", good + "  - name: bad\n    directive: tmpfs,1Q\n    kind: block\n", "7", "directive"},
		{"unknown pool", good + "  - name: bad\n    directive: nowhere,1M\n    kind: block\n", "7", "directive"},
		{"bad name", good + "  - name: Bad\n    directive: loop,1M\n    kind: block\n", "6", "name"},
		{"duplicate name", good + "  - name: good\n    directive: loop,1M\n    kind: block\n", "6", "name"},
		{"name with ..", good + "  - name: ../../etc\n    directive: loop,1M\n    kind: block\n", "6", "name"},
		{"bad kind", good + "  - name: bad\n    directive: loop,1M\n    kind: tape\n", "8", "kind"},
		{"kind that the pool does not support", good + "  - name: bad\n    directive: tmpfs,1M\n    kind: block\n", "", "bad"},
		{"relative mount point", good + "  - name: bad\n    directive: tmpfs,1M\n    kind: filesystem\n    mount: srv\n", "9", "mount"},
		{"duplicate mount point", good + "  - name: bad\n    directive: tmpfs,1M\n    kind: filesystem\n    mount: MNT/good\n", "9", "mount"},
		{"mount point under another", good + "  - name: bad\n    directive: tmpfs,1M\n    kind: filesystem\n    mount: MNT/good/x\n", "9", "mount"},
		{"mount point with ..", good + "  - name: bad\n    directive: tmpfs,1M\n    kind: filesystem\n    mount: MNT/x/../y\n", "9", "mount"},
		{"mount point of the system", good + "  - name: bad\n    directive: tmpfs,1M\n    kind: filesystem\n    mount: /proc/x\n", "9", "mount"},
		{"mount for a block device", good + "  - name: bad\n    directive: loop,1M\n    kind: block\n    mount: MNT/x\n", "9", "mount"},
		{"no mount point", good + "  - name: bad\n    directive: loop,1M\n    kind: filesystem\n", "", "mount"},
		{"unknown filesystem", good + "  - name: bad\n    directive: loop,1M\n    kind: filesystem\n    mount: MNT/x\n    filesystem: fat\n", "10", "filesystem"},
		{"unknown option of mkfs", good + "  - name: bad\n    directive: loop,1M\n    kind: filesystem\n    mount: MNT/x\n    mkfs-options: quick\n", "10", "mkfs-options"},
		{"unsafe option of mount", good + "  - name: bad\n    directive: loop,1M\n    kind: filesystem\n    mount: MNT/x\n    mount-options: noatime,nobarrier\n", "10", "mount-options"},
		{"options of a block device", good + "  - name: bad\n    directive: loop,1M\n    kind: block\n    mkfs-options: inode-size=512\n", "9", "mkfs-options"},
		{"size that does not fit", good + "  - name: bad\n    directive: loop,1E\n    kind: block\n", "7", "directive"},
		{"pool of an unknown provider", good + "pools:\n  - name: p\n    provider: cloud\n", "8", "provider"},
	} {
		t.Run(test.about, func(t *testing.T) {
			m.writeSpec(test.spec)
			r := m.run("apply", "-f", m.spec, "--wait")
			if r.Code != 1 && r.Code != 2 {
				t.Errorf("exit status %d, want 1 or 2", r.Code)
			}
			if n := strings.Count(r.Stderr, m.spec); n != 1 || !strings.Contains(r.Stderr, m.spec+":"+test.line) && test.line != "" {
				t.Errorf("want one error that names %s:%s, got\n%s", filepath.Base(m.spec), test.line, r.Stderr)
			}
			if !strings.Contains(r.Stderr, test.field) {
				t.Errorf("want an error that names %s, got\n%s", test.field, r.Stderr)
			}
			if status := m.status(); len(status) != 0 {
				t.Errorf("something was applied: %+v", status)
			}
		})
	}
	m.wantNoStorage()
	m.stop()
}

func TestApplyRefusesChangedMountPoint(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage: [{name: a, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/a}]")
	m.start()
	m.apply()
	m.writeSpec("storage:\n- {name: b, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/b}\n- {name: a, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/c}\n")
	r := m.run("apply", "-f", m.spec)
	if r.Code != 1 || !strings.Contains(r.Stderr, m.spec+":3: ") || !strings.Contains(r.Stderr, "mount") {
		t.Error(r.All())
	}
	if status := m.status(); len(status) != 1 {
		t.Errorf("something was applied: %+v", status)
	}
	m.must("remove", "a", "--wait")
	m.stop()
}

// With --prune, storage with the labels that the file lacks is removed, and no other.
func TestApplyPrunes(t *testing.T) {
	m := newMachine(t)
	entry := func(name, rest string) string {
		return fmt.Sprintf("- {name: %s, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/%s%s}\n", name, name, rest)
	}
	const web = ", labels: {app: web, tier: fast}"
	m.writeSpec("storage:\n" + entry("other", "") + entry("data", web) + entry("logs", web) + "- {name: many, directive: 'tmpfs,1M,2', kind: filesystem, mount: MNT/many" + web + "}\n")
	m.start()
	m.apply()

	m.writeSpec("storage:\n" + entry("data", web) + entry("new", ""))
	if r := m.run("apply", "-f", m.spec, "--prune", "app=web"); r.Code != 1 || !strings.Contains(r.Stderr, ":3: storage new: labels: a label of --prune app=web is missing: add it") {
		t.Errorf("a file with storage that has no label:\n%s", r.All())
	}
	m.writeSpec("storage:\n" + entry("data", web) + entry("new", web))
	dry := m.run("apply", "-f", m.spec, "--prune", "app=web", "--dry-run", "--exit-code")
	for _, line := range []string{"- logs", "- many/0", "- many/1", "! other", "+ new"} {
		if !strings.Contains(dry.Stdout, line) {
			t.Errorf("--dry-run does not show %q:\n%s", line, dry.Stdout)
		}
	}
	if strings.Contains(dry.Stdout, "! many") {
		t.Errorf("--dry-run says that what is removed is left alone:\n%s", dry.Stdout)
	}
	if status := m.status(); dry.Code != 2 || len(status) != 5 {
		t.Errorf("exit status %d, and the storage is %+v", dry.Code, status)
	}
	r := m.must("apply", "-f", m.spec, "--prune", "app=web", "--wait")
	if status := m.status(); len(status) != 3 || status["data"].Status != "attached" || status["other"].Status != "attached" || status["new"].Status != "attached" {
		t.Errorf("%s%+v", r.Stdout, status)
	}
	if r := m.must("apply", "-f", m.spec, "--prune", "app=web", "--wait"); !strings.Contains(r.Stdout, "nothing to change") {
		t.Errorf("again:\n%s", r.Stdout)
	}
	for _, wrong := range [][]string{{"--prune", "app"}, {"--yes"}, {"--prune", ""}} {
		if r := m.run(append([]string{"apply", "-f", m.spec}, wrong...)...); r.Code != 2 {
			t.Errorf("%q:\n%s", wrong, r.All())
		}
	}
	m.must("remove", "data", "new", "other", "--wait")
	m.wantNoStorage()
	m.stop()
}
