//go:build linux

package managed

import (
	"testing"

	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// managedTest is a storage directory, the block devices that the machine is known to
// have, and a place to mount.
type managedTest struct{ *sourcetest.ManagedTest }

func newManagedTest(t *testing.T) *managedTest {
	return &managedTest{sourcetest.NewManagedTest(t, NewSource)}
}
