// Package superblocktest makes images of devices with superblocks, for tests.
package superblocktest

import (
	"bytes"
	"encoding/binary"
)

// UUID is the UUID of the filesystems, and UUIDBytes is its form on disk.
const (
	UUID      = "f4c3b2a1-0011-2233-4455-66778899aabb"
	UUIDBytes = "\xf4\xc3\xb2\xa1\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb"
)

// Image is a device of 1 MiB with strings at offsets.
type Image map[int]string

// Reader returns a reader of the device.
func (i Image) Reader() *bytes.Reader {
	b := make([]byte, 1<<20)
	for offset, s := range i {
		copy(b[offset:], s)
	}
	return bytes.NewReader(b)
}

// Ext returns an ext2, ext3 or ext4 with these features, labelled "data".
func Ext(compat, incompat, roCompat uint32) Image {
	features := binary.LittleEndian.AppendUint32(nil, compat)
	features = binary.LittleEndian.AppendUint32(features, incompat)
	features = binary.LittleEndian.AppendUint32(features, roCompat)
	return Image{
		1024 + 0x38: "\x53\xef",
		1024 + 0x5c: string(features),
		1024 + 0x68: UUIDBytes,
		1024 + 0x78: "data",
	}
}
