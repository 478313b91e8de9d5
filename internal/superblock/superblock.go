// Package superblock identifies the filesystem at the start of a device or file, and finds
// copies of superblocks.
//
// It distinguishes filesystems. Finding nothing proves nothing: do not use it to decide
// whether a device may be formatted. It keeps no state.
package superblock

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// Superblock is the content of the superblock of a filesystem, or of a swap area. The zero
// value means that none was recognized.
type Superblock struct {
	// Type is the name that blkid uses: "ext4", "swap".
	Type string

	// UUID and Label are empty if the superblock has none.
	UUID, Label string
}

// The offsets of superblocks; that of btrfs is the largest.
const (
	extOffset   = 1 << 10
	btrfsOffset = 64 << 10
	blockSize   = 1 << 10 // enough for the fields that are read here
)

// Read recognizes ext2, ext3, ext4, xfs, btrfs and swap. It returns the zero value if it finds
// none of these, or more than one: a device with two signatures is not known to be either.
func Read(device io.ReaderAt) (Superblock, error) {
	found, err := filesystems(device)
	if err != nil {
		return Superblock{}, err
	}
	swap, ok, err := readSwap(device)
	if err != nil {
		return Superblock{}, err
	}
	if ok {
		found = append(found, swap)
	}
	if len(found) != 1 {
		return Superblock{}, nil
	}
	return found[0], nil
}

// ReadFilesystem returns the ext2, ext3, ext4, xfs or btrfs filesystem that begins at offset
// 0, or the zero value. Data that users of the filesystem wrote at the place of another kind's
// superblock does not change the result.
func ReadFilesystem(device io.ReaderAt) (Superblock, error) {
	found, err := filesystems(device)
	if err != nil || len(found) == 0 {
		return Superblock{}, err
	}
	return found[0], nil
}

// filesystems returns the possible filesystems, ordered by the offset of the superblock.
func filesystems(device io.ReaderAt) ([]Superblock, error) {
	var found []Superblock
	for _, kind := range []struct {
		offset int64
		parse  func([]byte) (Superblock, bool)
	}{
		{0, parseXFS},
		{extOffset, parseExt},
		{btrfsOffset, ParseBtrfs},
	} {
		block, err := read(device, kind.offset, blockSize)
		if err != nil {
			return nil, err
		}
		if fs, ok := kind.parse(block); ok {
			found = append(found, fs)
		}
	}
	return found, nil
}

// BtrfsOffsets returns the offsets of the superblock of a btrfs and of its copies, the
// superblock first. A device has those that end within it.
func BtrfsOffsets() []int64 { return []int64{btrfsOffset, 64 << 20, 256 << 30} }

// read returns n bytes of a device. Bytes after its end are zero.
func read(device io.ReaderAt, at int64, n int) ([]byte, error) {
	block := make([]byte, n)
	got, err := device.ReadAt(block, at)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("reading a superblock at %d: %w", at, err)
	}
	clear(block[got:])
	return block, nil
}

// parseExt follows struct ext4_super_block in fs/ext4/ext4.h of the kernel.
func parseExt(sb []byte) (Superblock, bool) {
	const (
		hasJournal = 0x4 // compatible features

		journalDevice = 0x8              // incompatible features
		ext3Incompat  = 0x2 | 0x4 | 0x10 // file types, recovery, meta block groups
		ext3ROCompat  = 0x1 | 0x2 | 0x4  // sparse superblocks, large files, tree directories
	)
	if binary.LittleEndian.Uint16(sb[0x38:]) != 0xef53 {
		return Superblock{}, false
	}
	fs := Superblock{Type: "ext2", UUID: formatUUID(sb[0x68:0x78]), Label: formatLabel(sb[0x78:0x88])}
	compat := binary.LittleEndian.Uint32(sb[0x5c:])
	incompat := binary.LittleEndian.Uint32(sb[0x60:])
	roCompat := binary.LittleEndian.Uint32(sb[0x64:])
	switch {
	case incompat&journalDevice != 0:
		fs.Type = "jbd"
	case incompat&^ext3Incompat != 0 || roCompat&^ext3ROCompat != 0:
		fs.Type = "ext4"
	case compat&hasJournal != 0:
		fs.Type = "ext3"
	}
	return fs, true
}

// parseXFS follows struct xfs_dsb in fs/xfs/libxfs/xfs_format.h of the kernel.
func parseXFS(device []byte) (Superblock, bool) {
	if string(device[:4]) != "XFSB" {
		return Superblock{}, false
	}
	return Superblock{Type: "xfs", UUID: formatUUID(device[32:48]), Label: formatLabel(device[108:120])}, true
}

// FilesystemSize returns the size in bytes of the ext2, ext3, ext4, xfs or btrfs filesystem that
// begins at offset 0: the part of the device that it uses. It returns 0 if there is no such filesystem.
func FilesystemSize(device io.ReaderAt) (int64, error) {
	found, err := ReadFilesystem(device)
	if err != nil {
		return 0, err
	}
	at := int64(extOffset)
	switch found.Type {
	case "":
		return 0, nil
	case "xfs":
		at = 0
	case "btrfs":
		at = btrfsOffset
	}
	sb, err := read(device, at, blockSize)
	if err != nil {
		return 0, err
	}
	switch found.Type {
	case "xfs":
		return int64(binary.BigEndian.Uint64(sb[8:]) * uint64(binary.BigEndian.Uint32(sb[4:]))), nil
	case "btrfs":
		return int64(binary.LittleEndian.Uint64(sb[0x70:])), nil
	}
	const wide = 0x80 // incompatible feature: numbers of blocks have 64 bits
	blocks := uint64(binary.LittleEndian.Uint32(sb[0x4:]))
	if binary.LittleEndian.Uint32(sb[0x60:])&wide != 0 {
		blocks |= uint64(binary.LittleEndian.Uint32(sb[0x150:])) << 32
	}
	return int64(blocks << (10 + binary.LittleEndian.Uint32(sb[0x18:])%16)), nil
}

// ParseBtrfs reads a superblock of btrfs, or a copy of it. It follows struct btrfs_super_block
// in include/uapi/linux/btrfs_tree.h of the kernel.
func ParseBtrfs(sb []byte) (Superblock, bool) {
	if string(sb[0x40:0x48]) != "_BHRfS_M" {
		return Superblock{}, false
	}
	return Superblock{Type: "btrfs", UUID: formatUUID(sb[0x20:0x30]), Label: formatLabel(sb[0x12b:0x22b])}, true
}

// readSwap follows union swap_header in include/linux/swap.h of the kernel. The signature is
// at the end of the first page, whose size depends on the machine that made it.
func readSwap(device io.ReaderAt) (Superblock, bool, error) {
	const signature = "SWAPSPACE2"
	for pageSize := 4 << 10; pageSize <= 64<<10; pageSize *= 2 {
		end, err := read(device, int64(pageSize-len(signature)), len(signature))
		if err != nil {
			return Superblock{}, false, err
		}
		if string(end) != signature {
			continue
		}
		header, err := read(device, extOffset, blockSize)
		if err != nil {
			return Superblock{}, false, err
		}
		return Superblock{Type: "swap", UUID: formatUUID(header[12:28]), Label: formatLabel(header[28:44])}, true, nil
	}
	return Superblock{}, false, nil
}

func formatUUID(b []byte) string {
	if !bytes.ContainsFunc(b, func(r rune) bool { return r != 0 }) {
		return ""
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

func formatLabel(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return strings.TrimSpace(strings.ToValidUTF8(string(b), "\uFFFD"))
}
