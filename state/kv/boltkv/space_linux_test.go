package boltkv_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/looptest"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

// smallDisk mounts a new filesystem in a file.
func smallDisk(t *testing.T, mkfs ...string) (dir string) {
	t.Helper()
	return mountImage(t, newImage(t, mkfs...), strings.TrimPrefix(mkfs[0], "mkfs."))
}

// newImage makes a file with a new filesystem.
func newImage(t *testing.T, mkfs ...string) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 320<<20); err != nil {
		t.Fatal(err)
	}
	run(t, append(mkfs, image)...)
	return image
}

// run runs a command that must succeed.
func run(t *testing.T, command ...string) {
	t.Helper()
	require := t.Skip
	if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
		require = t.Fatal
	}
	if os.Geteuid() != 0 {
		require("needs root: it mounts a filesystem")
	}
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
		require("needs " + command[0])
	} else if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// mountImage mounts the filesystem in a file until the test ends.
func mountImage(t *testing.T, image, filesystem string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := looptest.Mount(image, dir, filesystem, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	})
	return dir
}

// fillDisk fills the disk with one file, and returns its path.
func fillDisk(t *testing.T, dir string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "filler")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// Written data may be counted only when it reaches the disk.
	for size, failed := 1<<20, 0; failed < 2; {
		if _, err = file.Write(make([]byte, size)); err == nil {
			failed = 0
			continue
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		if size > 512 {
			size /= 2
			continue
		}
		failed++
		if err := file.Sync(); err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes are available", fs.Bavail*uint64(fs.Bsize))
	return path
}

// The filesystems are full for root too. Removing still works, and adding is refused in
// time.
// Fault F22.
func TestFullDisk(t *testing.T) {
	for name, mkfs := range map[string][]string{
		"ext4":  {"mkfs.ext4", "-q", "-m", "0"},
		"xfs":   {"mkfs.xfs", "-q"},
		"btrfs": {"mkfs.btrfs", "-q"},
	} {
		if testing.Short() && name != "ext4" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			dir := smallDisk(t, mkfs...)
			path := filepath.Join(dir, "store")
			fill(t, path, 10_000)
			filler := fillDisk(t, dir)

			store := testRemoving(t, path)
			// The reserve is used until half of it is left.
			added := 0
			for {
				if err := store.CheckSpace(); err != nil {
					if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), path) {
						t.Errorf("CheckSpace on a full disk: %v", err)
					}
					t.Log(err)
					break
				}
				if added++; added > 10_000 {
					t.Fatal("CheckSpace never refuses")
				}
				err := store.Update(context.Background(), func(tx kv.Tx) error {
					return tx.Put(fmt.Sprint("added/", added), make([]byte, 3000))
				})
				if err != nil {
					t.Fatalf("adding after CheckSpace has succeeded %d times: %v", added, err)
				}
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}

			store = testRemoving(t, path)
			// A value that does not fit leaves the store unchanged.
			err := store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("huge", make([]byte, 20<<20)) })
			if !errors.Is(err, unix.ENOSPC) {
				t.Errorf("putting 20 MiB on a full disk: %v", err)
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}

			store = testRemoving(t, path)
			if err := store.CheckSpace(); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("CheckSpace on a full disk again: %v", err)
			}
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
			unix.Sync()
			if err := store.CheckSpace(); err != nil {
				t.Errorf("CheckSpace with free space: %v", err)
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// testRemoving opens the store, and does what must work without free space: many transactions
// change and remove keys, also while a snapshot keeps the removed ones. It returns the open
// store.
func testRemoving(t *testing.T, path string) *boltkv.Store {
	t.Helper()
	store, err := boltkv.OpenExisting(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	all, err := read(store)
	if err != nil {
		t.Fatal(err)
	}
	before, done := len(all), 0
	remove := func(n int) {
		for key, value := range all {
			if n--; n < 0 {
				break
			}
			err := store.Update(context.Background(), func(tx kv.Tx) error {
				return tx.Put(key, []byte(strings.ToUpper(value)))
			})
			if err == nil {
				err = store.Update(context.Background(), func(tx kv.Tx) error { return tx.Delete(key) })
			}
			if err != nil {
				t.Fatalf("after %d removals: %v", done, err)
			}
			delete(all, key)
			done++
		}
	}
	remove(60)
	err = store.View(context.Background(), func(kv.Snapshot) error {
		remove(10)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if after, err := read(store); err != nil || len(after) != before-done {
		t.Errorf("of %d keys %d were removed, and %d are left (%v)", before, done, len(after), err)
	}
	return store
}

// A commit that fails for lack of space makes bbolt read the whole file.
func TestFailedCommitFindsDamage(t *testing.T) {
	dir := smallDisk(t, "mkfs.ext4", "-q", "-m", "0")
	path := filepath.Join(dir, "store")
	fill(t, path, 10_000)
	store, err := boltkv.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	fillDisk(t, dir)
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for page := range int64(200) {
		if page > 2 && page%2 == 1 {
			if _, err := file.WriteAt(bytes.Repeat([]byte("x"), pageSize), page*pageSize); err != nil {
				t.Fatal(err)
			}
		}
	}
	err = store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("entity/9", make([]byte, 20<<20)) })
	if !errors.Is(err, boltkv.ErrDamaged) {
		t.Errorf("committing to a damaged file on a full disk: %v", err)
	}
}

// A failing disk is not reported as a damaged file.
func TestDiskFailureDuringTransactionFailsStore(t *testing.T) {
	dir := smallDisk(t, "mkfs.ext4", "-q")
	path := filepath.Join(dir, "state.db")
	store, err := boltkv.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	err = store.Update(context.Background(), func(tx kv.Tx) error {
		shutDown(t, dir)
		return tx.Put("entity/0", []byte("v"))
	})
	want := fmt.Sprintf("cannot read %s: input/output error; check its disk, then start again", path)
	if !errors.Is(err, boltkv.ErrUnreadable) || errors.Is(err, boltkv.ErrDamaged) || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// A new store is there after a power cut, even if nothing was put into it.
func TestPowerCutAfterCreation(t *testing.T) {
	image := newImage(t, "mkfs.ext4", "-q")
	dir := mountImage(t, image, "ext4")
	store, err := boltkv.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	shutDown(t, dir)
	store.Close()
	// Other mount namespaces may have the disk mounted as well, and then it stays shut down. So
	// the test mounts a copy.
	after := filepath.Join(t.TempDir(), "image")
	run(t, "cp", "--sparse=always", image, after)
	store, err = boltkv.OpenExisting(filepath.Join(mountImage(t, after, "ext4"), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	store.Close()
}

// shutDown makes the filesystem return EIO: EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH.
func shutDown(t *testing.T, dir string) {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	const shutdown, noLogFlush = 0x8004587d, 2
	if err := unix.IoctlSetPointerInt(int(d.Fd()), shutdown, noLogFlush); err != nil {
		t.Fatal(err)
	}
}
