//go:build linux

package managed

import (
	"testing"

	"github.com/google/uuid"

	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// managedTest is a storage directory, the block devices that the machine knows, and a
// place to mount.
type managedTest struct {
	*sourcetest.ManagedTest
	// foreignUUID is for a filesystem that somebody else made. Each test has another one,
	// as tests run concurrently, and mkfs.btrfs refuses a UUID that a device has.
	foreignUUID string
}

func newManagedTest(t *testing.T) *managedTest {
	return &managedTest{sourcetest.NewManagedTest(t, NewSource), uuid.NewString()}
}
