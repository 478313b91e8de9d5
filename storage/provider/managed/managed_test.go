//go:build linux

package managed

import (
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
)

func TestManagedValidateFilesystemParams(t *testing.T) {
	source := NewSource(t.TempDir(), nil)
	for _, test := range []struct {
		about  string
		volume names.VolumeTag
		size   uint64
		attrs  map[string]any
		err    string
	}{
		{"the default type", names.NewVolumeTag("0/1"), 64, nil, ""},
		{"ext4", names.NewVolumeTag("0/1"), 64, map[string]any{"fs": "ext4"}, ""},
		{"xfs", names.NewVolumeTag("0/1"), 300, map[string]any{"fs": "xfs"}, ""},
		{"attributes of the volume's pool", names.NewVolumeTag("0/1"), 64, map[string]any{"speed": 3}, ""},
		{"no volume", names.VolumeTag{}, 64, nil, "filesystem 0/2: it has no backing volume"},
		{"unknown type", names.NewVolumeTag("0/1"), 64, map[string]any{"fs": "ntfs"}, `filesystem 0/2: attribute "fs" is "ntfs", want one of ext4, xfs, btrfs`},
		{"btrfs", names.NewVolumeTag("0/1"), 109, map[string]any{"fs": "btrfs"}, ""},
		{"too small for btrfs", names.NewVolumeTag("0/1"), 108, map[string]any{"fs": "btrfs"}, "filesystem 0/2: size 108 MiB is too small for btrfs: at least 109 MiB is needed"},
		{"options", names.NewVolumeTag("0/1"), 64, map[string]any{"mkfs-options": "stride=16,stripe-width=64", "mount-options": "noatime,commit=30"}, ""},
		{"empty options", names.NewVolumeTag("0/1"), 64, map[string]any{"mkfs-options": "", "mount-options": ""}, ""},
		{"options that are not a string", names.NewVolumeTag("0/1"), 64, map[string]any{"mkfs-options": []string{"stride=16"}}, `filesystem 0/2: attribute "mkfs-options" is []string, want a string`},
		{"unknown mkfs option", names.NewVolumeTag("0/1"), 64, map[string]any{"mkfs-options": "stride=16,^has_journal"},
			`filesystem 0/2: attribute "mkfs-options": "^has_journal" is not an option for making ext4: allowed are bytes-per-inode=1024…67108864, inode-size=256|512|1024,`},
		{"value of an mkfs option", names.NewVolumeTag("0/1"), 64, map[string]any{"mkfs-options": "stride=16 -n"}, `option "stride" for making ext4 is "16 -n": allowed is 1…65536`},
		{"option that needs a larger device", names.NewVolumeTag("0/1"), 300, map[string]any{"fs": "xfs", "mkfs-options": "stripe-unit=64k,stripe-width=2"}, `filesystem 0/2: size 300 MiB is too small for xfs with option "stripe-unit": at least 1024 MiB is needed`},
		{"option that needs another", names.NewVolumeTag("0/1"), 300, map[string]any{"fs": "xfs", "mkfs-options": "stripe-unit=64k"}, `option "stripe-unit" for making xfs also needs option "stripe-width"`},
		{"option twice", names.NewVolumeTag("0/1"), 64, map[string]any{"mount-options": "commit=1,commit=2"}, `option "commit" for mounting ext4 is given twice`},
		{"options that exclude each other", names.NewVolumeTag("0/1"), 64, map[string]any{"mount-options": "noatime,strictatime"}, `options "noatime" and "strictatime" for mounting ext4 exclude each other`},
		{"flag with a value", names.NewVolumeTag("0/1"), 64, map[string]any{"mount-options": "noatime=1"}, `option "noatime" for mounting ext4 is "1": it takes no value`},
		{"flag with nothing", names.NewVolumeTag("0/1"), 64, map[string]any{"mount-options": "noatime="}, `option "noatime" for mounting ext4: write it without "="`},
		{"unsafe mount option", names.NewVolumeTag("0/1"), 64, map[string]any{"mount-options": "data=writeback"}, `option "data" for mounting ext4 is "writeback": allowed is ordered|journal`},
		{"mount options of another type", names.NewVolumeTag("0/1"), 300, map[string]any{"fs": "xfs", "mount-options": "commit=3"}, `filesystem 0/2: attribute "mount-options": "commit" is not an option for mounting xfs`},
		{"existing filesystem", names.NewVolumeTag("0/1"), 16, map[string]any{"fs": "xfs", "uuid": "0a1b2c3d-2222-3333-4444-555555555555"}, ""},
		{"existing filesystem, in a pool with mkfs options", names.NewVolumeTag("0/1"), 64, map[string]any{"fs": "ext4", "mkfs-options": "reflink=1", "uuid": "0a1b2c3d-2222-3333-4444-555555555555"}, ""},
		{"invalid UUID", names.NewVolumeTag("0/1"), 64, map[string]any{"uuid": "LABEL=x"}, `filesystem 0/2: attribute "uuid": "LABEL=x" is not the UUID of a filesystem`},
		{"zero UUID", names.NewVolumeTag("0/1"), 64, map[string]any{"uuid": "00000000-0000-0000-0000-000000000000"}, "is not the UUID of a filesystem"},
		{"too small", names.NewVolumeTag("0/1"), 64, map[string]any{"fs": "xfs"}, "filesystem 0/2: size 64 MiB is too small for xfs: at least 300 MiB is needed"},
	} {
		err := source.ValidateFilesystemParams(storage.FilesystemParams{
			Tag: names.NewFilesystemTag("0/2"), Volume: test.volume, Size: test.size, Attributes: test.attrs,
		})
		switch {
		case test.err == "" && err != nil:
			t.Errorf("%s: got %v", test.about, err)
		case test.err != "" && (!errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), test.err)):
			t.Errorf("%s: got %v, want %s", test.about, err, test.err)
		}
	}
}
