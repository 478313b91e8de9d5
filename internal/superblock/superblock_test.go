package superblock

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/internal/superblock/superblocktest"
)

func TestRead(t *testing.T) {
	for _, test := range []struct {
		about  string
		device superblocktest.Image
		want   Superblock
	}{
		{"blank", superblocktest.Image{}, Superblock{}},
		{"noise", superblocktest.Image{0: "XFSX", 1024: "\xff\xff", 65600: "_BHRfS_"}, Superblock{}},
		{"ext2", superblocktest.Ext(0, 0x2, 0x3), Superblock{"ext2", superblocktest.UUID, "data"}},
		{"ext3", superblocktest.Ext(0x4, 0x2|0x4, 0x3), Superblock{"ext3", superblocktest.UUID, "data"}},
		{"ext4", superblocktest.Ext(0x4, 0x2|0x40, 0x3|0x400), Superblock{"ext4", superblocktest.UUID, "data"}},
		{"ext4 without a journal", superblocktest.Ext(0, 0x2|0x40, 0), Superblock{"ext4", superblocktest.UUID, "data"}},
		{"ext4's external journal", superblocktest.Ext(0, 0x8, 0), Superblock{"jbd", superblocktest.UUID, "data"}},
		{"xfs", superblocktest.Image{0: "XFSB", 32: superblocktest.UUIDBytes, 108: "twelve chars and more"}, Superblock{"xfs", superblocktest.UUID, "twelve chars"}},
		{"btrfs", superblocktest.Image{65536 + 0x40: "_BHRfS_M", 65536 + 0x20: superblocktest.UUIDBytes, 65536 + 0x12b: "b"}, Superblock{"btrfs", superblocktest.UUID, "b"}},
		{"swap", superblocktest.Image{4086: "SWAPSPACE2", 1036: superblocktest.UUIDBytes, 1052: "s"}, Superblock{"swap", superblocktest.UUID, "s"}},
		{"swap of a machine with pages of 64 KiB", superblocktest.Image{65526: "SWAPSPACE2", 1036: superblocktest.UUIDBytes}, Superblock{"swap", superblocktest.UUID, ""}},
		{"no UUID", superblocktest.Image{0: "XFSB"}, Superblock{"xfs", "", ""}},
		{"a label that is not UTF-8", superblocktest.Image{0: "XFSB", 108: "a\xffb"}, Superblock{"xfs", "", "a\uFFFDb"}},
		{"two signatures", superblocktest.Image{0: "XFSB", 4086: "SWAPSPACE2"}, Superblock{}},
	} {
		t.Run(test.about, func(t *testing.T) {
			got, err := Read(test.device.Reader())
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

func TestReadTinyDevice(t *testing.T) {
	got, err := Read(bytes.NewReader([]byte("XFSB")))
	if err != nil || got.Type != "xfs" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestReadErrors(t *testing.T) {
	want := errors.New("input/output error")
	for name, read := range map[string]func(io.ReaderAt) (Superblock, error){"Read": Read, "ReadFilesystem": ReadFilesystem} {
		if _, err := read(brokenReader{want}); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
	}
}

type brokenReader struct{ err error }

func (r brokenReader) ReadAt([]byte, int64) (int, error) { return 0, r.err }

// TestTypesAgreeWithBlkid makes ext filesystems that differ only in their features.
func TestTypesAgreeWithBlkid(t *testing.T) {
	for _, program := range []string{"mke2fs", "blkid"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("STOWAGE_REQUIRE_ROOT") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	for about, args := range map[string][]string{
		"ext2":                 {"-t", "ext2"},
		"ext3":                 {"-t", "ext3"},
		"ext4":                 {"-t", "ext4"},
		"ext4 without extents": {"-t", "ext4", "-O", "^extent,^64bit"},
		"ext4 without journal": {"-t", "ext4", "-O", "^has_journal"},
		"ext3 with checksums":  {"-t", "ext3", "-O", "metadata_csum"},
		"external journal":     {"-O", "journal_dev"},
	} {
		path := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(path, make([]byte, 8<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("mke2fs", append(args, "-q", "-F", path)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", about, err, out)
		}
		want, err := exec.Command("blkid", "-p", "-s", "TYPE", "-o", "value", path).Output()
		if err != nil {
			t.Fatalf("%s: %v", about, err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadFilesystem(f)
		f.Close()
		if err != nil || got.Type != strings.TrimSpace(string(want)) {
			t.Errorf("%s: %q, %v, blkid says %q", about, got.Type, err, want)
		}
	}
}

// TestSignatureInDataIsIgnored has the signature of btrfs in the data of an ext4.
func TestSignatureInDataIsIgnored(t *testing.T) {
	device := superblocktest.Ext(0x4, 0x2|0x40, 0x3|0x400)
	device[65536+0x40] = "_BHRfS_M"
	if got, err := ReadFilesystem(device.Reader()); err != nil || got.Type != "ext4" {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := Read(device.Reader()); err != nil || got != (Superblock{}) {
		t.Errorf("with two signatures: got %+v, %v", got, err)
	}
}
