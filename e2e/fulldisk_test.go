package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/state/kv/boltkv"
)

// disk is a small ext4 in a file. Root may use every block of it.
type disk struct {
	testing.TB
	dir    string // where the disk is mounted
	filler string // the file that takes up the free space
}

func newDisk(tb testing.TB, mib int64) *disk {
	tb.Helper()
	needRoot(tb)
	beside, err := os.MkdirTemp("", "stowage-disk")
	if err != nil {
		tb.Fatal(err)
	}
	d := &disk{TB: tb, dir: filepath.Join(beside, "disk")}
	d.filler = filepath.Join(d.dir, "filler")
	tb.Cleanup(func() {
		unmountAndDetach(tb, beside)
		if len(mountsBelow(tb, beside)) > 0 {
			return // nothing is deleted through a mount
		}
		if err := os.RemoveAll(beside); err != nil {
			tb.Error(err)
		}
	})
	image := filepath.Join(beside, "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(os.Truncate(image, mib<<20), os.Mkdir(d.dir, 0o700)); err != nil {
		tb.Fatal(err)
	}
	m := &machine{TB: tb}
	m.runTool("mkfs.ext4", "-q", "-F", "-m", "0", image)
	m.mountFile(image, d.dir, "ext4")
	return d
}

// newMachine is like the function newMachine, with the machine's directory on the disk. Only
// the agent's log is elsewhere.
func (d *disk) newMachine() *machine {
	d.Helper()
	m := newMachineIn(d, d.dir)
	m.log = filepath.Join(d.dir, "..", "agent.log")
	return m
}

// fill takes up the free space to the last byte.
func (d *disk) fill() {
	d.Helper()
	file, err := os.OpenFile(d.filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		d.Fatal(err)
	}
	defer file.Close()
	// The space of removed files is free only after the journal has committed.
	for left := uint64(1); left > 0; left = d.left() {
		for size := 1 << 20; size > 0; {
			if _, err := file.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
				size /= 2
			} else if err != nil {
				d.Fatal(err)
			}
		}
		if err := unix.Syncfs(int(file.Fd())); err != nil {
			d.Fatal(err)
		}
	}
}

// free gives back the space that fill has taken.
func (d *disk) free() {
	d.Helper()
	if err := os.Remove(d.filler); err != nil {
		d.Fatal(err)
	}
	unix.Sync()
}

// left returns the number of free bytes.
func (d *disk) left() uint64 {
	d.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(d.dir, &fs); err != nil {
		d.Fatal(err)
	}
	return fs.Bavail * uint64(fs.Bsize)
}

// filesOfStorage returns the paths of the files and records of all storage.
func (m *machine) filesOfStorage() []string {
	m.Helper()
	files, err := filepath.Glob(filepath.Join(m.data, "storage", "*", "*", "*"))
	if err != nil {
		m.Fatal(err)
	}
	return files
}

// Patterns of the errors on a full disk: of an operation that runs out of space, and of a
// request whose size does not fit.
const (
	noSpace    = `[01] MiB are left.* remove something from .*no space left on device`
	noCapacity = `it does not fit: new-.* asks for 8M, and provider .* has room for 0M`
)

// wantRefused checks that a command is refused with one line that matches the pattern, and
// changes neither files nor status.
func (m *machine) wantRefused(line string, args ...string) {
	m.Helper()
	files, status := m.filesOfStorage(), m.status()
	r := m.run(args...)
	if ok, err := regexp.MatchString("^stowage: .*"+line+"\n$", r.Stderr); !ok || err != nil || r.Code != 1 {
		m.Errorf("want exit status 1 and a line that matches %q (%v):\n%s", line, err, r.All())
	}
	if after := m.filesOfStorage(); !slices.Equal(after, files) {
		m.Errorf("%s: files of storage changed to %q from %q", r.Command, after, files)
	}
	if after := m.status(); !reflect.DeepEqual(after, status) {
		m.Errorf("%s: status changed to %+v from %+v", r.Command, after, status)
	}
}

// wantAttached checks that exactly this storage exists, is attached, and has its data.
func (m *machine) wantAttached(names ...string) {
	m.Helper()
	status := m.status()
	if len(status) != len(names) {
		m.Errorf("status %+v, want %q", status, names)
	}
	for _, name := range names {
		if s := status[name]; s.Status != "attached" || s.Location == "" {
			m.Errorf("%s is not attached: %+v", name, s)
		}
	}
	m.wantData(names...)
	m.wantNoDuplicates()
}

// useReserve cuts the disk space that the state has preallocated to a quarter. With half of
// it, the agent still accepts small additions on a full disk.
func (m *machine) useReserve() {
	m.Helper()
	path := filepath.Join(m.data, "state.db")
	file, err := os.Open(path)
	if err != nil {
		m.Fatal(err)
	}
	defer file.Close()
	used, _, err := boltkv.Extent(file)
	if err != nil {
		m.Fatal(err)
	}
	if err := os.Truncate(path, used+1<<20); err != nil {
		m.Fatal(err)
	}
}

// fewInodes makes an ext4 with one block of inodes. Some seconds after a mount the kernel
// zeroes inode tables, which gives blocks of the volume's file back to the full disk. With
// one block of inodes there is nothing to zero.
const fewInodes = "bytes-per-inode=4194304"

// Fault F22.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for name, running := range map[string]bool{"filled while the agent runs": true, "filled while no agent runs": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testFullDisk(t, running)
		})
	}
}

