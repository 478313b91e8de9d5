package signature

import (
	"bytes"
	"encoding/binary"
	"io"

	"github.com/google/uuid"
	"github.com/juju/errors"
)

// Where the superblocks are and what is in them:
//
//	ext4:  Documentation/filesystems/ext4/super.rst in the kernel
//	xfs:   fs/xfs/libxfs/xfs_format.h, struct xfs_dsb
//	btrfs: include/uapi/linux/btrfs_tree.h, struct btrfs_super_block
const (
	extOffset   = 1024
	xfsOffset   = 0
	btrfsOffset = 64 << 10

	extMagic   = 0xef53
	xfsMagic   = "XFSB"
	btrfsMagic = "_BHRfS_M"

	extFeatureJournal = 0x4  // s_feature_compat
	extFeatureExtents = 0x40 // s_feature_incompat

	superblockSize = 1024 // enough of each for what is read here
)

// btrfsCopies are where btrfs keeps further copies of its superblock.
func btrfsCopies() []int64 { return []int64{64 << 20, 256 << 30} }

// btrfsCopy returns what a copy of a btrfs superblock tells, or the zero Signature
// where there is none. The device has size bytes.
func btrfsCopy(r io.ReaderAt, size int64) (Signature, error) {
	for _, at := range btrfsCopies() {
		if at+superblockSize > size {
			break
		}
		block := make([]byte, superblockSize)
		if _, err := r.ReadAt(block, at); err != nil {
			return Signature{}, errors.Annotatef(err, "reading a superblock at %d", at)
		}
		if found, ok := parseBtrfs(block); ok {
			return found, nil
		}
	}
	return Signature{}, nil
}

// ReadSuperblock returns the type, UUID and label of the ext2, ext3, ext4, xfs
// or btrfs filesystem that begins at offset 0 of r, or the zero Signature when
// there is none of these. It serves to tell one filesystem from another, not
// to prove that nothing is there.
func ReadSuperblock(r io.ReaderAt) (Signature, error) {
	for _, kind := range []struct {
		offset int64
		parse  func([]byte) (Signature, bool)
	}{
		{xfsOffset, parseXFS},
		{extOffset, parseExt},
		{btrfsOffset, parseBtrfs},
	} {
		block := make([]byte, superblockSize)
		n, err := r.ReadAt(block, kind.offset)
		if n < len(block) {
			if err == io.EOF {
				continue
			}
			return Signature{}, errors.Annotatef(err, "reading a superblock at %d", kind.offset)
		}
		if found, ok := kind.parse(block); ok {
			return found, nil
		}
	}
	return Signature{}, nil
}

func parseExt(b []byte) (Signature, bool) {
	if binary.LittleEndian.Uint16(b[0x38:]) != extMagic {
		return Signature{}, false
	}
	kind := "ext2"
	switch {
	case binary.LittleEndian.Uint32(b[0x60:])&extFeatureExtents != 0:
		kind = "ext4"
	case binary.LittleEndian.Uint32(b[0x5c:])&extFeatureJournal != 0:
		kind = "ext3"
	}
	return describe(kind, b[0x68:0x78], b[0x78:0x88]), true
}

func parseXFS(b []byte) (Signature, bool) {
	if string(b[:4]) != xfsMagic {
		return Signature{}, false
	}
	return describe("xfs", b[32:48], b[108:120]), true
}

func parseBtrfs(b []byte) (Signature, bool) {
	if string(b[0x40:0x48]) != btrfsMagic {
		return Signature{}, false
	}
	return describe("btrfs", b[0x20:0x30], b[0x12b:0x22b]), true
}

// describe makes a Signature of the 16 bytes of a UUID and the bytes of a
// label, which ends at the first NUL if there is one.
func describe(kind string, id, label []byte) Signature {
	label, _, _ = bytes.Cut(label, []byte{0})
	return Signature{Type: kind, UUID: uuid.UUID(id).String(), Label: string(label)}
}
