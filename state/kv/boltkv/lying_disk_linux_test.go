package boltkv_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

// While XFS is shut down, it may report a successful sync.
// Fault F26.
func TestUpdateReportsLostSync(t *testing.T) {
	failInEachSync(t, func(t *testing.T, path string, inSync func(func() error) error) error {
		store, err := boltkv.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		return inSync(func() error {
			return store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("key", []byte("value")) })
		})
	})
}

func TestOpenNewStoreReportsLostSync(t *testing.T) {
	failInEachSync(t, func(t *testing.T, path string, inSync func(func() error) error) error {
		return inSync(func() error {
			store, err := boltkv.Open(path)
			if err == nil {
				store.Close()
			}
			return err
		})
	})
}

// failInEachSync runs test with a disk that fails in the first sync of what test gives to
// inSync, in the second, and so on until there are no more.
func failInEachSync(t *testing.T, test func(t *testing.T, path string, inSync func(func() error) error) error) {
	t.Helper()
	const most = 20
	for n := 1; n < most; n++ {
		disk := syscalltest.NewDisk(t)
		syncs := 0
		err := test(t, filepath.Join(disk.Dir, "store"), func(f func() error) (err error) {
			syncs, err = disk.FailIn(t, n, f)
			return err
		})
		failed := errors.Is(err, unix.EIO) || errors.Is(err, boltkv.ErrUnreadable)
		if syncs < n {
			if err != nil || n < 3 {
				t.Errorf("with a disk that does not fail, %d syncs: %v", syncs, err)
			}
			return
		}
		if !failed {
			t.Errorf("the disk failed in sync %d: %v", n, err)
		}
	}
	t.Errorf("more than %d syncs", most)
}
