package e2e

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/e2e/internal/kernel"
)

const growing = `
storage:
  - {name: raw, directive: 'loop,32M', kind: block}
  - {name: data, directive: 'loop,64M', kind: filesystem, mount: MNT/data, filesystem: ext4}
  - {name: trees, directive: 'loop,256M', kind: filesystem, mount: MNT/trees, filesystem: btrfs}
  - {name: large, directive: 'loop,320M', kind: filesystem, mount: MNT/large, filesystem: xfs}
  - {name: scratch, directive: 'tmpfs,16M', kind: filesystem, mount: MNT/scratch}
  - {name: logs, directive: 'rootfs,16M', kind: filesystem, mount: MNT/logs}
`

func TestStorageGrowsInUse(t *testing.T) {
	m := newMachine(t)
	ext4Grows, err := kernel.GrowsExt4()
	if err != nil {
		t.Fatal(err)
	}
	m.writeSpec(growing)
	m.start()
	m.apply()
	m.writeData("raw", "data", "trees", "large", "scratch", "logs")

	for _, test := range []struct {
		name, size string
		want       uint64 // MiB
	}{
		{"raw", "+32M", 64}, {"data", "128M", 128}, {"trees", "288M", 288}, {"large", "+64M", 384}, {"scratch", "32M", 32}, {"logs", "24M", 24},
		{"trees", "320M", 320}, // once more
	} {
		if test.name == "data" && !ext4Grows {
			r := m.run("resize", test.name, test.size, "--wait")
			if r.Code != 1 || !strings.Contains(r.Stderr, "CAP_SYS_RESOURCE") {
				t.Error(r.All())
			}
			continue
		}
		before := m.status()[test.name]
		written := m.writeDuring(test.name, func() { m.must("resize", test.name, test.size, "--wait") })
		after := m.status()[test.name]
		if after.SizeMiB < test.want || after.WantedMiB != test.want || after.Status != "attached" || after.Location != before.Location {
			t.Errorf("%s is %+v, was %+v", test.name, after, before)
		}
		if real := m.realSize(test.name); test.name != "logs" && (real < test.want*8/10 || real > test.want) {
			t.Errorf("%s has %d MiB, want %d", test.name, real, test.want)
		}
		written.check()
	}
	m.wantData("raw", "data", "trees", "large", "scratch", "logs")
	// The size is reached, so the same request changes nothing.
	if r := m.must("resize", "trees", "320M", "--wait"); !strings.Contains(r.Stdout, "nothing to change") {
		t.Error(r.All())
	}

	m.must("detach", "data", "trees", "large", "--wait")
	for _, check := range [][]string{{"data", "e2fsck", "-fn"}, {"trees", "btrfs", "check"}, {"large", "xfs_repair", "-n"}} {
		if out, err := exec.Command(check[1], check[2], m.backing(check[0])).CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", check, err, out)
		}
	}
	m.must("attach", "data", "trees", "large", "--wait")
	m.wantData("data", "trees", "large")
	m.must("remove", "raw", "data", "trees", "large", "scratch", "logs", "--wait")
	m.wantNoStorage()
	m.stop()
}

func TestApplyGrowsToLargerSize(t *testing.T) {
	m := newMachine(t)
	const small = "storage: [{name: data, directive: 'loop,256M,2', kind: filesystem, mount: MNT/data, filesystem: btrfs}]"
	m.writeSpec(small)
	m.start()
	m.apply()
	m.must("resize", "data/0", "288M", "--wait")
	m.writeData("data/0", "data/1")

	m.writeSpec(strings.Replace(small, "256M", "320M", 1))
	dry := m.must("apply", "-f", m.spec, "--dry-run")
	for _, line := range []string{"~ data  grow  1 of 2: 256 MiB to 320 MiB\n", "~ data  grow  1 of 2: 288 MiB to 320 MiB\n"} {
		if !strings.Contains(dry.Stdout, line) {
			t.Errorf("--dry-run does not show %q:\n%s", line, dry.Stdout)
		}
	}
	if s := m.status()["data/1"]; s.SizeMiB != 256 || s.WantedMiB != 256 {
		t.Errorf("--dry-run changed something: %+v", s)
	}
	m.apply()
	for _, name := range []string{"data/0", "data/1"} {
		if s := m.status()[name]; s.SizeMiB != 320 || m.realSize(name) < 300 {
			t.Errorf("%s has %d MiB of %+v", name, m.realSize(name), s)
		}
	}
	m.wantData("data/0", "data/1")
	m.must("remove", "data", "--wait")
	m.stop()
}

