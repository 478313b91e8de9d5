package provider

import (
	"path/filepath"

	"github.com/stowage-io/stowage/storage/provider/loop"
)

// Contents describes what was recognised in a file.
type Contents struct {
	// Size is the size of the file, in bytes.
	Size uint64

	// Filesystem is the type of the filesystem at the start of the file, such as "ext4", and
	// UUID is its UUID. Both are empty if no filesystem was recognised there.
	Filesystem, UUID string
}

// LoopVolumePath returns the path at which a loop provider with that storage directory keeps
// the file of a volume.
func LoopVolumePath(storageDir, volumeId string) string {
	return filepath.Join(storageDir, "volumes", volumeId)
}

// LoopIsThin reports whether a loop volume of a pool with these attributes is thin: it takes
// space as it is written. A volume that is not thin has all its space from its creation on.
func LoopIsThin(attributes map[string]any) bool {
	return loop.IsThin(attributes)
}
