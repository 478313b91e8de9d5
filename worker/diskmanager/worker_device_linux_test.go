package diskmanager

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/internal/looptest"
	"github.com/stowage-io/stowage/internal/superblock/superblocktest"
	"github.com/stowage-io/stowage/storage"
)

// needRoot skips a test that needs root, or fails it where root was promised.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
		t.Fatal("attaching loop devices needs root, which STOWAGE_REQUIRE_ROOT=1 promises")
	}
	t.Skip("attaching loop devices needs root")
}

// published passes on what the worker publishes.
type published chan []storage.BlockDevice

func (p published) SetMachineBlockDevices(devices []storage.BlockDevice) error {
	p <- devices
	return nil
}

// waitFor reads published lists until one agrees.
func (p published) waitFor(t *testing.T, what string, agrees func([]storage.BlockDevice) bool) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case devices := <-p:
			if agrees(devices) {
				return
			}
		case <-timeout:
			t.Fatalf("not published in 20 s: %s", what)
		}
	}
}

func TestLoopDeviceLifecycle(t *testing.T) {
	needRoot(t)
	defer leaktest.VerifyNone(t)

	lists := make(published, 1000)
	w, err := New(Config{Publisher: lists, PollInterval: time.Hour}) // only events can report a change
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		w.Kill()
		if err := w.Wait(); err != nil {
			t.Errorf("killed worker ended with %v", err)
		}
	}()
	lists.waitFor(t, "a first list", func([]storage.BlockDevice) bool { return true })

	file := filepath.Join(t.TempDir(), "volume")
	if err := os.WriteFile(file, make([]byte, 20<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("loop@%d:%d/%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	find := func(devices []storage.BlockDevice) *storage.BlockDevice {
		i := slices.IndexFunc(devices, func(d storage.BlockDevice) bool { return d.BusAddress == address })
		if i < 0 {
			return nil
		}
		return &devices[i]
	}

	name, detach := attachLoop(t, file)
	lists.waitFor(t, "the attached loop device", func(devices []storage.BlockDevice) bool {
		d := find(devices)
		return d != nil && d.DeviceName == name && d.Size == 20 && d.FilesystemType == "" && !d.InUse
	})

	mkfs := exec.Command("mke2fs", "-q", "-F", "-t", "ext4", "-L", "data", "-U", superblocktest.UUID, "/dev/"+name)
	if out, err := mkfs.CombinedOutput(); err != nil {
		t.Fatalf("mke2fs: %v\n%s", err, out)
	}
	w.Rescan()
	lists.waitFor(t, "the filesystem", func(devices []storage.BlockDevice) bool {
		d := find(devices)
		return d != nil && d.FilesystemType == "ext4" && d.UUID == superblocktest.UUID && d.Label == "data"
	})

	mountPoint := t.TempDir()
	if err := unix.Mount("/dev/"+name, mountPoint, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(mountPoint, unix.MNT_DETACH)
	w.Rescan()
	lists.waitFor(t, "the mount", func(devices []storage.BlockDevice) bool {
		d := find(devices)
		return d != nil && d.InUse && d.MountPoint == mountPoint
	})
	if err := unix.Unmount(mountPoint, 0); err != nil {
		t.Fatal(err)
	}

	detach()
	lists.waitFor(t, "the detached loop device's absence", func(devices []storage.BlockDevice) bool {
		return find(devices) == nil
	})
}

// Each open of the device fails at first, and no event says that it no longer would.
func TestDeviceFoundAfterFailedOpens(t *testing.T) {
	needRoot(t)
	defer leaktest.VerifyNone(t)
	file, find := backingFile(t, 4)
	name, _ := attachLoop(t, file)
	lister, failures := newSysfsLister(), 3
	defer lister.Close()
	lister.open = func(device, number string) (node, error) {
		if device == name && failures > 0 {
			failures--
			return nil, unix.EMFILE
		}
		return openNode(device, number)
	}
	lists := make(published, 1000)
	w, err := New(Config{Publisher: lists, Lister: lister, Events: silence, PollInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		w.Kill()
		if err := w.Wait(); err != nil {
			t.Errorf("killed worker ended with %v", err)
		}
	}()
	lists.waitFor(t, "the device", func(devices []storage.BlockDevice) bool { return find(devices) != nil })
}

// countingFS counts how often the table of mounts is opened.
type countingFS struct {
	fs.FS
	tables int
}

// Open implements [fs.FS].
func (c *countingFS) Open(name string) (fs.File, error) {
	if name == "proc/self/mountinfo" {
		c.tables++
	}
	return c.FS.Open(name)
}

// TestMountsAreReadAfterChanges changes devices and mounts in turn.
func TestMountsAreReadAfterChanges(t *testing.T) {
	needRoot(t)
	lister := newSysfsLister()
	defer lister.Close()
	root := &countingFS{FS: lister.usage.root}
	lister.usage.root = root
	list := func(hint Hint) (reads int) {
		t.Helper()
		before := root.tables
		if _, err := lister.BlockDevices(hint); err != nil {
			t.Fatal(err)
		}
		return root.tables - before
	}
	// A program in the same namespace may mount something at any time.
	for n := 0; list(Hint{Disks: []string{"loop0"}}) > 0; n++ {
		if n == 100 {
			t.Fatal("the table is read after each change of a device")
		}
	}
	mountPoint := t.TempDir()
	if err := unix.Mount("test", mountPoint, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if list(Hint{}) == 0 {
		t.Error("the table is not read after a mount")
	}
	if err := unix.Unmount(mountPoint, 0); err != nil {
		t.Fatal(err)
	}
	if list(Hint{}) == 0 {
		t.Error("the table is not read after an unmount")
	}
	if list(Hint{All: true}) == 0 {
		t.Error("the table is not read by a full listing")
	}
}

// TestOverflowIsReported fills the socket's buffer without reading it.
func TestOverflowIsReported(t *testing.T) {
	needRoot(t)
	file := filepath.Join(t.TempDir(), "volume")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	name, _ := attachLoop(t, file)
	const smallest = 1
	events, err := openUevents(smallest)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	giveUp := time.AfterFunc(20*time.Second, func() { events.Close() })
	defer giveUp.Stop()
	for range 100 {
		if err := os.WriteFile("/sys/block/"+name+"/uevent", []byte("change"), 0); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 {
		hint, err := events.Next()
		if err != nil {
			t.Fatal(err)
		}
		if hint.All {
			return
		}
	}
	t.Error("100 events into the smallest buffer, and no hint that any was lost")
}

func TestCloseEndsNext(t *testing.T) {
	defer leaktest.VerifyNone(t)
	events, err := KernelEvents()
	if err != nil {
		t.Skipf("no kernel events here: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := events.Next(); err != nil {
				return
			}
		}
	}()
	if err := events.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
}

// attachLoop attaches a loop device to the file and returns its name and a function that
// detaches it. The end of the test detaches it too.
func attachLoop(t *testing.T, file string) (name string, detach func()) {
	t.Helper()
	device, err := looptest.Attach(file)
	if err != nil {
		t.Fatal(err)
	}
	detach = sync.OnceFunc(func() {
		if err := looptest.Detach(device); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(detach)
	return filepath.Base(device), detach
}
