//go:build linux

package syscalltest

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestIntercept(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	results := []Result{Pass, Fail(unix.EIO), Succeed, Pass}
	wants := []error{nil, unix.EIO, nil, nil}
	asked := 0
	decide := func(c Call) Result {
		asked++
		if c.N != asked || c.Number != unix.SYS_FSYNC || c.Path() != f.Name() {
			t.Errorf("decide call %d is for %+v, path %s", asked, c, c.Path())
		}
		return results[c.N-1]
	}
	err = Intercept(t, []int{unix.SYS_FDATASYNC, unix.SYS_FSYNC}, decide, func() error {
		for n, want := range wants {
			if err := unix.Fsync(int(f.Fd())); err != want {
				t.Errorf("call %d: %v, want %v", n+1, err, want)
			}
		}
		return unix.ENOTTY
	})
	if err != unix.ENOTTY || asked != len(results) {
		t.Errorf("%v after %d decide calls", err, asked)
	}
	if err := f.Sync(); err != nil || asked != len(results) {
		t.Errorf("afterwards: %v, and %d decide calls", err, asked)
	}
}
