//go:build linux

package provider

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// inOwnMounts runs the test that calls it in a process with mounts of its own, where
// it may hide what it likes from itself, and reports whether this is that process.
func inOwnMounts(t *testing.T) bool {
	t.Helper()
	const inside = "STOWAGE_TEST_OWN_MOUNTS"
	if os.Getenv(inside) == t.Name() {
		return true
	}
	devicetest.RequireRoot(t)
	devicetest.RequireProgram(t, "unshare")
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	return false
}

// hideDevices makes this process see no block device by its number, as if all had
// been pulled. No device of this machine can be.
func (t *managedTest) hideDevices() (show func()) {
	t.Helper()
	const devices = "/sys/dev/block"
	if err := unix.Mount("hidden", devices, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	hidden := true
	show = func() {
		if hidden {
			hidden = false
			if err := unix.Unmount(devices, 0); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(show)
	return show
}

// shutDown does to a mounted filesystem what the kernel does when its device is
// pulled.
func (t *managedTest) shutDown() {
	t.Helper()
	dir, err := os.Open(t.path())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	const goingDown, noLogFlush = 0x8004587d, 2 // FS_IOC_GOINGDOWN, which is EXT4_IOC_SHUTDOWN too
	if err := unix.IoctlSetPointerInt(int(dir.Fd()), goingDown, noLogFlush); err != nil {
		t.Fatal(err)
	}
}

func TestManagedWhoseDeviceIsGoneIsDetached(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	for _, test := range []struct {
		name, fs string
		down     bool
		edit     func(*managedRecord)
	}{
		{"ext4", "ext4", false, nil},
		{"ext4 shut down", "ext4", true, nil},
		{"ext4, of which the number is not known", "ext4", true, func(r *managedRecord) { r.Device.Number = 0 }},
		{"xfs", "xfs", false, nil},
		{"xfs shut down", "xfs", true, nil},
		{"xfs, of which the number is not known", "xfs", false, func(r *managedRecord) { r.Device.Number = 0 }},
		{"btrfs", "btrfs", false, nil},
		{"btrfs after a restart that the record does not know of", "btrfs", false, func(r *managedRecord) { r.Device.BootID = "another" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			devicetest.RequireProgram(t, "mkfs."+test.fs)
			mt := newManagedTest(t)
			mt.loop(managedSizes[test.fs])
			mt.create(test.fs)
			mt.attach()
			mt.writeData()
			unix.Sync()
			if test.edit != nil {
				mt.editRecord(test.edit)
			}
			if test.down {
				mt.shutDown()
			}
			show := mt.hideDevices()
			mt.checkError(mt.tryDestroy(), false, test.fs, "is mounted at "+mt.path(), "detach it first")
			mt.detach()
			if n := mt.mounts(); n != 0 {
				t.Errorf("mounted %d times", n)
			}
			if rec := mt.record(); rec.MountPoint != "" {
				t.Errorf("got %+v", rec)
			}
			show()
			mt.attach()
			mt.checkData()
			mt.detach()
		})
	}
}

// What is mounted where the filesystem was, and has lost its device too, is not it.
func TestManagedDetachTouchesNoForeignMountWhoseDeviceIsGone(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	forEachType(t, func(mt *managedTest, fs string) {
		mt.loop(managedSizes[fs])
		mt.create(fs)
		mt.attach()
		mt.unmountBehindOurBack()
		other := devicetest.NewLoop(mt, managedSizes[fs])
		command(mt, "mkfs."+fs, "-q", other.Path)
		command(mt, "mount", other.Path, mt.path())
		show := mt.hideDevices()
		mt.detach()
		if n := mt.mounts(); n != 1 {
			mt.Errorf("mounted %d times", n)
		}
		show()
		mt.unmountBehindOurBack()
	})
}

func TestManagedWhoseDeviceIsGoneIsNotReachedBeneathAForeignMount(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	mt := newManagedTest(t)
	mt.loop(managedExt4Size)
	mt.create("ext4")
	mt.attach()
	command(t, "mount", "-t", "tmpfs", "foreign", mt.path())
	show := mt.hideDevices()
	mt.checkError(mt.tryDetach(), false, "tmpfs from foreign is mounted over it")
	mt.editRecord(func(r *managedRecord) { r.Device.Number = 0 })
	mt.checkError(mt.tryDetach(), false, "its device is gone", "something is mounted over", mt.path())
	mt.unmountBehindOurBack()
	mt.detach()
	show()
}

// A device that is there, and does not take what is written, may take it later.
func TestManagedDetachTellsWhatCannotBeWritten(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.loop(managedExt4Size)
	mt.create("ext4")
	mt.attach()
	mt.writeData()
	mt.shutDown()
	for range 2 {
		mt.checkError(mt.tryDetach(), false, "writing to "+loop.Path, mt.path(), "unmount it by hand")
	}
	if n := mt.mounts(); n != 1 {
		t.Errorf("mounted %d times", n)
	}
	mt.unmountBehindOurBack()
	mt.detach()
	if _, err := os.Stat(filepath.Dir(mt.path())); !os.IsNotExist(err) {
		t.Errorf("the directories that were made for the mount are still there: %v", err)
	}
}
