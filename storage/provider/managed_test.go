//go:build linux

package provider

import (
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
)

func TestManagedValidateFilesystemParams(t *testing.T) {
	source := NewManagedFilesystemSource(t.TempDir(), nil)
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
		{"unknown type", names.NewVolumeTag("0/1"), 64, map[string]any{"fs": "ntfs"}, `filesystem 0/2: attribute "fs" is "ntfs", want one of ext4, xfs`},
		{"too small", names.NewVolumeTag("0/1"), 64, map[string]any{"fs": "xfs"}, "filesystem 0/2: xfs needs at least 300 MiB, there are 64 MiB"},
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
