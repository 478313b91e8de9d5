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
	dir    string // where it is mounted
	filler string // the file that takes what space there is
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
	m.tool("mkfs.ext4", "-q", "-F", "-m", "0", image)
	m.mountFile(image, d.dir, "ext4")
	return d
}

// newMachine is newMachine with all that it makes on the disk, but for the agent's log.
func (d *disk) newMachine() *machine {
	d.Helper()
	m := newMachineIn(d, d.dir)
	m.log = filepath.Join(d.dir, "..", "agent.log")
	return m
}

// fill leaves not one byte.
func (d *disk) fill() {
	d.Helper()
	file, err := os.OpenFile(d.filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		d.Fatal(err)
	}
	defer file.Close()
	// What was removed is free only once the journal says so.
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

// free gives back what fill has taken.
func (d *disk) free() {
	d.Helper()
	if err := os.Remove(d.filler); err != nil {
		d.Fatal(err)
	}
	unix.Sync()
}

// left returns how many bytes are left.
func (d *disk) left() uint64 {
	d.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(d.dir, &fs); err != nil {
		d.Fatal(err)
	}
	return fs.Bavail * uint64(fs.Bsize)
}

// filesOfStorage returns the files of all storage below the data directory, and the
// records.
func (m *machine) filesOfStorage() []string {
	m.Helper()
	files, err := filepath.Glob(filepath.Join(m.data, "storage", "*", "*", "*"))
	if err != nil {
		m.Fatal(err)
	}
	return files
}

// What is said of a full disk: by what makes something, and by what asks for a size.
const (
	noSpace = `[01] MiB (of disk space|are left).* remove something from .*no space left on device`
	noRoom  = `it does not fit: new-.* asks for 8M, and provider .* has room for 0M`
)

// wantFull checks that a command is refused with one line of that kind, and that nothing
// has come of it.
func (m *machine) wantFull(line string, args ...string) {
	m.Helper()
	files, status := m.filesOfStorage(), m.status()
	r := m.run(args...)
	if ok, err := regexp.MatchString("^stowage: .*"+line+"\n$", r.Stderr); !ok || err != nil || r.Code != 1 {
		m.Errorf("want exit status 1 and a line of the kind %q (%v):\n%s", line, err, r.All())
	}
	if after := m.filesOfStorage(); !slices.Equal(after, files) {
		m.Errorf("%s: files of storage are %q, before they were %q", r.Command, after, files)
	}
	if after := m.status(); !reflect.DeepEqual(after, status) {
		m.Errorf("%s: status is %+v, before it was %+v", r.Command, after, status)
	}
}

// wantAttached checks that there is this storage, that all of it is attached, and what is
// on it.
func (m *machine) wantAttached(names ...string) {
	m.Helper()
	status := m.status()
	if len(status) != len(names) {
		m.Errorf("there is %+v, want %q", status, names)
	}
	for _, name := range names {
		if s := status[name]; s.Status != "attached" || s.Location == "" {
			m.Errorf("%s is not attached: %+v", name, s)
		}
	}
	m.wantData(names...)
	m.wantNothingTwice()
}

// useReserve leaves a quarter of the disk space that the state has allocated ahead. While
// it has half of it, what is small may be added on a full disk.
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

// fewInodes makes an ext4 with one block of inodes. The kernel zeroes inode tables some
// seconds after a filesystem is mounted, which would give blocks of the volume's file back to
// the full disk; of these it has nothing to zero.
const fewInodes = "bytes-per-inode=4194304"

func TestFullDisk(t *testing.T) {
	t.Parallel()
	for name, running := range map[string]bool{"filled while the agent runs": true, "filled while none runs": false} {
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
	old := m.old("old", 8, "mkfs.ext4", "-q", "-F")
	added := map[string]string{"loop": noRoom, "tmpfs": noSpace, "rootfs": noRoom}
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
		m.wantFull(line, "apply", "-f", file(pool))
	}
	m.wantFull(noSpace, "import", "old", old, "--pool", "loop", "--mount", m.mount("old"))
	m.wantFull(noSpace, "resize", "scratch", "+1M")
	m.wantFull(noSpace, "pools", "add", "fast", "loop")
	m.wantFull(noSpace, "backup", filepath.Join(m.dir, "backup"))
	if left, err := filepath.Glob(filepath.Join(m.dir, "backup*")); err != nil || len(left) > 0 {
		t.Errorf("left of a backup: %q, %v", left, err)
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

// What is refused for the lack of space leaves the state as it is.
func TestFullDiskRefusesToRestore(t *testing.T) {
	d := newDisk(t, 96)
	m := d.newMachine()
	m.writeSpec(strings.Replace(onMachine, "filesystem: ext4}", "filesystem: ext4, mkfs-options: "+fewInodes+"}", 1))
	m.start()
	m.apply()
	m.keep(onMachineNames...)
	backup := filepath.Join(m.dir, "backup")
	m.must("backup", backup)
	m.stop()
	d.fill()
	had := m.tree()
	for _, args := range [][]string{{"restore", backup}, {"recover"}, {"recover", "--yes"}} {
		if r := m.run(args...); r.Code != 1 || !regexp.MustCompile("^stowage: .*"+noSpace+"\n$").MatchString(r.Stderr) {
			t.Errorf("want exit status 1 and a line of the kind %q:\n%s", noSpace, r.All())
		}
		if has := m.tree(); !slices.Equal(has, had) {
			t.Errorf("%q: there are the files %q, before there were %q", args, has, had)
		}
	}
	m.start()
	m.apply()
	log, err := os.ReadFile(m.log)
	if err != nil || bytes.Contains(log, []byte("has been restored")) {
		t.Errorf("the agent takes its state for a restored one (%v)", err)
	}
	for _, name := range onMachineNames {
		m.wantKept(name, name)
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

// All of much storage goes in one call.
func TestFullDiskLetsMuchStorageGo(t *testing.T) {
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
