package signature

import (
	"io"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/superblock"
)

// copySize is enough of a copy of a superblock.
const copySize = 1024

// btrfsCopy returns what a copy of a btrfs superblock tells, or the zero Signature
// where there is none. The device has size bytes.
func btrfsCopy(r io.ReaderAt, size int64) (Signature, error) {
	for _, at := range superblock.BtrfsOffsets()[1:] {
		if at+copySize > size {
			break
		}
		block := make([]byte, copySize)
		if _, err := r.ReadAt(block, at); err != nil {
			return Signature{}, errors.Annotatef(err, "reading a superblock at %d", at)
		}
		if found, ok := superblock.ParseBtrfs(block); ok {
			return Signature(found), nil
		}
	}
	return Signature{}, nil
}

// ReadSuperblock returns the type, UUID and label of the ext2, ext3, ext4, xfs
// or btrfs filesystem that begins at offset 0 of r, or the zero Signature when
// there is none of these. It serves to tell one filesystem from another, not
// to prove that nothing is there.
func ReadSuperblock(r io.ReaderAt) (Signature, error) {
	found, err := superblock.ReadFilesystem(r)
	return Signature(found), errors.Trace(err)
}
