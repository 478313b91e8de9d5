//go:build linux

package provider

import (
	"testing"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

type (
	filesystemTest = sourcetest.FilesystemTest
	loopTest       = sourcetest.LoopTest
	managedTest    = sourcetest.ManagedTest
)

func newFilesystemTest(t *testing.T, p storage.ProviderType) *filesystemTest {
	return sourcetest.NewFilesystemTest(t, p, commonProvider(t, p))
}

func newLoopTest(t *testing.T) *loopTest {
	return sourcetest.NewLoopTest(t, NewLoopProvider(LoopOptions{}), devicetest.Dir(t))
}

func newManagedTest(t *testing.T) *managedTest {
	return sourcetest.NewManagedTest(t, NewManagedFilesystemSource)
}