func TestShrinkIsRefused(t *testing.T) {
	m := newMachine(t)
	const two = "storage:\n- {name: new, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/new}\n- {name: data, directive: 'loop,64M', kind: filesystem, mount: MNT/data}\n"
	m.writeSpec("storage: [{name: data, directive: 'loop,64M', kind: filesystem, mount: MNT/data}]")
	m.start()
	m.apply()
	m.writeData("data")
	r := m.run("resize", "data", "32M", "--wait")
	if r.Code != 1 || !strings.Contains(r.Stderr, "64 MiB") || !strings.Contains(r.Stderr, "32 MiB") {
		t.Error(r.All())
	}
	m.writeSpec(strings.Replace(two, "64M", "32M", 1))
	r = m.run("apply", "-f", m.spec, "--wait")
	if r.Code != 1 || !strings.Contains(r.Stderr, m.spec+":3: storage data: directive: data has 64M and cannot become smaller") {
		t.Error(r.All())
	}
	r = m.run("resize", "data", "1E")
	if r.Code != 1 || !strings.Contains(r.Stderr, "does not fit") {
		t.Error(r.All())
	}
	if status := m.status(); len(status) != 1 || status["data"].SizeMiB != 64 || status["data"].WantedMiB != 64 {
		t.Errorf("something was changed: %+v", status)
	}
	m.wantData("data")
	m.must("remove", "data", "--wait")
	m.stop()
}

// Storage grows to the requested size even if the agent is killed, and even if the storage is
// detached when the size is requested.
func TestGrowthSurvivesKillAndDetach(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage: [{name: data, directive: 'loop,256M', kind: filesystem, mount: MNT/data, filesystem: btrfs}]")
	m.start()
	m.apply()
	m.writeData("data")
	size := 256
	for range 4 {
		size += 32
		m.must("resize", "data", strconv.Itoa(size)+"M")
		m.kill()
		m.start()
	}
	m.must("resize", "data", strconv.Itoa(size)+"M", "--wait")
	m.must("detach", "data", "--wait")
	m.must("resize", "data", "+32M")
	if r := m.run("resize", "data", "+0.5M", "--wait"); r.Code != 1 || !strings.Contains(r.Stderr, "detached") {
		t.Error(r.All())
	}
	m.must("attach", "data", "--wait")
	m.must("resize", "data", "448M", "--wait")
	if s := m.status()["data"]; s.SizeMiB != 448 || m.realSize("data") < 420 {
		t.Errorf("%d MiB of %+v", m.realSize("data"), s)
	}
	m.wantData("data")
	m.must("remove", "data", "--wait")
	m.wantNoStorage()
	m.stop()
}

