package translate

import (
	"strconv"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/byid"
)

// FuzzIDs checks that the fast parsers of IDs and tags agree with package names.
func FuzzIDs(f *testing.F) {
	for _, id := range []string{"", "0", "00", "01", "7", "10", "-1", "1a", "0/1", "mysql/0/1", "٣", strconv.Itoa(1 << 40)} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if byid.IsNumber(id) && !(names.IsValidVolume(id) && names.IsValidFilesystem(id)) {
			t.Errorf("IsNumber(%q) = true for an invalid ID", id)
		}
		want, err := names.ParseVolumeTag("volume-" + id)
		tag, got, gotErr := parseVolumeTag("volume-" + id)
		if (err == nil) != (gotErr == nil) || tag != want || err == nil && got != want.Id() {
			t.Errorf("volume-%s is parsed as %v, %q, %v, not %v, %v", id, tag, got, gotErr, want, err)
		}
	})
}

// TagID returns what the method Id of the tag returns.
func TestTagID(t *testing.T) {
	for _, id := range []string{"0", "17", "0/3", "2/lxd/0/3", "mysql/0/3", "my-sql/0/3", "123456789012345678901"} {
		for _, tag := range []names.Tag{names.NewVolumeTag(id), names.NewFilesystemTag(id)} {
			if got := TagID(tag); got != id || got != tag.Id() {
				t.Errorf("ID of %s: got %q, want %q", tag, got, id)
			}
		}
	}
}
