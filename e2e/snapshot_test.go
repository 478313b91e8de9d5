package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/api/user"
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
	m.must("remove", "--wait", "--ignore-missing", "restored", "raw")
	m.must("snapshot", "delete", "--wait", "--ignore-missing", "monday")
	if list := m.must("snapshot", "list", "-o", "json").Stdout; strings.Contains(list, "monday") {
		t.Errorf("the snapshots are\n%s", list)
	}
}

// snapshots returns the snapshots that a server, or an agent with a state of its own, lists, by name.
func (m *machine) snapshots() map[string]user.Snapshot {
	m.Helper()
	var list []user.Snapshot
	if err := json.Unmarshal([]byte(m.must("snapshot", "list", "-o", "json").Stdout), &list); err != nil {
		m.Fatal(err)
	}
	found := make(map[string]user.Snapshot)
	for _, s := range list {
		found[s.Name] = s
	}
	return found
}

// snapshotRecords returns the records of snapshots, finished or not, that the agent of a machine has on disk.
func (s *site) snapshotRecords(machine string) []string {
	s.Helper()
	found, err := filepath.Glob(filepath.Join(s.dataOf(machine), "storage/loop/snapshots/records/*.json"))
	if err != nil {
		s.Fatal(err)
	}
	return found
}

// Snapshots of storage on a machine are made and deleted on it, whatever ends in the middle, or when it is
// back. Storage from them is made there, and the machine is not removed while it has them.
func TestSnapshotsOnServers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	startServer := func() *process { t.Helper(); return s.startServer("--unreachable-after", "1s") }
	server := startServer()
	web, db := s.startAgent("web", s.token()), s.startAgent("db", s.token())
	const data = `storage:
- {name: data, directive: "loop,64M", kind: filesystem, mount: MNT/data, machine: web}
`
	refused := func(text string, args ...string) {
		t.Helper()
		if r := s.run(args...); r.Code != 1 || !strings.Contains(r.Stderr, text) {
			t.Errorf("%q: want %q:\n%s", args, text, r.All())
		}
	}
	awaitRecords := func(want int) {
		t.Helper()
		s.poll("the machine does not begin with the snapshots", func() bool { return len(s.snapshotRecords("web")) == want })
	}
	awaitStatus := func(name string, want user.SnapshotStatus, message string) {
		t.Helper()
		s.poll("the list does not say that snapshot "+name+" waits for its machine", func() bool {
			got := s.snapshots()[name]
			return got.Status == want && got.Machine == "web" && strings.Contains(got.Message, message)
		})
	}
	awaitGone := func(names ...string) {
		t.Helper()
		s.poll("the snapshots are not deleted", func() bool {
			all := s.snapshots()
			return !slices.ContainsFunc(names, func(name string) bool { _, there := all[name]; return there })
		})
	}
	awaitUnreachable := func() {
		t.Helper()
		s.poll("the machine is not unreachable", func() bool { return s.machines()["web"] == "unreachable" })
	}
	s.writeSpec(data)
	s.apply()

	// Each snapshot has what the storage had when it was requested, and not what it has afterwards.
	s.write("data", "first")
	s.must("snapshot", "create", "first", "data", "--wait")
	s.write("data", "second")
	s.must("snapshot", "create", "second", "data")
	awaitRecords(2)
	web.kill()
	web = s.startAgent("web", "")
	s.must("snapshot", "create", "second", "data", "--wait")
	s.write("data", "third")
	s.must("snapshot", "create", "third", "data")
	awaitRecords(3)
	server.kill()
	server = startServer()
	s.must("snapshot", "create", "third", "data", "--wait")
	s.write("data", "fourth")
	web.stop()
	awaitUnreachable()
	s.must("snapshot", "create", "fourth", "data")
	awaitStatus("fourth", user.SnapshotCreating, "not connected")
	if got := len(s.snapshotRecords("web")); got != 3 {
		t.Errorf("without its agent, the machine has %d snapshots", got)
	}
	web = s.startAgent("web", "")
	s.must("snapshot", "create", "fourth", "data", "--wait")
	s.write("data", "fifth")
	for name, got := range s.snapshots() {
		if got.Status != user.SnapshotReady || got.Machine != "web" || got.SizeMiB != 64 || got.TakenAt == nil {
			t.Errorf("snapshot %s is %+v", name, got)
		}
	}

	s.writeSpec(data + `- {name: restored, directive: "loop,64M", kind: filesystem, mount: MNT/restored, machine: db, from: first}
`)
	refused("snapshot first is on machine web: storage from it is made there", "apply", "-f", s.spec)
	names := []string{"first", "second", "third", "fourth"}
	spec := data
	for _, name := range names {
		spec += "- {name: from-" + name + `, directive: "loop,64M", kind: filesystem, mount: MNT/from-` + name + ", from: " + name + "}\n"
	}
	s.writeSpec(spec)
	s.apply()
	s.apply()
	s.write("from-first", "first and more")
	for name, want := range map[string]string{
		"data": "fifth", "from-first": "first and more", "from-second": "second", "from-third": "third", "from-fourth": "fourth",
	} {
		if got := s.status()[name]; len(got.Attachments) != 1 || got.Attachments[0].Machine != "web" {
			t.Errorf("storage %s is %+v, want it on machine web", name, got)
		}
		if got := s.read(name); got != want {
			t.Errorf("storage %s has %q, want %q", name, got, want)
		}
	}

	// What the snapshots are of can go before them, and what was made from them stays after them.
	s.must("remove", "data", "from-first", "from-second", "from-third", "--wait")
	s.must("snapshot", "delete", "first", "second")
	awaitRecords(3)
	web.kill()
	web = s.startAgent("web", "")
	awaitGone("first", "second")
	if got := s.read("from-fourth"); got != "fourth" {
		t.Errorf("when snapshots were deleted, the storage has %q", got)
	}
	s.must("remove", "from-fourth", "--wait")
	s.must("snapshot", "delete", "third")
	awaitRecords(1)
	server.kill()
	server = startServer()
	awaitGone("third")

	web.stop()
	awaitUnreachable()
	refused("it has snapshots, which are lost with it: delete them first, with `stowage snapshot delete fourth`", "machine", "remove", "web")
	s.must("snapshot", "delete", "fourth")
	awaitStatus("fourth", user.SnapshotDeleting, "not connected")
	web = s.startAgent("web", "")
	awaitGone("fourth")
	web.stop()
	awaitUnreachable()
	s.must("machine", "remove", "web")
	if left := s.snapshots(); len(left) > 0 {
		t.Errorf("left the snapshots %+v", left)
	}
	db.stop()
	server.stop()
	s.wantNoStorageIn("web", "db")
}

