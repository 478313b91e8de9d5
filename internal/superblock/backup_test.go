package superblock

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/internal/superblock/superblocktest"
)

// sparse is a device that is blank except for one block.
type sparse struct {
	at    int64
	block []byte
}

func (s sparse) ReadAt(p []byte, at int64) (int, error) {
	clear(p)
	if at == s.at {
		copy(p, s.block)
	}
	return len(p), nil
}

func TestFindBackupOnLargeDevice(t *testing.T) {
	const mib, gib, tib = 1 << 20, 1 << 30, 1 << 40
	ext := make([]byte, blockSize)
	if _, err := superblocktest.Ext(0x4, 0x2|0x40, 0).Reader().ReadAt(ext, extOffset); err != nil {
		t.Fatal(err)
	}
	made := func(parts map[int]string) []byte {
		block := make([]byte, blockSize)
		for at, part := range parts {
			copy(block[at:], part)
		}
		return block
	}
	btrfs := made(map[int]string{0x40: "_BHRfS_M", 0x20: superblocktest.UUIDBytes})
	xfs := made(map[int]string{0: "XFSB", 32: superblocktest.UUIDBytes})
	luks := made(map[int]string{0: "SKUL\xba\xbe\x00\x02", 168: superblocktest.UUID})
	for _, test := range []struct {
		about    string
		at, size int64
		block    []byte
		want     string
	}{
		{"the first copy of btrfs", 64 * mib, 109 * mib, btrfs, "btrfs"},
		{"the first copy of btrfs, at the end", 64 * mib, 64*mib + blockSize, btrfs, "btrfs"},
		{"the first copy of btrfs, beyond the end", 64 * mib, 64 * mib, btrfs, ""},
		{"the second copy of btrfs", 256 * gib, 300 * gib, btrfs, "btrfs"},
		{"btrfs where it has no copy", 128 * mib, 300 * gib, btrfs, ""},
		{"ext4 in group 49", 49 * 128 * mib, 10 * gib, ext, "ext4"},
		{"ext4 in group 2, which has none", 2 * 128 * mib, 200 * mib, ext, ""},
		{"ext4 with clusters of 64 KiB in group 9", 9 * 2 * gib, 100 * gib, ext, "ext4"},
		{"the last of 4 groups of xfs", 3 * tib / 4, tib, xfs, "xfs"},
		{"the 30th of 32 groups of xfs", 29 * tib / 32, tib, xfs, "xfs"},
		{"the 8th group of xfs of 1 TiB", 8 * (tib - 4096), 10 * tib, xfs, "xfs"},
		{"the second header of LUKS2", 4 * mib, 16 * mib, luks, "crypto_LUKS"},
	} {
		want := Superblock{}
		if test.want != "" {
			want = Superblock{Type: test.want, UUID: superblocktest.UUID}
		}
		got, err := FindBackup(sparse{test.at, test.block}, test.size)
		got.Label = "" // only some types have one
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v", test.about, got, err)
		}
	}
}

func TestFindBackupReadError(t *testing.T) {
	want := errors.New("input/output error")
	if _, err := FindBackup(brokenReader{want}, 65<<20); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}

// TestFindBackupOfOverwrittenFilesystems makes filesystems, and clears their beginning and
// end.
func TestFindBackupOfOverwrittenFilesystems(t *testing.T) {
	const edge = 4 << 20
	for about, test := range map[string]struct {
		mib     int64
		program string
	}{
		"ext2":                  {16, "mkfs.ext2 -q -F -b 1024"},
		"ext4 of 1 KiB blocks":  {16, "mkfs.ext4 -q -F -b 1024"},
		"ext4 of 2 KiB blocks":  {64, "mkfs.ext4 -q -F -b 2048"},
		"ext4 of 4 KiB blocks":  {160, "mkfs.ext4 -q -F -b 4096"},
		"ext4 with two backups": {300, "mkfs.ext4 -q -F -b 4096 -O sparse_super2"},
		"xfs":                   {301, "mkfs.xfs -q"},
		"xfs of 7 groups":       {1501, "mkfs.xfs -q -d agcount=7"},
		"btrfs":                 {128, "mkfs.btrfs -q"},
	} {
		t.Run(about, func(t *testing.T) {
			args := strings.Fields(test.program)
			if _, err := exec.LookPath(args[0]); err != nil {
				if os.Getenv("STOWAGE_REQUIRE_ROOT") != "" {
					t.Fatal(err)
				}
				t.Skip(err)
			}
			f, err := os.Create(filepath.Join(t.TempDir(), "image"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			size := test.mib << 20
			if err := f.Truncate(size); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(args[0], append(args[1:], f.Name())...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			made, err := ReadFilesystem(f)
			if err != nil || made.UUID == "" {
				t.Fatalf("got %+v, %v", made, err)
			}
			for _, at := range []int64{0, size - edge} {
				if _, err := f.WriteAt(make([]byte, edge), at); err != nil {
					t.Fatal(err)
				}
			}
			got, err := FindBackup(f, size)
			if err != nil || got.UUID != made.UUID {
				t.Errorf("got %+v, %v, want %+v", got, err, made)
			}
		})
	}
}
