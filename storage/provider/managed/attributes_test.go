package managed

import (
	"slices"
	"testing"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
)

// The attributes have the names that the vocabulary of storage gives them.
func TestAttributeNames(t *testing.T) {
	want := []string{
		storage.FilesystemTypeAttribute, storage.MkfsOptionsAttribute, storage.MountOptionsAttribute,
		storage.FilesystemUUIDAttribute, storage.CopiedAttribute,
	}
	if got := append(fsattr.OfPools(), fsattr.UUID, fsattr.Copied); !slices.Equal(got, want) {
		t.Errorf("the attributes are %q, want %q", got, want)
	}
}