func testFullDisk(t *testing.T, running bool) {
	d := newDisk(t, 192)
	m := d.newMachine()
	m.writeSpec(strings.Replace(fourKinds, "    filesystem: ext4\n", "    filesystem: ext4\n    mkfs-options: "+fewInodes+"\n", 1) + `
  - {name: other-data, directive: 'loop,8M', kind: filesystem, mount: MNT/other-data, filesystem: ext4, mkfs-options: ` + fewInodes + `}
  - {name: other-logs, directive: 'rootfs,1M', kind: filesystem, mount: MNT/other-logs}
`)
	all := []string{"raw", "data", "scratch", "logs", "other-data", "other-logs"}
	m.start()
	m.apply()
	m.writeData(all...)
	old := m.makeImage("old", 8, "mkfs.ext4", "-q", "-F")
	added := map[string]string{"loop": noCapacity, "tmpfs": noSpace, "rootfs": noCapacity}
	file := func(pool string) string { return m.spec + "." + pool }
	for pool := range added {
		text := fmt.Sprintf("storage: [{name: new-%[1]s, directive: '%[1]s,8M', kind: filesystem, mount: %[2]s}]", pool, m.mount("new-"+pool))
		if err := os.WriteFile(file(pool), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	if !running {
		m.stop()
	}
	d.fill()
	if !running {
		m.start("--spec", m.spec)
	}
	for range 3 {
		m.kill()
		m.start("--spec", m.spec)
		m.apply()
		m.wantAttached(all...)
	}
	m.must("detach", "raw", "data", "logs", "--wait")
	m.must("attach", "raw", "data", "logs", "--wait")
	m.wantAttached(all...)

	m.kill()
	m.useReserve()
	d.fill()
	m.start("--spec", m.spec)
	m.apply()
	m.wantAttached(all...)
	d.fill() // once more: the agent has replaced its copies of the state
	for pool, line := range added {
		m.wantRefused(line, "apply", "-f", file(pool))
	}
	m.wantRefused(noSpace, "import", "old", old, "--pool", "loop", "--mount", m.mount("old"))
	m.wantRefused(noSpace, "resize", "scratch", "+1M")
	m.wantRefused(noSpace, "pools", "add", "fast", "loop")
	m.wantRefused(noSpace, "backup", filepath.Join(m.dir, "backup"))
	if left, err := filepath.Glob(filepath.Join(m.dir, "backup*")); err != nil || len(left) > 0 {
		t.Errorf("files of the refused backup: %q, %v", left, err)
	}

	m.must("release", "other-data", "other-logs", "--wait")
	m.must("remove", "scratch", "--wait")
	m.must("remove", "logs", "--wait")
	d.fill()
	m.kill()
	m.start()
	m.must("detach", "data", "--wait")

	d.free()
	m.apply()
	m.must("import", "old", old, "--pool", "loop", "--mount", m.mount("old"), "--wait")
	m.must("pools", "add", "fast", "loop")
	m.must("backup", filepath.Join(m.dir, "backup"))
	for pool := range added {
		m.must("apply", "-f", file(pool), "--wait")
	}
	m.wantData("raw", "data", "old")
	var names []string
	for name := range m.status() {
		names = append(names, name)
	}
	m.must(append([]string{"remove", "--wait"}, names...)...)
	m.stop()
}

// A restore or recover that is refused for lack of space leaves the state as it is.
func TestFullDiskRestoreIsRefused(t *testing.T) {
	d := newDisk(t, 96)
	m := d.newMachine()
	m.writeSpec(strings.Replace(onMachine, "filesystem: ext4}", "filesystem: ext4, mkfs-options: "+fewInodes+"}", 1))
	m.start()
	m.apply()
	m.writeContents(onMachineNames...)
	backup := filepath.Join(m.dir, "backup")
	m.must("backup", backup)
	m.stop()
	d.fill()
	had := m.listFiles()
	for _, args := range [][]string{{"restore", backup}, {"recover"}, {"recover", "--yes"}} {
		if r := m.run(args...); r.Code != 1 || !regexp.MustCompile("^stowage: .*"+noSpace+"\n$").MatchString(r.Stderr) {
			t.Errorf("want exit status 1 and a line that matches %q:\n%s", noSpace, r.All())
		}
		if has := m.listFiles(); !slices.Equal(has, had) {
			t.Errorf("%q: the files changed to %q from %q", args, has, had)
		}
	}
	m.start()
	m.apply()
	log, err := os.ReadFile(m.log)
	if err != nil || bytes.Contains(log, []byte("has been restored")) {
		t.Errorf("the agent treats its state as restored (%v)", err)
	}
	for _, name := range onMachineNames {
		m.wantContents(name, name)
	}
	m.stop()

	d.free()
	m.must("restore", backup)
	d.fill()
	m.start()
	m.apply()
	m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	m.wantNoStorage()
	m.stop()
}

// One remove command removes many instances on a full disk.
// Fault F22.
func TestFullDiskRemoveMany(t *testing.T) {
	d := newDisk(t, 128)
	m := d.newMachine()
	m.writeSpec(`
storage:
  - {name: raw, directive: 'loop,1M,30', kind: block}
  - {name: logs, directive: 'rootfs,1M,30', kind: filesystem, mount: MNT/logs}
`)
	m.start()
	m.apply()
	d.fill()
	m.kill()
	m.start()
	m.must("remove", "raw", "logs", "--wait")
	m.wantNoStorage()
	m.stop()
}
