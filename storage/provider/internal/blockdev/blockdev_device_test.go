//go:build linux

package blockdev_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

func open(t *testing.T, path string) *blockdev.Device {
	t.Helper()
	d, err := blockdev.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestOpenResolvesSymlink(t *testing.T) {
	loop := devicetest.NewLoop(t, 3<<20)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(loop.Path, link); err != nil {
		t.Fatal(err)
	}
	d := open(t, link)
	if d.Path() != loop.Path || d.Size != 3<<20 {
		t.Errorf("got %s of %d bytes, want %s", d.Path(), d.Size, loop.Path)
	}
}

// A shut-down XFS may report success for a sync, although what was written to a device on
// its file is lost.
// Fault F26.
func TestSyncReportsLostWrites(t *testing.T) {
	disk := syscalltest.NewDisk(t)
	file := filepath.Join(disk.Dir, "file")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	loop := devicetest.AttachLoop(t, file)
	d, err := blockdev.Open(loop.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		t.Error(err)
	}
	if syncs, err := disk.FailIn(t, 1, d.Sync); !errors.Is(err, unix.EIO) || syncs != 1 {
		t.Errorf("%d syncs: %v", syncs, err)
	}
}

func TestOpenRefusesNonBlockDevice(t *testing.T) {
	for _, path := range []string{t.TempDir(), "/dev/null"} {
		if _, err := blockdev.Open(path); !errors.Is(err, errors.NotValid) {
			t.Errorf("%s: got %v", path, err)
		}
	}
	if _, err := blockdev.Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestIdentity(t *testing.T) {
	loop := devicetest.NewLoop(t, 1<<20)
	other := devicetest.NewLoop(t, 1<<20)
	before := open(t, loop.Path).Identity
	if !before.Proves(open(t, loop.Path).Identity) {
		t.Error("the identity of a device does not prove itself")
	}
	if before.Proves(open(t, other.Path).Identity) {
		t.Error("the identity of one device proves another")
	}
	// After a reboot the file has another device.
	after := open(t, loop.Path).Identity
	after.BootID, after.DiskSeq = "another", 1
	if !before.Proves(after) {
		t.Error("the identity does not prove the device after a reboot")
	}
	after.Offset = 1 << 20
	if before.Proves(after) {
		t.Error("the identity proves a device of another part of the file")
	}
	if (blockdev.Identity{}).Proves(blockdev.Identity{}) {
		t.Error("an empty identity proves another empty one")
	}
}

func TestLockIsExclusive(t *testing.T) {
	loop := devicetest.NewLoop(t, 1<<20)
	first, second := open(t, loop.Path), open(t, loop.Path)
	if err := first.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := second.Lock(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := first.Unlock(); err != nil {
		t.Fatal(err)
	}
	if err := second.Lock(t.Context()); err != nil {
		t.Error(err)
	}
}

// A child process that has the device keeps the claim, after the process that claimed it
// is gone.
func TestClaimHeldByChildProcess(t *testing.T) {
	loop := devicetest.NewLoop(t, 1<<20)
	first, second := open(t, loop.Path), open(t, loop.Path)
	if err := first.Claim(); err != nil {
		t.Fatal(err)
	}
	program := exec.Command("cat")
	program.ExtraFiles = []*os.File{first.File}
	stdin, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	first.Close()
	if err := second.Claim(); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("got %v", err)
	}
	stdin.Close()
	if err := program.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := second.Claim(); err != nil {
		t.Error(err)
	}
	third := open(t, loop.Path)
	if err := third.Claim(); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("got %v", err)
	}
	second.Disclaim()
	if err := third.Claim(); err != nil {
		t.Error(err)
	}
}

func TestCheckFree(t *testing.T) {
	loop := devicetest.NewLoop(t, 1<<20)
	d := open(t, loop.Path)
	if err := d.CheckFree(); err != nil {
		t.Errorf("got %v", err)
	}
	fd, err := unix.Open(loop.Path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := d.CheckFree(); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("got %v", err)
	}
}

func TestFindUUIDs(t *testing.T) {
	const size = 4 << 20
	// The same test may run concurrently.
	single, double, absent := uuid.NewString(), uuid.NewString(), uuid.NewString()
	var paths []string
	for _, id := range []string{single, double, double} {
		loop := devicetest.NewLoop(t, size)
		if out, err := exec.Command("mkfs.ext4", "-q", "-U", id, loop.Path).CombinedOutput(); err != nil {
			t.Fatalf("mkfs.ext4: %v: %s", err, out)
		}
		paths = append(paths, loop.Path)
	}
	found, silent, err := blockdev.FindUUIDs(t.Context(), []string{single, double, absent}, size, nil)
	if err != nil || len(silent) > 0 {
		t.Fatal(silent, err)
	}
	slices.Sort(paths[1:])
	if !slices.Equal(found[single], paths[:1]) || !slices.Equal(found[double], paths[1:]) || found[absent] != nil {
		t.Errorf("got %v, want %v", found, paths)
	}
	found, _, err = blockdev.FindUUIDs(t.Context(), []string{single}, size+512, nil)
	if err != nil || len(found) != 0 {
		t.Errorf("among larger devices: got %v, %v", found, err)
	}
}
