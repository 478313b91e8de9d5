//go:build linux

package managed

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// Fault F32.
func TestManagedCheckReportsChangedMounts(t *testing.T) {
	for fs, size := range sourcetest.ManagedSizes {
		t.Run(fs, func(t *testing.T) {
			mt := newManagedTest(t)
			mt.Loop(size)
			mt.Create(fs)
			mt.Attach()
			checkReports := func(words ...string) {
				t.Helper()
				sourcetest.CheckAttachmentState(t, mt.Source(), sourcetest.ManagedID, words...)
			}
			mount := func(source, fstype string, flags uintptr, data string) {
				t.Helper()
				if err := unix.Mount(source, mt.Path(), fstype, flags, data); err != nil {
					t.Fatal(err)
				}
			}
			checkReports()
			mount("over", "tmpfs", 0, "")
			checkReports("tmpfs from over is mounted over it at "+mt.Path(), "unmount that")
			mt.UnmountExternally()
			checkReports()
			// As the kernel does when it finds a damaged ext4.
			mount("", fs, unix.MS_REMOUNT|unix.MS_RDONLY, "")
			checkReports("it is read-only at "+mt.Path(), "attached read-write")
			mount("", fs, unix.MS_REMOUNT, "")
			checkReports()
			mt.UnmountExternally()
			checkReports("it was unmounted from "+mt.Path(), "attach it again")
			if n := mt.Mounts(); n != 0 {
				t.Errorf("the check mounted it: %d mounts", n)
			}
			mt.Attach()
			checkReports()
			mt.Detach()
		})
	}
}

// attachHere attaches the filesystem on the calling goroutine, whose system calls can be intercepted.
func (t *managedTest) attachHere() error {
	c, err := t.Source().(*source).begin(t.CallContext())
	if err != nil {
		return err
	}
	defer c.End()
	p := t.Attachment(false)
	devices, err := c.findDevices([]storage.FilesystemAttachmentParams{p})
	if err != nil {
		return err
	}
	_, err = c.attach(p, devices)
	return err
}

// A call fails once while a filesystem that is mounted is attached again. The agent does not
// forget that it has mounted the filesystem.
// Finding N34.
func TestManagedMountIDError(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	mt.Attach()
	failed := 0
	err := syscalltest.Intercept(t, []int{unix.SYS_STATX}, func(c syscalltest.Call) syscalltest.Result {
		if c.Args[3]&unix.STATX_MNT_ID_UNIQUE != 0 && c.Path() == mt.Path() {
			failed++
			return syscalltest.Fail(unix.EIO)
		}
		return syscalltest.Pass
	}, mt.attachHere)
	if failed == 0 {
		t.Skip("the kernel has no unique IDs of mounts")
	}
	mt.CheckError(err, false, "statx", "input/output error")
	mt.Attach()
	mt.Detach()
}

// A call fails once while btrfs that is mounted is attached again. It is not taken for another
// filesystem.
// Finding N37.
func TestManagedBtrfsDevicesError(t *testing.T) {
	for _, which := range []string{"/sys/fs/btrfs/", "/sys/devices/"} {
		mt := newManagedTest(t)
		mt.Loop(sourcetest.ManagedBtrfsSize)
		mt.Create("btrfs")
		mt.Attach()
		failed := 0
		err := syscalltest.Intercept(t, []int{unix.SYS_GETDENTS64, unix.SYS_READ}, func(c syscalltest.Call) syscalltest.Result {
			// The others are about the device, not about the filesystem.
			if path := c.Path(); failed == 0 && strings.HasPrefix(path, which) && (c.Number == unix.SYS_GETDENTS64 || strings.HasSuffix(path, "/dev")) {
				failed++
				return syscalltest.Fail(unix.EIO)
			}
			return syscalltest.Pass
		}, mt.attachHere)
		if failed == 0 {
			t.Errorf("nothing below %s was read", which)
		}
		if storage.IsPermanent(err) {
			t.Errorf("after a failed call below %s: %v", which, err)
		}
		mt.Attach()
		mt.Detach()
	}
}

// Errors that the kernel found are in the superblock until they are repaired.
// Fault F32.
func TestManagedCheckReportsDamagedExt4(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	mt.Attach()
	sourcetest.CheckAttachmentState(t, mt.Source(), sourcetest.ManagedID)
	trigger := filepath.Join("/sys/fs/ext4", loop.Name(), "trigger_fs_error")
	if err := os.WriteFile(trigger, []byte("test"), 0); err != nil {
		t.Fatal(err)
	}
	sourcetest.CheckAttachmentState(t, mt.Source(), sourcetest.ManagedID, "the kernel has found 1 errors in the ext4 on "+loop.Path, "e2fsck -f")
	mt.UnmountExternally()
	if out, err := exec.Command("e2fsck", "-f", "-y", loop.Path).CombinedOutput(); err != nil {
		t.Logf("e2fsck: %v\n%s", err, out) // it fails where it repaired something
	}
	mt.Attach()
	sourcetest.CheckAttachmentState(t, mt.Source(), sourcetest.ManagedID)
	mt.Detach()
}
