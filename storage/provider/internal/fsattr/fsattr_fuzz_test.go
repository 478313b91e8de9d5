package fsattr_test

import (
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
)

// FuzzParse parses arbitrary attributes of a filesystem. Accepted attributes are kept as
// given, with the UUID in lower case. Others are refused by an error that names an
// attribute.
func FuzzParse(f *testing.F) {
	f.Add("ext4", "inode-size=256", "noatime,discard", "")
	f.Add("xfs", "", "noatime", "DEADBEEF-0bad-400d-8000-4b1d0d06f00d")
	f.Add("", "", "ro,,", "{deadbeef-0bad-400d-8000-4b1d0d06f00d}")
	f.Add("btrfs", "mixed", "compress=zstd:3", "00000000-0000-0000-0000-000000000000")
	f.Add("vfat", "-F", "dev,suid", "\x00")
	f.Fuzz(func(t *testing.T, kind, mkfs, mount, uuid string) {
		attrs := map[string]any{fsattr.Type: kind, fsattr.MkfsOptions: mkfs, fsattr.MountOptions: mount, fsattr.UUID: uuid}
		c, err := fsattr.Parse(attrs)
		if err != nil {
			names := []string{fsattr.Type, fsattr.MkfsOptions, fsattr.MountOptions, fsattr.UUID}
			if !errors.Is(err, errors.NotValid) || !containsAny(err.Error(), names) {
				t.Errorf("error %q", err)
			}
			return
		}
		if c.Mkfs != mkfs || c.Mount != mount || !strings.EqualFold(c.UUID, uuid) || c.UUID != strings.ToLower(c.UUID) {
			t.Errorf("%v is parsed as %+v", attrs, c)
		}
		if kind != "" && c.Type.Name != kind {
			t.Errorf("type %q is parsed as %q", kind, c.Type.Name)
		}
		if text := mkfs + mount; c.UUID == "" && strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			t.Errorf("options %q are not fit for the arguments of a command", text)
		}
		_ = c.Discards()
		_ = c.CheckSize(0)
	})
}

func containsAny(s string, words []string) bool {
	for _, word := range words {
		if strings.Contains(s, word) {
			return true
		}
	}
	return false
}
