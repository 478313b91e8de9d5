//go:build linux

package managed

import (
	"testing"

	"github.com/google/uuid"

	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// managedTest is a storage directory, the block devices that the machine is known to
// have, and a place to mount.
type managedTest struct {
	*sourcetest.ManagedTest
	// foreignUUID is for a filesystem that is not made here. It is the test's own: there
	// are others beside it, and mkfs.btrfs takes no UUID that a device has.
	foreignUUID string
}

func newManagedTest(t *testing.T) *managedTest {
	return &managedTest{sourcetest.NewManagedTest(t, NewSource), uuid.NewString()}
}
