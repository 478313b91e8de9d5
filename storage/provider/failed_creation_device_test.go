//go:build linux

package provider

import (
	"testing"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// Creation fails at each of its steps in turn. Nothing is left once the filesystem is
// removed.
// Fault F30.
func TestFailedCreationLeavesNothing(t *testing.T) {
	for _, p := range []storage.ProviderType{TmpfsProviderType, RootfsProviderType} {
		t.Run(string(p), func(t *testing.T) {
			sourcetest.CheckFailedCreations(t, syscalltest.FailSome, func(t *testing.T) sourcetest.Failing {
				ft := newFilesystemTest(t, p)
				remove := func(*testing.T) {
					ft.Restart()
					ft.Create()
					ft.Destroy()
				}
				remove(t)
				return sourcetest.Failing{
					Dir: ft.Dir,
					Create: func() error {
						results, err := ft.Source.CreateFilesystems(ft.Ctx, []storage.FilesystemParams{{
							Tag: sourcetest.FilesystemTag, Size: sourcetest.FilesystemSize, Provider: p,
						}})
						if err != nil {
							return err
						}
						return results[0].Error
					},
					Remove: remove,
				}
			})
		})
	}
}
