package mkfs_test

import (
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/mkfs"
)

func TestParse(t *testing.T) {
	for value, want := range map[any]string{nil: "ext4", "": "ext4", "ext4": "ext4", "xfs": "xfs", "btrfs": "btrfs"} {
		got, err := mkfs.Parse(value)
		if err != nil || got.Name != want {
			t.Errorf("%v: got %q, %v", value, got.Name, err)
		}
	}
	for _, value := range []any{"ntfs", "ext4 -F", 4, []string{"xfs"}} {
		_, err := mkfs.Parse(value)
		if !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), `attribute "fs"`) {
			t.Errorf("%v: got %v", value, err)
		}
	}
}

func TestCheckSizeErrorNamesBothSizes(t *testing.T) {
	xfs, err := mkfs.Parse("xfs")
	if err != nil {
		t.Fatal(err)
	}
	if err := xfs.CheckSize(300, nil); err != nil {
		t.Error(err)
	}
	err = xfs.CheckSize(299, nil)
	if !errors.Is(err, errors.NotValid) || err.Error() != "size 299 MiB is too small for xfs: at least 300 MiB is needed" {
		t.Errorf("got %v", err)
	}
}

func TestCheckSizeWithOptions(t *testing.T) {
	xfs, err := mkfs.Parse("xfs")
	if err != nil {
		t.Fatal(err)
	}
	chosen, err := xfs.ParseOptions("stripe-unit=64k,stripe-width=4")
	if err != nil {
		t.Fatal(err)
	}
	if err := xfs.CheckSize(1024, chosen); err != nil {
		t.Error(err)
	}
	err = xfs.CheckSize(1023, chosen)
	if !errors.Is(err, errors.NotValid) || err.Error() != `size 1023 MiB is too small for xfs with option "stripe-unit": at least 1024 MiB is needed` {
		t.Errorf("got %v", err)
	}
}
