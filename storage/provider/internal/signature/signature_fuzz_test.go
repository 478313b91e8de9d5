package signature

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// superblock returns the KiB that a program which makes filesystems wrote where
// the kernel looks for it.
func superblock(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "superblocks", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// FuzzReadSuperblock has only the parts of a device in which something is looked
// for: at its beginning, at 1 KiB and at 64 KiB.
func FuzzReadSuperblock(f *testing.F) {
	xfs, ext4, btrfs := superblock(f, "xfs"), superblock(f, "ext4"), superblock(f, "btrfs")
	for name, parts := range map[string][3][]byte{
		"": {}, "xfs": {xfs, nil, nil}, "ext4": {nil, ext4, nil}, "btrfs": {nil, nil, btrfs},
	} {
		got, err := ReadSuperblock(bytes.NewReader(deviceOf(parts)))
		if err != nil || got.Type != name {
			f.Fatalf("%s: got %+v, %v", name, got, err)
		}
		f.Add(parts[0], parts[1], parts[2], uint32(128<<10))
	}
	f.Add(xfs, ext4, btrfs, uint32(128<<10))
	f.Add([]byte("XFSB"), []byte{}, []byte{}, uint32(4))
	f.Fuzz(func(t *testing.T, first, second, far []byte, size uint32) {
		device := deviceOf([3][]byte{first, second, far})
		device = device[:min(int(size), len(device))]
		got, err := ReadSuperblock(bytes.NewReader(device))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains([]string{"", "ext2", "ext3", "ext4", "xfs", "btrfs"}, got.Type) {
			t.Errorf("type %q", got.Type)
		}
		if (got.Type == "") != (got.UUID == "") || got.Type == "" && got != (Signature{}) {
			t.Errorf("got %+v", got)
		}
		if got.Type == "" {
			return
		}
		if id, err := uuid.Parse(got.UUID); err != nil || id.String() != got.UUID {
			t.Errorf("UUID %q", got.UUID)
		} else if !bytes.Contains(device, id[:]) {
			t.Errorf("UUID %q is not on the device", got.UUID)
		}
		if strings.ContainsRune(got.Label, 0) || !bytes.Contains(device, []byte(got.Label)) {
			t.Errorf("label %q is not on the device", got.Label)
		}
	})
}

func deviceOf(parts [3][]byte) []byte {
	device := make([]byte, 128<<10)
	copy(device, parts[0])
	copy(device[extOffset:], parts[1])
	copy(device[btrfsOffset:], parts[2])
	return device
}

func FuzzParseExport(f *testing.F) {
	f.Add("DEVNAME=/dev/loop3\nLABEL=my\\ data\nUUID=f4c3b2a1-0011-2233-4455-66778899aabb\nVERSION=1.0\nBLOCK_SIZE=4096\nTYPE=ext4\nUSAGE=filesystem\n" +
		"MINIMUM_IO_SIZE=512\nPHYSICAL_SECTOR_SIZE=512\nLOGICAL_SECTOR_SIZE=512\n")
	f.Add("PTUUID=33\nPTTYPE=gpt\nMINIMUM_IO_SIZE=512\nPHYSICAL_SECTOR_SIZE=512\nLOGICAL_SECTOR_SIZE=512\n")
	f.Add("LOGICAL_SECTOR_SIZE=512\nPTTYPE=dos")
	f.Add("=\n==\nPTTYPE=")
	f.Fuzz(func(t *testing.T, out string) {
		if got, err := parseExport(out); err == nil && !strings.Contains(out, "LOGICAL_SECTOR_SIZE=") {
			t.Errorf("%q passes for the output of a device that was read: %+v", out, got)
		}
		// Whatever else is said, a type that is named last is not overlooked.
		for _, key := range []string{"TYPE", "PTTYPE", "USAGE"} {
			got, err := parseExport(out + "\n" + key + "=x\n")
			if err == nil && got.Type == "" {
				t.Errorf("%q passes as blank in spite of %s", out, key)
			}
		}
	})
}
