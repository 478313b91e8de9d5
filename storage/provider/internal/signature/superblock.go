package signature

import (
	"io"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/superblock"
)

// ReadSuperblock returns the type, UUID and label of the ext2, ext3, ext4, xfs or btrfs
// filesystem that begins at offset 0 of r, or the zero Signature if it finds none of these.
// Use it to distinguish filesystems, not to prove that a device is blank.
func ReadSuperblock(r io.ReaderAt) (Signature, error) {
	found, err := superblock.ReadFilesystem(r)
	return Signature(found), errors.Trace(err)
}