// If the volume has grown and its filesystem cannot, both sizes are shown until the growth is finished,
// even if it is withdrawn.
func TestHalfGrownShowsBothSizes(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage: [{name: data, directive: 'loop,256M', kind: filesystem, mount: MNT/data, filesystem: btrfs}]")
	m.start()
	m.apply()
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", m.mount("data"), "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	const remark = "half grown: its volume has 320 MiB, and its filesystem 256 MiB of them"
	remount(unix.MS_RDONLY)
	if r := m.run("resize", "data", "320M", "--wait"); r.Code != 1 {
		t.Error(r.All())
	}
	var now command.Storage
	m.poll("the volume has not grown, or its filesystem has", func() bool {
		now = m.status()["data"]
		return now.VolumeMiB == 320 && now.SizeMiB == 256 && now.WantedMiB == 320 && strings.HasSuffix(now.Message, "; "+remark)
	})
	if text := m.must("describe", "data").Stdout; !strings.Contains(text, "256M, to grow to 320M") || !strings.Contains(text, ", on a volume of 320M") || !strings.Contains(text, "320M, 320M allocated") {
		t.Errorf("the description is\n%s", text)
	}
	m.must("resize", "data", "256M")
	m.poll("the growth is not withdrawn", func() bool {
		now = m.status()["data"]
		return now.VolumeMiB == 320 && now.SizeMiB == 256 && now.WantedMiB == 256 && strings.HasSuffix(now.Message, remark)
	})
	remount(0)
	m.must("retry", "data")
	m.must("resize", "data", "320M", "--wait")
	if now := m.status()["data"]; now.VolumeMiB != 0 || now.SizeMiB != 320 || strings.Contains(now.Message, "half grown") {
		t.Errorf("afterwards: %+v", now)
	}
	m.must("remove", "data", "--wait")
	m.wantNoStorage()
	m.stop()
}

// deviceMiB returns the size of a block device, in MiB.
func deviceMiB(t testing.TB, device string) uint64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/class/block", filepath.Base(device), "size"))
	if err != nil {
		t.Fatal(err)
	}
	sectors, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return sectors >> 11
}

// realSize returns the size in MiB of a filesystem or device according to the kernel.
func (m *machine) realSize(name string) uint64 {
	m.Helper()
	s := m.status()[name]
	if s.Kind == "block" {
		return deviceMiB(m, s.Location)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.Location, &st); err != nil {
		m.Fatal(err)
	}
	return st.Blocks * uint64(st.Bsize) >> 20
}

// backing returns the file of a loop volume.
func (m *machine) backing(name string) string {
	m.Helper()
	id := "volume-" + strings.ReplaceAll(m.status()[name].Volume, "/", "-")
	found, err := filepath.Glob(filepath.Join(m.data, "storage", "loop", "volumes", id+"-*"))
	if err != nil || len(found) != 1 {
		m.Fatalf("the files of %s are %q (%v)", id, found, err)
	}
	return found[0]
}

// written is a file that holds the numbers from 0 to count-1.
type written struct {
	*machine
	path  string
	count uint32
}

// writeDuring calls a function, and writes to the storage from before the call until after
// it. For the block device it only calls the function.
func (m *machine) writeDuring(name string, call func()) *written {
	m.Helper()
	w := &written{machine: m}
	if name == "raw" {
		call()
		return w
	}
	w.path = filepath.Join(m.mount(name), "written")
	begun, stop, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() { done <- w.write(begun, stop) }()
	<-begun
	defer func() {
		close(stop)
		if err := <-done; err != nil {
			m.Errorf("writing to %s: %v", name, err)
		}
	}()
	call()
	return w
}

// mostNumbers is the largest count of numbers in a file: 4 MiB.
const mostNumbers = 1 << 20

func (w *written) write(begun, stop chan struct{}) error {
	f, err := os.Create(w.path)
	if err != nil {
		close(begun)
		return err
	}
	defer f.Close()
	for first := true; ; first = false {
		if w.count < mostNumbers {
			var block bytes.Buffer
			for range 1024 {
				_ = binary.Write(&block, binary.LittleEndian, w.count)
				w.count++
			}
			if _, err = f.Write(block.Bytes()); err == nil {
				err = f.Sync()
			}
		}
		if first {
			close(begun)
		}
		if err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		default:
		}
	}
}

func (w *written) check() {
	w.Helper()
	if w.path == "" {
		return
	}
	content, err := os.ReadFile(w.path)
	if err != nil || len(content) != int(w.count)*4 {
		w.Errorf("%s has %d bytes, want %d (%v)", w.path, len(content), w.count*4, err)
		return
	}
	for i := range w.count {
		if got := binary.LittleEndian.Uint32(content[4*i:]); got != i {
			w.Errorf("%s has %d at %d", w.path, got, i)
			return
		}
	}
}