// A directory is copied while it is detached, with everything in it, and an agent that is killed in the middle
// leaves nothing.
// Fault F42.
func TestSnapshotsOfDirectories(t *testing.T) {
	m := newMachine(t)
	m.start()
	const before = `storage:
- {name: data, directive: 'rootfs,32M', kind: filesystem, mount: MNT/data}
- {name: volume, directive: 'loop,32M', kind: filesystem, mount: MNT/volume}
`
	m.writeSpec(before)
	m.must("apply", "-f", m.spec, "--wait")
	in := func(dir, name string) string { return filepath.Join(m.mount(dir), name) }
	write := func(dir, text string) {
		t.Helper()
		if err := os.WriteFile(in(dir, "file"), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	read := func(dir, want string) {
		t.Helper()
		if got, err := os.ReadFile(in(dir, "file")); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v; want %q", dir, got, err, want)
		}
	}
	write("data", "monday")
	for name, to := range map[string]string{"-rf": "/etc/passwd", "new\nline": "/", "loop": "loop"} {
		if err := os.Symlink(to, in("data", name)); err != nil {
			t.Fatal(err)
		}
	}
	const files = 3000 // so many that the agent is killed before all are copied
	for i := range files {
		if err := os.WriteFile(in("data", fmt.Sprintf("file-%d", i)), []byte("data"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(why string, args ...string) {
		t.Helper()
		if r := m.run(args...); r.Code != 1 || !strings.Contains(r.Stdout+r.Stderr, why) {
			t.Errorf("want exit status 1 and %q:\n%s", why, r.All())
		}
	}
	refused("detach it first", "snapshot", "create", "monday", "data", "--wait")
	m.must("detach", "data", "--wait")
	m.must("snapshot", "create", "monday", "data", "--wait")
	m.must("snapshot", "create", "tuesday", "data")
	staged := filepath.Join(m.data, "storage", "rootfs", "snapshots", "trash", "*")
	m.poll("no copy is being made", func() bool {
		begun, err := filepath.Glob(staged)
		list := m.must("snapshot", "list").Stdout
		return err != nil || len(begun) > 0 || strings.Count(list, "ready") == 2
	})
	m.kill()
	m.start()
	m.must("snapshot", "create", "tuesday", "data", "--wait")
	if left, err := filepath.Glob(staged); err != nil || len(left) > 0 {
		t.Errorf("left %q, %v", left, err)
	}
	m.must("attach", "data", "--wait")
	write("data", "wednesday")

	m.writeSpec(before + "- {name: restored, directive: 'rootfs,64M', kind: filesystem, mount: MNT/restored, from: monday}\n" +
		"- {name: second, directive: 'rootfs,32M', kind: filesystem, mount: MNT/second, from: tuesday}\n")
	m.must("apply", "-f", m.spec, "--wait")
	for _, dir := range []string{"restored", "second"} {
		read(dir, "monday")
		if names, err := os.ReadDir(m.mount(dir)); err != nil || len(names) != files+4 {
			t.Errorf("%s has %d entries, %v", dir, len(names), err)
		}
		if to, err := os.Readlink(in(dir, "-rf")); err != nil || to != "/etc/passwd" {
			t.Errorf("%s has a link to %q, %v", dir, to, err)
		}
	}
	write("restored", "thursday")
	read("data", "wednesday")

	// The contents of a directory are for directories.
	for from, pool := range map[string]string{"monday": "loop", "thursday": "rootfs"} {
		if from == "thursday" {
			m.must("snapshot", "create", from, "volume", "--wait")
		}
		m.writeSpec(before + "- {name: mixed, directive: '" + pool + ",64M', kind: filesystem, mount: MNT/mixed, from: " + from + "}\n")
		refused("choose a pool of provider", "apply", "-f", m.spec, "--wait")
	}

	m.must("remove", "--wait", "data")
	m.must("snapshot", "delete", "monday", "tuesday", "thursday", "--wait")
	m.kill()
	m.start()
	m.must("attach", "restored", "second", "--wait")
	read("restored", "thursday")
	read("second", "monday")
	m.must("remove", "--wait", "restored", "second", "volume")
	m.wantNoStorage()
	if left, err := filepath.Glob(filepath.Join(m.data, "storage", "rootfs", "snapshots", "*", "*")); err != nil || len(left) > 0 {
		t.Errorf("left %q, %v", left, err)
	}
}

// A state that is restored does not know the snapshot of a directory that was made since: it is an orphan.
func TestOrphanedSnapshotOfDirectory(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.start()
	m.writeSpec("storage:\n- {name: data, directive: 'rootfs,32M', kind: filesystem, mount: MNT/data}\n")
	m.must("apply", "-f", m.spec, "--wait")
	m.must("detach", "data", "--wait")
	backup := filepath.Join(m.dir, "backup")
	m.must("backup", backup)
	m.must("snapshot", "create", "monday", "data", "--wait")
	m.stop()
	m.must("restore", backup)
	m.start()
	var id string
	for name, o := range m.orphans() {
		if id != "" || o.Kind != "snapshot" {
			t.Fatalf("%s is an orphan: %+v", name, o)
		}
		id = o.UUID
	}
	m.must("delete", id, "--now")
	if left, err := filepath.Glob(filepath.Join(m.data, "storage", "rootfs", "snapshots", "*", "*")); err != nil || len(left) > 0 {
		t.Errorf("left %q, %v", left, err)
	}
	m.must("remove", "--wait", "data")
}
