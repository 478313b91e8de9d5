//go:build linux

package rootfs

import (
	"testing"

	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// filesystemTest is a storage directory with one filesystem of this provider.
type filesystemTest struct{ sourcetest.FilesystemTest }

func newFilesystemTest(t *testing.T) *filesystemTest {
	return &filesystemTest{*sourcetest.NewFilesystemTest(t, ProviderType, NewProvider(Options{}))}
}
