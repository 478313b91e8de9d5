package markfile_test

import (
	"path/filepath"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/state/markfile"
)

// While XFS is shut down, it may report a successful sync.
// Fault F26.
func TestWriteReportsLostSync(t *testing.T) {
	for name, syncs := range map[string]int{"first": 2, "next": 1} {
		t.Run(name, func(t *testing.T) {
			for n := 1; n <= syncs+1; n++ {
				disk := syscalltest.NewDisk(t)
				file := markfile.New(filepath.Join(disk.Dir, "mark"))
				if name == "next" {
					if err := file.Write(mark(1)); err != nil {
						t.Fatal(err)
					}
				}
				_, err := disk.FailIn(t, n, func() error { return file.Write(mark(2)) })
				if fails := n <= syncs; fails != errors.Is(err, unix.EIO) || !fails && err != nil {
					t.Errorf("the disk fails in sync %d of %d: %v", n, syncs, err)
				}
			}
		})
	}
}
