//go:build linux

package mkfs_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/mkfs"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// checkers are the commands that check filesystems, by type.
var checkers = map[string][]string{
	"ext4":  {"fsck.ext4", "-f", "-n"},
	"xfs":   {"xfs_repair", "-n"},
	"btrfs": {"btrfs", "check", "--readonly", "--force"},
}

// Each type can be made on its smallest device. The filesystem has the given UUID and
// passes the check of its own program.
func TestMakeOnTheSmallestDevice(t *testing.T) {
	for name, check := range checkers {
		t.Run(name, func(t *testing.T) {
			kind, err := mkfs.Parse(name)
			if err != nil {
				t.Fatal(err)
			}
			devicetest.RequireProgram(t, "mkfs."+name)
			loop := devicetest.NewLoop(t, int64(kind.MinSize)<<20)
			f, err := os.Open(loop.Path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			id := uuid.NewString() // mkfs.btrfs refuses a UUID that another device has
			if err := kind.Make(t.Context(), f, id, nil); err != nil {
				t.Fatal(err)
			}
			found, err := signature.ReadSuperblock(f)
			if err != nil || found != (signature.Signature{Type: name, UUID: id}) {
				t.Errorf("got %+v, %v", found, err)
			}
			if out, err := exec.Command(check[0], append(check[1:], loop.Path)...).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", check[0], err, out)
			}
		})
	}
}

// After a failed attempt a filesystem is made again with the same UUID.
func TestMakeAgainWithTheSameUUID(t *testing.T) {
	for _, kind := range mkfs.Types() {
		t.Run(kind.Name, func(t *testing.T) {
			devicetest.RequireProgram(t, "mkfs."+kind.Name)
			f, err := os.Open(devicetest.NewLoop(t, int64(kind.MinSize)<<20).Path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			id := uuid.NewString()
			for range 2 {
				if err := kind.Make(t.Context(), f, id, nil); err != nil {
					t.Fatal(err)
				}
			}
			found, err := signature.ReadSuperblock(f)
			if err != nil || found != (signature.Signature{Type: kind.Name, UUID: id}) {
				t.Errorf("got %+v, %v", found, err)
			}
		})
	}
}

// mkfs.btrfs once failed while any loop device was mounted whose file could not be read.
func TestMakeWithDeadDiskMounted(t *testing.T) {
	disk := devicetest.NewDisk(t, 300<<20, "mkfs.xfs", "-q")
	file := filepath.Join(disk.Dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 16<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", file).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	dir := t.TempDir()
	if err := unix.Mount(devicetest.AttachLoop(t, file).Path, dir, "ext4", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	devicetest.ShutDown(t, disk.Dir)
	if _, err := os.Stat(file); !errors.Is(err, unix.EIO) {
		t.Fatalf("the disk is not dead: %v", err)
	}
	for _, kind := range mkfs.Types() {
		t.Run(kind.Name, func(t *testing.T) {
			devicetest.RequireProgram(t, "mkfs."+kind.Name)
			f, err := os.Open(devicetest.NewLoop(t, int64(kind.MinSize)<<20).Path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := kind.Make(t.Context(), f, uuid.NewString(), nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// Each option, with each of its values or the limits of its range, makes a filesystem on
// the smallest device that it allows.
func TestMakeWithEachOption(t *testing.T) {
	needs := map[string]string{"xfs stripe-unit": ",stripe-width=2", "xfs stripe-width": ",stripe-unit=4k"}
	for _, kind := range mkfs.Types() {
		t.Run(kind.Name, func(t *testing.T) {
			devicetest.RequireProgram(t, "mkfs."+kind.Name)
			for _, option := range kind.Options() {
				for _, value := range option.Values.Examples() {
					id := uuid.NewString() // mkfs.btrfs refuses a UUID that it has seen
					text := option.Key + "=" + value + needs[kind.Name+" "+option.Key]
					chosen, err := kind.ParseOptions(text)
					if err != nil {
						t.Error(err)
						continue
					}
					size := kind.MinSize
					for kind.CheckSize(size, chosen) != nil {
						size++
					}
					loop := devicetest.NewLoop(t, int64(size)<<20)
					f, err := os.Open(loop.Path)
					if err != nil {
						t.Fatal(err)
					}
					if err := kind.Make(t.Context(), f, id, chosen); err != nil {
						t.Errorf("%s: %v", text, err)
					}
					found, err := signature.ReadSuperblock(f)
					if err != nil || found != (signature.Signature{Type: kind.Name, UUID: id}) {
						t.Errorf("%s: got %+v, %v", text, found, err)
					}
					f.Close()
					check := checkers[kind.Name]
					if out, err := exec.Command(check[0], append(check[1:], loop.Path)...).CombinedOutput(); err != nil {
						t.Errorf("%s: %s: %v: %s", text, check[0], err, out)
					}
					loop.Detach(t)
				}
			}
		})
	}
}
