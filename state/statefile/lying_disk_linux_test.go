package statefile_test

import (
	"path/filepath"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/state/statefile"
)

// While XFS is shut down, it may report a successful sync.
// Fault F26.
func TestBackupAndRestoreReportLostSync(t *testing.T) {
	_, store := newState(t, 1)
	saved, _ := backup(t, store)
	for name, write := range map[string]func(path string) error{
		"backup": func(path string) error {
			_, err := statefile.Backup(t.Context(), store, path, identify, now)
			return err
		},
		"restore": func(path string) error {
			_, _, err := statefile.Restore(saved, path, identify, now, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			const most = 20
			for n := 1; n < most; n++ {
				disk := syscalltest.NewDisk(t)
				syncs, err := disk.FailIn(t, n, func() error { return write(filepath.Join(disk.Dir, "state.db")) })
				if syncs < n {
					if err != nil || n < 3 {
						t.Errorf("with a disk that does not fail, %d syncs: %v", syncs, err)
					}
					return
				}
				if !errors.Is(err, unix.EIO) {
					t.Errorf("the disk failed in sync %d: %v", n, err)
				}
			}
			t.Errorf("more than %d syncs", most)
		})
	}
}
