//go:build linux

package fsuuid

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/looptest"
	"github.com/stowage-io/stowage/internal/superblock"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	devicetest.RequireProgram(t, name)
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

func mountAt(t *testing.T, device, fsType string) string {
	t.Helper()
	dir := devicetest.Dir(t)
	if err := unix.Mount(device, dir, fsType, 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = looptest.Unmount(dir) })
	return dir
}

func checkFile(t *testing.T, dir, want string) {
	t.Helper()
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != want {
		t.Errorf("read %q, %v, want %q", got, err, want)
	}
}

// whileNothingIsWritten calls do while the kernel writes nothing to a mounted filesystem, as in the moment of a
// snapshot. Ext4 and xfs are shut down, which leaves in their logs what is not in its place yet, and mounted again.
func whileNothingIsWritten(t *testing.T, device, dir, fsType string, do func()) {
	t.Helper()
	if fsType == "btrfs" { // it has no such request, and no log
		command(t, "fsfreeze", "--freeze", dir)
		defer command(t, "fsfreeze", "--unfreeze", dir)
		do()
		return
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	const shutdown = 0x8004587d // _IOR('X', 125, __u32)
	err = unix.IoctlSetPointerInt(int(f.Fd()), shutdown, unix.FS_SHUTDOWN_FLAGS_NOLOGFLUSH)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	do()
	if err := looptest.Unmount(dir); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(device, dir, fsType, 0, ""); err != nil {
		t.Fatal(err)
	}
}

// A copy of a filesystem that was in use gets its own UUID, and is mounted beside the original.
func TestSet(t *testing.T) {
	for fsType, size := range map[string]int64{"ext4": 64 << 20, "xfs": 320 << 20, "btrfs": 256 << 20} {
		t.Run(fsType, func(t *testing.T) {
			original := devicetest.NewLoop(t, size)
			command(t, "mkfs."+fsType, "-q", original.Path)
			dir := mountAt(t, original.Path, fsType)
			for _, name := range []string{"other", "file"} { // the log has something that is not in its place yet
				f, err := os.Create(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteString("data"); err != nil {
					t.Fatal(err)
				}
				if err := f.Sync(); err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
			file := filepath.Join(t.TempDir(), "copy")
			whileNothingIsWritten(t, original.Path, dir, fsType, func() { command(t, "cp", "--sparse=always", original.File, file) })
			device := devicetest.AttachLoop(t, file)
			dev, err := os.OpenFile(device.Path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			id := uuid.NewString()
			for range 2 {
				if err := Set(t.Context(), dev, fsType, id); err != nil {
					t.Fatal(err)
				}
			}
			if found, err := superblock.Read(dev); err != nil || found.UUID != id {
				t.Errorf("found %+v, %v, want UUID %s", found, err, id)
			}
			copied := mountAt(t, device.Path, fsType)
			checkFile(t, copied, "data")
			checkFile(t, dir, "data")
			if err := os.WriteFile(filepath.Join(copied, "file"), []byte("changed"), 0o600); err != nil {
				t.Error(err)
			}
			checkFile(t, dir, "data")
			for _, dir := range []string{copied, dir} {
				if err := looptest.Unmount(dir); err != nil {
					t.Error(err)
				}
			}
			for _, path := range []string{original.Path, device.Path} {
				switch fsType {
				case "ext4":
					command(t, "fsck.ext4", "-f", "-n", path)
				case "xfs":
					command(t, "xfs_repair", "-n", path)
				case "btrfs":
					command(t, "btrfs", "check", "--readonly", path)
				}
			}
		})
	}
}

func TestSetRefusals(t *testing.T) {
	device := devicetest.NewLoop(t, 64<<20)
	dev, err := os.OpenFile(device.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := Set(t.Context(), dev, "vfat", uuid.NewString()); !errors.Is(err, errors.NotSupported) {
		t.Errorf("another type: %v", err)
	}
	if err := Set(t.Context(), dev, "ext4", "x; rm"); !errors.Is(err, errors.NotValid) {
		t.Errorf("an invalid UUID: %v", err)
	}
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		if err := Set(t.Context(), dev, fsType, uuid.NewString()); err == nil {
			t.Errorf("set the UUID of the %s on a blank device", fsType)
		}
	}
}
