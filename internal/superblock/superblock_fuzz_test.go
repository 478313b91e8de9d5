package superblock

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// superblocks returns what mke2fs, mkfs.xfs, mkfs.btrfs and mkswap wrote: the first
// KiB, the second and that at 64 KiB, and the end of the first page.
func superblocks(f *testing.F) map[string][]byte {
	f.Helper()
	found := make(map[string][]byte)
	for _, name := range []string{"xfs", "ext4", "btrfs", "swap"} {
		data, err := os.ReadFile(filepath.Join("testdata", "superblocks", name))
		if err != nil {
			f.Fatal(err)
		}
		found[name] = data
	}
	return found
}

// span is the size of the part of a device that has superblocks.
const span = btrfsOffset + 4<<10

// FuzzFilesystems fills only the parts of a device that are read: at its beginning, at 1 KiB,
// at the end of a page, and at 64 KiB.
func FuzzFilesystems(f *testing.F) {
	blocks := superblocks(f)
	f.Add(blocks["xfs"], []byte{}, []byte{}, []byte{}, uint32(span))
	f.Add([]byte{}, blocks["ext4"], []byte{}, []byte{}, uint32(span))
	f.Add([]byte{}, []byte{}, []byte{}, blocks["btrfs"], uint32(span))
	f.Add([]byte{}, blocks["swap"], []byte("SWAPSPACE2"), []byte{}, uint32(span))
	f.Add(blocks["xfs"], blocks["ext4"], []byte("SWAPSPACE2"), blocks["btrfs"], uint32(span))
	f.Add([]byte("XFSB"), []byte{}, []byte{}, []byte{}, uint32(4))
	f.Fuzz(func(t *testing.T, first, second, pageEnd, far []byte, size uint32) {
		device := make([]byte, span)
		copy(device, first)
		copy(device[1024:], second)
		copy(device[4086:], pageEnd)
		copy(device[64<<10:], far)
		found, err := Read(bytes.NewReader(device[:min(int(size), len(device))]))
		if err != nil {
			t.Fatal(err)
		}
		if first, err := ReadFilesystem(bytes.NewReader(device[:min(int(size), len(device))])); err != nil || found.Type != "" && found.Type != "swap" && first != found {
			t.Errorf("%+v, %v, and %+v", first, err, found)
		}
		if !slices.Contains([]string{"", "ext2", "ext3", "ext4", "jbd", "xfs", "btrfs", "swap"}, found.Type) {
			t.Errorf("type %q", found.Type)
		}
		if found.Type == "" && found != (Superblock{}) {
			t.Errorf("no type, but %+v", found)
		}
		if found.UUID != "" && (len(found.UUID) != 36 || strings.Trim(found.UUID, "0123456789abcdef-") != "") {
			t.Errorf("UUID %q", found.UUID)
		}
		if !utf8.ValidString(found.Label) || strings.ContainsRune(found.Label, 0) {
			t.Errorf("label %q", found.Label)
		}
		// A device that is shorter than a superblock does not have it.
		if int(size) < 4 && found.Type != "" {
			t.Errorf("%s on %d bytes", found.Type, size)
		}
	})
}
