//go:build linux

package extents

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

const mib = 1 << 20

// newFile makes a file of 8 MiB with data in all but the second MiB.
func newFile(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for at := range int64(8) {
		if at == 1 {
			continue
		}
		data := make([]byte, mib)
		data[0] = byte(at + 1)
		if _, err := f.WriteAt(data, at*mib); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return f
}

// check checks what Find reports missing in the first 10 MiB of a file.
func check(t *testing.T, f *os.File, want Missing) {
	t.Helper()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if got, err := Find(f, 10*mib); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func TestFindAndAllocate(t *testing.T) {
	for _, mkfs := range [][]string{{"mkfs.ext4", "-q"}, {"mkfs.xfs", "-q"}, {"mkfs.btrfs", "-q"}} {
		t.Run(mkfs[0], func(t *testing.T) {
			f := newFile(t, devicetest.NewDisk(t, 320*mib, mkfs...).Dir)
			// Blocks beyond the end of the file do not make it longer.
			if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 8*mib, 2*mib); err != nil {
				t.Fatal(err)
			}
			want := Missing{Holes: []Range{{mib, 2 * mib}, {8 * mib, 10 * mib}}}
			check(t, f, want)
			if want.Len() != 3*mib || want.SharedLen() != 0 {
				t.Errorf("%d bytes missing, %d shared", want.Len(), want.SharedLen())
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := Allocate(ctx, f, want.Holes[0]); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
			for _, hole := range want.Holes {
				if err := Allocate(t.Context(), f, hole); err != nil {
					t.Error(err)
				}
			}
			check(t, f, Missing{})
		})
	}
}

// Of a copy by reference, XFS can make a file with blocks of its own.
func TestUnshare(t *testing.T) {
	for _, mkfs := range [][]string{{"mkfs.xfs", "-q"}, {"mkfs.btrfs", "-q"}} {
		t.Run(mkfs[0], func(t *testing.T) {
			dir := devicetest.NewDisk(t, 320*mib, mkfs...).Dir
			f := newFile(t, dir)
			if out, err := exec.Command("cp", "--reflink=always", f.Name(), filepath.Join(dir, "copy")).CombinedOutput(); err != nil {
				t.Fatalf("cp: %v: %s", err, out)
			}
			shared := Missing{
				Holes:  []Range{{mib, 2 * mib}, {8 * mib, 10 * mib}},
				Shared: []Range{{0, mib}, {2 * mib, 8 * mib}},
			}
			check(t, f, shared)
			if shared.Len() != 10*mib || shared.SharedLen() != 7*mib {
				t.Errorf("%d bytes missing, %d shared", shared.Len(), shared.SharedLen())
			}
			if mkfs[0] == "mkfs.btrfs" {
				if err := Unshare(t.Context(), f, shared.Shared[0]); !errors.Is(err, unix.EOPNOTSUPP) {
					t.Errorf("unsharing on btrfs: %v", err)
				}
				return
			}
			// First a part, and then, as after an interruption, the rest that Find reports.
			if err := Unshare(t.Context(), f, Range{0, 3 * mib}); err != nil {
				t.Fatal(err)
			}
			rest, err := Find(f, 8*mib)
			if want := []Range{{3 * mib, 8 * mib}}; err != nil || !reflect.DeepEqual(rest.Shared, want) {
				t.Fatalf("%+v, %v; want %+v", rest.Shared, err, want)
			}
			if err := Unshare(t.Context(), f, rest.Shared[0]); err != nil {
				t.Fatal(err)
			}
			if rest, err := Find(f, 8*mib); err != nil || rest.SharedLen() != 0 {
				t.Errorf("%+v, %v", rest, err)
			}
			data := make([]byte, 1)
			for at := range int64(8) {
				if _, err := f.ReadAt(data, at*mib); err != nil || at != 1 && data[0] != byte(at+1) {
					t.Errorf("MiB %d begins with %d, %v", at, data[0], err)
				}
			}
		})
	}
}

// The file has more extents than one call returns.
func TestManyExtents(t *testing.T) {
	dir := devicetest.NewDisk(t, 64*mib, "mkfs.ext4", "-q").Dir
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var want Missing
	const block = 4096
	for n := range uint64(1000) {
		if err := unix.Fallocate(int(f.Fd()), 0, int64(2*n*block), block); err != nil {
			t.Fatal(err)
		}
		want.Holes = append(want.Holes, Range{(2*n + 1) * block, (2*n + 2) * block})
	}
	if got, err := Find(f, 2000*block); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%d holes, %v; want %d", len(got.Holes), err, len(want.Holes))
	}
}

func TestFindNotSupported(t *testing.T) {
	dir := devicetest.Dir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(mib); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(f, mib); !errors.Is(err, errors.NotSupported) {
		t.Errorf("%v", err)
	}
}
