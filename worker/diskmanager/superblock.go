package diskmanager

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// filesystem is what the superblock of a filesystem, or of a swap area, says.
type filesystem struct {
	Type, UUID, Label string
}

// superblockSpan is where the superblocks that readFilesystem knows lie. The
// furthest is that of btrfs, at 64 KiB.
const superblockSpan = 68 << 10

// readFilesystem recognizes ext2, ext3, ext4, xfs, btrfs and swap. The zero value
// means none of these, or more than one: a device that bears two signatures is
// not known to be either.
func readFilesystem(device io.ReaderAt) (filesystem, error) {
	buf := make([]byte, superblockSpan)
	n, err := device.ReadAt(buf, 0)
	if err != nil && err != io.EOF {
		return filesystem{}, err
	}
	clear(buf[n:])
	var found []filesystem
	for _, parse := range []func([]byte) (filesystem, bool){parseExt, parseXFS, parseBtrfs, parseSwap} {
		if fs, ok := parse(buf); ok {
			found = append(found, fs)
		}
	}
	if len(found) != 1 {
		return filesystem{}, nil
	}
	return found[0], nil
}

// parseExt follows struct ext4_super_block in fs/ext4/ext4.h of the kernel.
func parseExt(device []byte) (filesystem, bool) {
	const (
		hasJournal = 0x4 // compatible features

		journalDevice = 0x8              // incompatible features
		ext3Incompat  = 0x2 | 0x4 | 0x10 // file types, recovery, meta block groups
		ext3ROCompat  = 0x1 | 0x2 | 0x4  // sparse superblocks, large files, tree directories
	)
	sb := device[1024:2048]
	if binary.LittleEndian.Uint16(sb[0x38:]) != 0xef53 {
		return filesystem{}, false
	}
	fs := filesystem{Type: "ext2", UUID: formatUUID(sb[0x68:0x78]), Label: formatLabel(sb[0x78:0x88])}
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
func parseXFS(device []byte) (filesystem, bool) {
	if string(device[:4]) != "XFSB" {
		return filesystem{}, false
	}
	return filesystem{Type: "xfs", UUID: formatUUID(device[32:48]), Label: formatLabel(device[108:120])}, true
}

// parseBtrfs follows struct btrfs_super_block in include/uapi/linux/btrfs_tree.h
// of the kernel.
func parseBtrfs(device []byte) (filesystem, bool) {
	sb := device[64<<10:]
	if string(sb[0x40:0x48]) != "_BHRfS_M" {
		return filesystem{}, false
	}
	return filesystem{Type: "btrfs", UUID: formatUUID(sb[0x20:0x30]), Label: formatLabel(sb[0x12b:0x22b])}, true
}

// parseSwap follows union swap_header in include/linux/swap.h of the kernel. The
// signature ends the first page, whatever the page size of the machine that made
// it.
func parseSwap(device []byte) (filesystem, bool) {
	for pageSize := 4 << 10; pageSize <= 64<<10; pageSize *= 2 {
		if string(device[pageSize-10:pageSize]) == "SWAPSPACE2" {
			return filesystem{Type: "swap", UUID: formatUUID(device[1036:1052]), Label: formatLabel(device[1052:1068])}, true
		}
	}
	return filesystem{}, false
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
