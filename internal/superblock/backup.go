package superblock

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
)

// A device with nothing at its ends may still contain a filesystem: the backup copies of
// superblocks are spread over the device, and one of them is enough to recover most of the
// filesystem. The copies of swap areas, partition tables, LVM, md and ZFS are within 4 MiB of
// an end.

// FindBackup returns the filesystem, or the encrypted device, whose superblock a device of size
// bytes has a copy of, or the zero value. It looks where the programs that make them
// put copies. If a filesystem was made with another number of blocks in a group, copies may be
// elsewhere.
func FindBackup(device io.ReaderAt, size int64) (Superblock, error) {
	copies := make(map[int64][]func([]byte) (Superblock, bool))
	for _, kind := range []struct {
		offsets []int64
		parse   func([]byte) (Superblock, bool)
	}{
		{BtrfsOffsets()[1:], ParseBtrfs},
		{extBackups(size), parseExt},
		{xfsBackups(size), parseXFS},
		{luksBackups(), parseLUKS},
	} {
		for _, at := range kind.offsets {
			copies[at] = append(copies[at], kind.parse)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(copies)) {
		if at+blockSize > size {
			break
		}
		block := make([]byte, blockSize)
		if n, err := device.ReadAt(block, at); n < len(block) {
			return Superblock{}, fmt.Errorf("reading a superblock at %d: %w", at, err)
		}
		for _, parse := range copies[at] {
			if found, ok := parse(block); ok {
				return found, nil
			}
		}
	}
	return Superblock{}, nil
}

// extBackups returns the offsets at which mke2fs puts copies: at the beginning of group 1 and
// of the groups that are powers of 3, 5 and 7, or (sparse_super2) of group 1 and the last one.
// A group has as many blocks as a block has bits; with bigalloc it is as large as one of
// larger blocks.
func extBackups(size int64) []int64 {
	var offsets []int64
	for block := int64(1 << 10); block <= 64<<10; block *= 2 {
		group, first := 8*block*block, int64(0)
		if block == 1<<10 {
			first = block // the boot block
		}
		last := (size - 1) / group
		groups := []int64{1, last}
		for _, base := range []int64{3, 5, 7} {
			for n := base; n <= last; n *= base {
				groups = append(groups, n)
			}
		}
		for _, n := range groups {
			if n > 0 {
				offsets = append(offsets, n*group+first)
			}
		}
	}
	return offsets
}

// xfsBackups returns the offsets of the allocation groups of an xfs that fills the device and
// has up to 64 groups. All but the last have the same size: mkfs.xfs makes 4, or up to 32 on
// several disks. An xfs of more than 4 TiB has groups of 1 TiB.
func xfsBackups(size int64) []int64 {
	const (
		maxGroups = 64
		block     = 4 << 10
		maxGroup  = 1<<40 - block
	)
	var offsets []int64
	for n := int64(2); n <= maxGroups; n++ {
		group := (size/block + n - 1) / n * block
		for i := int64(1); i < n; i++ {
			offsets = append(offsets, i*group)
		}
	}
	for at := int64(maxGroup); at < size; at += maxGroup {
		offsets = append(offsets, at)
	}
	return offsets
}

// luksBackups returns the possible offsets of the second header of LUKS2: after the first,
// whose size can be chosen.
func luksBackups() []int64 {
	var offsets []int64
	for size := int64(16 << 10); size <= 4<<20; size *= 2 {
		offsets = append(offsets, size)
	}
	return offsets
}

// parseLUKS reads the second header of LUKS2, by its on-disk format specification.
func parseLUKS(header []byte) (Superblock, bool) {
	if string(header[:6]) != "SKUL\xba\xbe" {
		return Superblock{}, false
	}
	uuid, _, _ := bytes.Cut(header[168:208], []byte{0})
	return Superblock{Type: "crypto_LUKS", UUID: formatLabel(uuid), Label: formatLabel(header[24:72])}, true
}
