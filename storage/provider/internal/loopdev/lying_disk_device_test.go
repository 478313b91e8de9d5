//go:build linux

package loopdev

import (
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// A shut-down XFS may report success for a sync, although what was written to a device on
// its file is lost.
// Fault F26.
func TestDetachReportsLostWrites(t *testing.T) {
	disk := syscalltest.NewDisk(t)
	f, _ := backing(t, disk.Dir)
	defer f.Close()
	h := attach(t, f, false)
	defer devicetest.ClearLoop(t, h.Name())
	h.Close()
	syncs, err := disk.FailIn(t, 1, func() error { return Detach(t.Context(), h.Device) })
	if !errors.Is(err, unix.EIO) || syncs != 1 {
		t.Errorf("%d syncs: %v", syncs, err)
	}
}
