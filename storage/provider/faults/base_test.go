//go:build linux && faults

package faults

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// base is the disk of a machine that can be switched off: a filesystem on a loop device,
// which holds all storage of a case.
type base struct {
	// TB is the case that uses the disk.
	testing.TB
	image string
	// kind of filesystem: ext4, or xfs.
	kind string
	// loop is the device of the image.
	loop string
	// dir is the mount point.
	dir string
	// free is the space that is available at first, in bytes.
	free uint64
}

// baseSize is a size in MiB that is enough for count objects of a kind.
func baseSize(kind string, count int) uint64 {
	return 100 + 3*newWorld(kind, "", count).Size*uint64(count)
}

// newBase makes and mounts a disk with ext4, of size MiB.
func newBase(t testing.TB, size uint64) *base {
	t.Helper()
	return newBaseOf(t, "ext4", size)
}

// newBaseOf makes and mounts a disk. When the test ends, nothing may be left on it, and
// its filesystem must be undamaged.
func newBaseOf(t testing.TB, kind string, size uint64) *base {
	t.Helper()
	devicetest.RequireRoot(t)
	top := t.TempDir()
	size = max(size, sizes[kind])
	b := &base{TB: t, kind: kind, image: filepath.Join(top, "disk"), dir: filepath.Join(top, "fs")}
	if err := os.WriteFile(b.image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(b.image, int64(size)<<20); err != nil {
		t.Fatal(err)
	}
	switch kind {
	case "ext4":
		command(t, "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1", b.image)
	case "xfs":
		command(t, "mkfs.xfs", "-q", b.image)
	}
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b.mount()
	b.free = b.available()
	t.Cleanup(func() {
		b.TB = t
		b.end()
	})
	return b
}

// available returns how much space is available on the disk, in bytes.
func (b *base) available() uint64 {
	b.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(b.dir, &st); err != nil {
		b.Fatal(err)
	}
	return st.Bavail * uint64(st.Bsize)
}

// awaitSpace waits for the space of removed files: XFS frees it a moment later.
func (b *base) awaitSpace() {
	b.Helper()
	const directories = 8 << 20
	eventually(b, func() error {
		if available := b.available(); available+directories < b.free {
			return fmt.Errorf("%d MiB are available on the empty disk, and %d were at first", available>>20, b.free>>20)
		}
		return nil
	})
}

func (b *base) mount() {
	b.Helper()
	b.loop = attachLoop(b, b.image)
	command(b, "mount", "-t", b.kind, b.loop, b.dir)
}

func (b *base) unmount() {
	b.Helper()
	// The kernel releases a loop device's file a moment after the device is gone from sysfs.
	eventually(b, func() error {
		if err := unix.Unmount(b.dir, 0); err != nil {
			return fmt.Errorf("unmounting the disk: %w; in use: %v", err, b.leaks())
		}
		return nil
	})
	detachLoop(b, b.loop)
}

// end unmounts the disk and checks its filesystem, as the last check.
func (b *base) end() {
	if b.Failed() {
		b.clear()
	}
	b.unmount()
	check(b, b.kind, b.image)
}

// reboot does what happens between a power cut and the start of the agent: mounts and
// loop devices are gone, the disk's journal is replayed, and the disk has another device
// number, in another boot of the machine.
func (b *base) reboot() {
	b.Helper()
	b.clear()
	b.unmount()
	boot(b, uuid.NewString())
	// Another device takes the number.
	other := filepath.Join(filepath.Dir(b.image), "other")
	if err := os.WriteFile(other, make([]byte, 4096), 0o600); err != nil {
		b.Fatal(err)
	}
	loop := attachLoop(b, other)
	b.mount()
	detachLoop(b, loop)
}

// attachLoop attaches a loop device to a file and returns its path, for detachLoop.
func attachLoop(t testing.TB, file string, options ...string) string {
	t.Helper()
	devicetest.RequireProgram(t, "losetup")
	for tries := 1; ; tries++ {
		out, err := exec.Command("losetup", append(options, "--find", "--show", file)...).CombinedOutput()
		text := strings.TrimSpace(string(out))
		switch {
		case err == nil:
			return text
		// Somebody may have removed the number that it found, or attached something else to it.
		case tries == 10 || !strings.Contains(text, "No such device") && !strings.Contains(text, "busy"):
			t.Fatalf("losetup: %v: %s", err, text)
		}
	}
}

func detachLoop(t testing.TB, path string) {
	t.Helper()
	attribute := filepath.Join("/sys/block", filepath.Base(path), "loop/backing_file")
	before, err := os.ReadFile(attribute)
	if err != nil {
		t.Fatal(err)
	}
	command(t, "losetup", "--detach", path)
	// Another file may get the name at once.
	eventually(t, func() error {
		if file, err := os.ReadFile(attribute); err == nil && bytes.Equal(file, before) {
			return fmt.Errorf("%s is still attached to %s", path, file)
		}
		return nil
	})
}

// eventually waits until f returns no error.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); ; <-ticker.C {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// clear removes all mounts and loop devices, by force.
func (b *base) clear() {
	b.Helper()
	for _, m := range b.mounts() {
		// A busy mount is reported when the disk is unmounted.
		_ = unix.Unmount(m, 0)
	}
	loops, err := loopsOf(b.dir)
	if err != nil {
		b.Fatal(err)
	}
	for name := range loops {
		devicetest.ClearLoop(b, name)
	}
	// A program that lists all devices may have one open briefly.
	eventually(b, func() error {
		if loops, err = loopsOf(b.dir); err != nil || len(loops) > 0 {
			return fmt.Errorf("still attached: %v, %v", loops, err)
		}
		return nil
	})
}

// mounts returns the mount points on the disk, the last first.
func (b *base) mounts() []string {
	b.Helper()
	var paths []string
	for _, m := range devicetest.Mounts(b, b.dir) {
		if m.Mountpoint != b.dir {
			paths = append(paths, m.Mountpoint)
		}
	}
	return paths
}

// leaks lists all storage that is left.
func (b *base) leaks() []string {
	b.Helper()
	var left []string
	for _, path := range b.mounts() {
		left = append(left, "something mounted at "+path)
	}
	loops, err := loopsOf(b.dir)
	if err != nil {
		b.Fatal(err)
	}
	for name, file := range loops {
		left = append(left, name+" attached to "+file)
	}
	for _, pattern := range []string{"storage/*/*/*", "storage/*/*/.*", "storage/*/snapshots/*/*", "storage/*/snapshots/*/.*", "imports/*", "srv", "filler"} {
		files, err := filepath.Glob(filepath.Join(b.dir, pattern))
		if err != nil {
			b.Fatal(err)
		}
		for _, file := range files {
			if filepath.Base(filepath.Dir(file)) != "snapshots" { // directories of the provider
				left = append(left, file)
			}
		}
	}
	return append(append(left, descriptorsIn(b.dir)...), children()...)
}

// checkLeaks checks that nothing is left. It waits a moment for programs that list
// devices.
func (b *base) checkLeaks() {
	b.Helper()
	eventually(b, func() error {
		if left := b.leaks(); len(left) > 0 {
			return fmt.Errorf("left behind:\n\t%s", strings.Join(left, "\n\t"))
		}
		return nil
	})
}

// descriptorsIn returns the files that this process has open in a directory, and its loop
// devices. Its children are checked separately.
func descriptorsIn(dir string) []string {
	var left []string
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		path, err := os.Readlink(link)
		if err == nil && (strings.HasPrefix(path, dir+"/") || strings.HasPrefix(path, "/dev/loop")) {
			left = append(left, link+" is "+path)
		}
	}
	return left
}

