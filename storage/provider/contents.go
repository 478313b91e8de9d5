package provider

import (
	"path/filepath"

	"github.com/stowage-io/stowage/storage/provider/loop"
)

// Contents is what was recognised in a file.
type Contents struct {
	// Size is that of the file, in bytes.
	Size uint64

	// Filesystem is the type of a filesystem that begins where the file does, such
	// as "ext4", and UUID its UUID. Both are empty if no filesystem was
	// recognised there.
	Filesystem, UUID string
}

// LoopVolumePath returns where a loop provider with a storage directory keeps the file
// of a volume.
func LoopVolumePath(storageDir, volumeId string) string {
	return filepath.Join(storageDir, "volumes", volumeId)
}

// LoopIsThin reports whether a loop volume of a pool with these attributes takes space as
// it is written. Another has all its space from its creation on.
func LoopIsThin(attributes map[string]any) bool {
	return loop.IsThin(attributes)
}
