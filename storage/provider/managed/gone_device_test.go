//go:build linux

package managed

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// hideDevices hides all block devices from this process, as if they had been pulled. No
// device of this machine can be pulled.
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

func TestManagedDetachWithDeviceGone(t *testing.T) {
	if !devicetest.InOwnMounts(t) {
		return
	}
	for _, test := range []struct {
		name, fs string
		down     bool
		edit     func(*record)
	}{
		{"ext4", "ext4", false, nil},
		{"ext4 shut down", "ext4", true, nil},
		{"ext4 with an unknown device number", "ext4", true, func(r *record) { r.Device.Number = 0 }},
		{"xfs", "xfs", false, nil},
		{"xfs shut down", "xfs", true, nil},
		{"xfs with an unknown device number", "xfs", false, func(r *record) { r.Device.Number = 0 }},
		{"btrfs", "btrfs", false, nil},
		{"btrfs after an unrecorded restart", "btrfs", false, func(r *record) { r.Device.BootID = "another" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			devicetest.RequireProgram(t, "mkfs."+test.fs)
			mt := newManagedTest(t)
			mt.Loop(sourcetest.ManagedSizes[test.fs])
			mt.Create(test.fs)
			mt.Attach()
			mt.WriteData()
			unix.Sync()
			if test.edit != nil {
				mt.editRecord(test.edit)
			}
			if test.down {
				devicetest.ShutDown(mt.T, mt.Path())
			}
			show := mt.hideDevices()
			mt.CheckError(mt.TryDestroy(), false, test.fs, "is mounted at "+mt.Path(), "detach it first")
			mt.Detach()
			if n := mt.Mounts(); n != 0 {
				t.Errorf("%d mounts", n)
			}
			if rec := mt.record(); rec.MountPoint != "" {
				t.Errorf("got %+v", rec)
			}
			show()
			mt.Attach()
			mt.CheckData()
			mt.Detach()
		})
	}
}

// A foreign filesystem whose device is gone too is mounted in place of ours.
func TestManagedDetachKeepsForeignMountWithDeviceGone(t *testing.T) {
	if !devicetest.InOwnMounts(t) {
		return
	}
	forEachType(t, func(mt *managedTest, fs string) {
		mt.Loop(sourcetest.ManagedSizes[fs])
		mt.Create(fs)
		mt.Attach()
		mt.UnmountExternally()
		other := devicetest.NewLoop(mt, sourcetest.ManagedSizes[fs])
		sourcetest.Command(mt, "mkfs."+fs, "-q", other.Path)
		sourcetest.Command(mt, "mount", other.Path, mt.Path())
		show := mt.hideDevices()
		mt.Detach()
		if n := mt.Mounts(); n != 1 {
			mt.Errorf("%d mounts", n)
		}
		show()
		mt.UnmountExternally()
	})
}

func TestManagedDetachUnderForeignMountWithDeviceGone(t *testing.T) {
	if !devicetest.InOwnMounts(t) {
		return
	}
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	mt.Attach()
	sourcetest.Command(t, "mount", "-t", "tmpfs", "foreign", mt.Path())
	show := mt.hideDevices()
	mt.CheckError(mt.TryDetach(), false, "tmpfs from foreign is mounted over it")
	mt.editRecord(func(r *record) { r.Device.Number = 0 })
	mt.CheckError(mt.TryDetach(), false, "its device is gone", "something is mounted over", mt.Path())
	mt.UnmountExternally()
	mt.Detach()
	show()
}

// A device that refuses writes may accept them later.
func TestManagedDetachReportsWriteError(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	mt.Attach()
	mt.WriteData()
	devicetest.ShutDown(mt.T, mt.Path())
	for range 2 {
		mt.CheckError(mt.TryDetach(), false, "writing to "+loop.Path, mt.Path(), "unmount it by hand")
	}
	if n := mt.Mounts(); n != 1 {
		t.Errorf("%d mounts", n)
	}
	mt.UnmountExternally()
	mt.Detach()
	if _, err := os.Stat(filepath.Dir(mt.Path())); !os.IsNotExist(err) {
		t.Errorf("directories made for the mount are left: %v", err)
	}
}
