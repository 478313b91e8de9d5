package fsync_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/internal/syscalltest"
)

// The kernel reports a successful sync, although its disk has just been shut down.
// Fault F26.
func TestLostSyncIsError(t *testing.T) {
	for name, sync := range map[string]func(f *os.File) error{
		"file": fsync.File,
		"data": fsync.Data,
		"dir":  func(f *os.File) error { return fsync.Dir(filepath.Dir(f.Name())) },
	} {
		t.Run(name, func(t *testing.T) {
			disk := syscalltest.NewDisk(t)
			f, err := os.Create(filepath.Join(disk.Dir, "file"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := sync(f); err != nil {
				t.Error(err)
			}
			if syncs, err := disk.FailIn(t, 1, func() error { return sync(f) }); !errors.Is(err, unix.EIO) || syncs != 1 {
				t.Errorf("%d syncs: %v", syncs, err)
			}
		})
	}
}
