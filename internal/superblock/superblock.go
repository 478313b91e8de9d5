// Package superblock tells which filesystem begins where a device or file does, and finds
// copies of superblocks.
//
// It is for telling one filesystem from another. That it finds nothing proves nothing:
// whether a device may be formatted is not its question. It keeps no state.
package superblock

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// Superblock is what the superblock of a filesystem, or of a swap area, says. The zero
// value means that none was recognized.
type Superblock struct {
	// Type is as blkid has it: "ext4", "swap".
	Type string

	// UUID and Label are empty if the superblock has none.
	UUID, Label string
}

// The furthest superblock is that of btrfs.
const (
	extOffset   = 1 << 10
	btrfsOffset = 64 << 10
	blockSize   = 1 << 10 // enough of each for what is read here
)

// Read recognizes ext2, ext3, ext4, xfs, btrfs and swap. The zero value means none of
// these, or more than one: a device that bears two signatures is not known to be
// either.
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

// ReadFilesystem returns the ext2, ext3, ext4, xfs or btrfs filesystem that begins at
// offset 0, or the zero value. What its users wrote where another kind has its
// superblock changes nothing.
func ReadFilesystem(device io.ReaderAt) (Superblock, error) {
	found, err := filesystems(device)
	if err != nil || len(found) == 0 {
		return Superblock{}, err
	}
	return found[0], nil
}

// filesystems returns what could be a filesystem, that with the first superblock
// first.
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

// BtrfsOffsets are where a btrfs keeps its superblock and the copies of it, the
// superblock first. A device has those that end before it does.
func BtrfsOffsets() []int64 { return []int64{btrfsOffset, 64 << 20, 256 << 30} }

// read returns n bytes of a device. What is behind its end is zero.
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

// ParseBtrfs reads a superblock of btrfs, or a further copy of it. It follows struct btrfs_super_block in include/uapi/linux/btrfs_tree.h
// of the kernel.
func ParseBtrfs(sb []byte) (Superblock, bool) {
	if string(sb[0x40:0x48]) != "_BHRfS_M" {
		return Superblock{}, false
	}
	return Superblock{Type: "btrfs", UUID: formatUUID(sb[0x20:0x30]), Label: formatLabel(sb[0x12b:0x22b])}, true
}

// readSwap follows union swap_header in include/linux/swap.h of the kernel. The
// signature ends the first page, whatever the page size of the machine that made
// it.
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