// children returns the processes below this one. It is the reaper of those whose parents
// died.
func children() []string {
	var left []string
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		pids, _ := os.ReadFile(list)
		for _, pid := range strings.Fields(string(pids)) {
			comm, _ := os.ReadFile("/proc/" + pid + "/comm")
			stat, _ := os.ReadFile("/proc/" + pid + "/stat")
			if _, rest, ok := strings.Cut(string(stat), ") "); ok && strings.HasPrefix(rest, "Z") {
				reap(pid)
				continue
			}
			left = append(left, "process "+pid+" "+strings.TrimSpace(string(comm)))
		}
	}
	return left
}

// reap waits for a dead process whose parent died before it.
func reap(pid string) {
	var n int
	if _, err := fmt.Sscan(pid, &n); err == nil {
		_, _ = unix.Wait4(n, nil, unix.WNOHANG, nil)
	}
}

// check checks a filesystem with its own program, without repairing it.
func check(t testing.TB, kind, device string) {
	t.Helper()
	switch kind {
	case "ext4":
		command(t, "fsck.ext4", "-f", "-n", device)
	case "xfs":
		command(t, "xfs_repair", "-n", device)
	case "btrfs":
		command(t, "btrfs", "check", "--readonly", "--force", device)
	}
}

func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	devicetest.RequireProgram(t, name)
	cmd := exec.Command(name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %q: %v: %s%s", name, args, err, &stdout, &stderr)
	}
	return strings.TrimSpace(stdout.String())
}
