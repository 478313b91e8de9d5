package provider

import "github.com/stowage-io/stowage/storage/provider/internal/flush"

// Flush writes out what this machine has in memory of attached storage: of the filesystem that is mounted at a
// path, or of the block device there and the filesystem on it.
func Flush(path string) error { return flush.Path(path) }
