package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/e2e/internal/kernel"
)

const fourKinds = `
storage:
  - name: raw
    directive: loop,32M
    kind: block
  - name: data
    directive: loop,64M
    kind: filesystem
    mount: MNT/data
    filesystem: ext4
  - name: scratch
    directive: tmpfs,16M
    kind: filesystem
    mount: MNT/scratch
  - name: logs
    directive: rootfs,16M
    kind: filesystem
    mount: MNT/logs
`

func TestFourKindsAreAttached(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(fourKinds)
	m.start("--spec", m.spec)
	m.apply()
	m.wantFourKinds()

	m.must("remove", "raw", "data", "scratch", "logs", "--wait")
	m.wantNoStorage()
	m.stop()
}

func TestDataSurvivesKillsAndRestarts(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(fourKinds)
	m.start()
	m.apply()
	m.writeData("raw", "data", "scratch", "logs")

	for range 2 {
		m.kill()
		m.start("--spec", m.spec)
		m.apply()
		m.wantFourKinds()
		m.wantData("raw", "data", "scratch", "logs")
	}

	// The storage stays in place when the agent stops.
	m.stop()
	m.wantData("data", "scratch", "logs")

	// As after a reboot: only what is on disk is still there.
	unmountAndDetach(t, m.dir)
	m.start()
	m.apply()
	m.wantFourKinds()
	m.wantData("raw", "data", "logs")

	m.must("remove", "raw", "data", "scratch", "logs", "--wait")
	m.wantNoStorage()
	m.stop()
}

func TestAgentKilledDuringCreateAndRemove(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(`
storage:
  - name: many
    directive: loop,16M,8
    kind: filesystem
    mount: MNT/many
`)
	m.start()
	for range 5 {
		m.must("apply", "-f", m.spec)
		m.kill()
		m.start()
	}
	m.apply()
	if n := len(mountsBelow(t, m.dir)); n != 8 {
		t.Errorf("%d mounts, want 8", n)
	}
	m.wantNoDuplicates()

	m.must("remove", "many")
	for range 5 {
		m.kill()
		m.start()
	}
	m.poll("the storage is not removed", func() bool { return len(m.status()) == 0 })
	m.wantNoStorage()
	m.stop()
}

// Storage that is detached or removed right after a start may not be attached again yet.
// It is detached or removed all the same.
func TestDetachAndRemoveRightAfterStart(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(fourKinds)
	m.start()
	for range 3 {
		m.apply()
		m.kill()
		m.start()
		m.must("detach", "raw", "data", "scratch", "logs", "--wait", "--timeout", "1m")
		if n := len(mountsBelow(t, m.dir)) + len(loopsBelow(t, m.dir)); n != 0 {
			t.Errorf("%d mounts and loop devices after detaching", n)
		}
	}
	m.apply()
	m.kill()
	unmountAndDetach(t, m.dir)
	m.start()
	m.must("remove", "raw", "data", "scratch", "logs", "--wait", "--timeout", "1m")
	m.wantNoStorage()
	m.stop()
}

func TestDetachKeepsData(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(fourKinds)
	m.start()
	m.apply()
	m.writeData("raw", "data", "logs")

	m.must("detach", "raw", "data", "logs", "--wait")
	status := m.status()
	for _, name := range []string{"raw", "data", "logs"} {
		if s := status[name]; s.Status != "detached" || s.Location != "" || len(s.Attachments) != 0 {
			t.Errorf("%+v, want it detached", s)
		}
	}
	if n := len(mountsBelow(t, m.dir)); n != 1 {
		t.Errorf("%d mounts, want only the mount of scratch", n)
	}

	m.must("attach", "raw", "data", "logs", "--wait")
	m.wantFourKinds()
	m.wantData("raw", "data", "logs")

	m.must("remove", "raw", "data", "scratch", "logs", "--wait")
	m.wantNoStorage()
	m.stop()
}

// wantFourKinds checks that all storage of the file fourKinds is there exactly once.
func (m *machine) wantFourKinds() {
	m.Helper()
	status := m.status()
	for _, want := range []command.Storage{
		{Name: "raw", Kind: "block", Pool: "loop", Provider: "loop", SizeMiB: 32},
		{Name: "data", Kind: "filesystem", Pool: "loop", Provider: "loop", Location: m.mount("data")},
		{Name: "scratch", Kind: "filesystem", Pool: "tmpfs", Provider: "tmpfs", Location: m.mount("scratch")},
		{Name: "logs", Kind: "filesystem", Pool: "rootfs", Provider: "rootfs", Location: m.mount("logs")},
	} {
		got := status[want.Name]
		if got.Kind != want.Kind || got.Pool != want.Pool || got.Provider != want.Provider ||
			got.Life != "alive" || got.Status != "attached" || got.SizeMiB == 0 || got.Since.IsZero() || len(got.Attachments) != 1 {
			m.Errorf("status of %s: %+v", want.Name, got)
		}
		if want.Location != "" && got.Location != want.Location {
			m.Errorf("%s is at %q, want %q", want.Name, got.Location, want.Location)
		}
	}
	if (status["raw"].Volume == "") || (status["data"].Volume == "") || (status["data"].Filesystem == "") {
		m.Errorf("volumes and filesystems without ids: %+v, %+v", status["raw"], status["data"])
	}

	loops := loopsBelow(m, m.dir)
	if len(loops) != 2 {
		m.Errorf("loop devices %+v, want 2", loops)
	}
	if raw := status["raw"].Location; !slices.ContainsFunc(loops, func(l kernel.Loop) bool { return l.Path == raw }) {
		m.Errorf("raw is at %q, want one of %+v", raw, loops)
	}
	types := make(map[string]string)
	for _, mount := range mountsBelow(m, m.dir) {
		types[filepath.Base(mount.Mountpoint)] = mount.FSType
		if mount.Mountpoint != m.mount("logs") && !strings.Contains(mount.Options, "nosuid") {
			m.Errorf("%s is mounted %q, want nosuid", mount.Mountpoint, mount.Options)
		}
	}
	if types["data"] != "ext4" || types["scratch"] != "tmpfs" || len(types) != 3 {
		m.Errorf("mounted: %v", types)
	}
	m.wantNoDuplicates()
}

// wantNoDuplicates checks that no mount covers another, and that no file backs two loop
// devices.
func (m *machine) wantNoDuplicates() {
	m.Helper()
	seen := make(map[string]bool)
	note := func(object string) {
		if seen[object] {
			m.Errorf("found twice: %s", object)
		}
		seen[object] = true
	}
	for _, mount := range mountsBelow(m, m.dir) {
		note("mount on " + mount.Mountpoint)
	}
	for _, loop := range loopsBelow(m, m.dir) {
		note("loop device of " + loop.File)
	}
}

// wantNoStorage checks that no storage is left: not in the agent's status, not in the
// kernel, and not on disk.
func (m *machine) wantNoStorage() {
	m.Helper()
	if status := m.status(); len(status) != 0 {
		m.Errorf("left in the status: %+v", status)
	}
	for _, mount := range mountsBelow(m, m.dir) {
		m.Errorf("left mounted: %s on %s", mount.Source, mount.Mountpoint)
	}
	for _, loop := range loopsBelow(m, m.dir) {
		m.Errorf("left attached: %+v", loop)
	}
	err := filepath.WalkDir(m.data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		// The names of files and records contain the ID of their volume or filesystem.
		name := entry.Name()
		if !entry.IsDir() && (strings.Contains(name, "volume-") || strings.Contains(name, "filesystem-")) {
			m.Errorf("left on disk: %s", path)
		}
		return nil
	})
	if err != nil {
		m.Error(err)
	}
}

// dataOf is what writeData writes to the named storage.
func dataOf(name string) []byte { return bytes.Repeat([]byte(name+" "), 64<<10) }

// dataFile returns the path that writeData writes to: a file, or the block device itself.
func (m *machine) dataFile(name string) string {
	m.Helper()
	if name == "raw" {
		return m.status()[name].Location
	}
	return filepath.Join(m.mount(name), "dir", "file")
}

func (m *machine) writeData(names ...string) {
	m.Helper()
	for _, name := range names {
		file := m.dataFile(name)
		if name != "raw" {
			if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
				m.Fatal(err)
			}
		}
		f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			m.Fatal(err)
		}
		_, err = f.Write(dataOf(name))
		if err == nil {
			err = f.Sync()
		}
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			m.Fatal(err)
		}
	}
	unix.Sync()
}

func (m *machine) wantData(names ...string) {
	m.Helper()
	for _, name := range names {
		m.wantDataIn(m.dataFile(name), name)
	}
}

// wantDataIn checks that a file or device begins with the data that was written to some storage.
func (m *machine) wantDataIn(path, name string) {
	m.Helper()
	f, err := os.Open(path)
	if err != nil {
		m.Error(err)
		return
	}
	want := dataOf(name)
	got := make([]byte, len(want))
	n, err := f.ReadAt(got, 0)
	f.Close()
	if err != nil || !bytes.Equal(got, want) {
		m.Errorf("%s does not hold the data that was written to %s (read %d of %d bytes, %v)", path, name, n, len(want), err)
	}
}
