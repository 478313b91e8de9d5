//go:build linux

package mount

import (
	"strings"
	"testing"

	"github.com/juju/errors"
)

const mounts = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 22 0:40 / /srv/scratch rw,nosuid,nodev - tmpfs tmpfs-filesystem-0-1 rw,size=1024k
31 22 254:0 /var/lib/stowage/rootfs/filesystem-0-2 /srv/app ro,nosuid,nodev - ext4 /dev/vda rw,discard
32 22 7:3 / /srv/with\040space rw shared:7 master:2 - ext4 /dev/loop3 ro
33 32 7:4 / /srv/with\040space rw - ext4 /dev/loop4 rw
35 22 254:0 /var/lib/stowage/rootfs/filesystem-0-2//deleted /srv/gone rw - ext4 /dev/vda rw
36 22 254:0 /var/lib/stowage/rootfs/filesystem-0-2/below /srv/below rw - ext4 /dev/vda rw
34 22 254:0 /var/lib/stowage/rootfs/filesystem-0-22 /srv/other rw - ext4 /dev/vda rw
`

func parse(t *testing.T) *Table {
	t.Helper()
	table, err := ParseTable(strings.NewReader(mounts))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestTable(t *testing.T) {
	table := parse(t)
	if m := table.At("/srv/with space"); m == nil || m.ID != 33 {
		t.Errorf("topmost of two mounts at a path: %+v", m)
	}
	if m := table.At("/srv"); m != nil {
		t.Errorf("a directory that is not a mount point: %+v", m)
	}
	if m := table.OfDevice(7, 3); len(m) != 1 || m[0].ID != 32 || !IsReadOnly(m[0]) {
		t.Errorf("by device: %+v", m)
	}
	if m := table.OfSource("tmpfs", "tmpfs-filesystem-0-1"); len(m) != 1 || m[0].ID != 30 || IsReadOnly(m[0]) {
		t.Errorf("by source: %+v", m)
	}
	if m := table.Under("/srv/with space"); len(m) != 2 {
		t.Errorf("at a path or below it: %+v", m)
	}
	dir, err := Locate(table.ByID(22), "/var/lib/stowage/rootfs/filesystem-0-2")
	if err != nil {
		t.Fatal(err)
	}
	if m := table.OfDirectory(dir); len(m) != 2 || m[0].ID != 31 || m[1].ID != 35 || !IsReadOnly(m[0]) {
		t.Errorf("by directory: %+v", m)
	}
	if m := table.WithinDirectory(dir); len(m) != 3 {
		t.Errorf("of a directory or below it: %+v", m)
	}
}

func TestValidatePath(t *testing.T) {
	for path, ok := range map[string]bool{
		"/srv/data":     true,
		"/srv/da ta":    true,
		"":              false,
		"/":             false,
		"srv/data":      false,
		"/srv/../data":  false,
		"/srv//data":    false,
		"/srv/data/":    false,
		"/srv/da\x00ta": false,
	} {
		if err := ValidatePath(path); (err == nil) != ok || (err != nil && !errors.Is(err, errors.NotValid)) {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestFilesystemValidate(t *testing.T) {
	for _, test := range []struct {
		fs   Filesystem
		want string
	}{
		{Filesystem{Type: "tmpfs", Size: 1, Options: []Option{{"mode", "0755"}, {"noexec", ""}}}, ""},
		{Filesystem{Type: "ext4"}, ""},
		{Filesystem{Type: "overlay"}, `filesystem type "overlay" not valid`},
		{Filesystem{Type: "rootfs"}, `filesystem type "rootfs" not valid`},
		{Filesystem{Type: "tmpfs", Options: []Option{{"huge", "always"}}}, `"huge" is not an option for mounting tmpfs: allowed are ` +
			`noatime, relatime, strictatime, nodiratime, noexec, nosuid, nodev, ro, mode=octal 0…1777, uid=0…4294967294, gid=0…4294967294, nr_inodes=16…1073741824`},
		{Filesystem{Type: "tmpfs", Options: []Option{{"mode", "888"}}}, `option "mode" for mounting tmpfs is "888": allowed is octal 0…1777`},
		{Filesystem{Type: "ext4", Options: []Option{{"data", "writeback"}}}, `option "data" for mounting ext4 is "writeback": allowed is ordered|journal`},
	} {
		got := ""
		if err := test.fs.Validate(); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%+v: %q, want %q", test.fs, got, test.want)
		}
	}
}

func TestDescribeHolders(t *testing.T) {
	if got := DescribeHolders(nil); got != "held by something that is not visible from here" {
		t.Error(got)
	}
	h := Holder{PID: 7, Name: "sh", How: "working directory /x"}
	got := DescribeHolders([]Holder{{Name: "dm-0", How: "block device on top"}, h, h, h, h, h, h})
	if !strings.HasPrefix(got, "held by dm-0 (block device on top), process 7 (sh): working directory /x, ") ||
		!strings.HasSuffix(got, ", and 2 more") {
		t.Error(got)
	}
}

func TestDisjoint(t *testing.T) {
	for _, test := range []struct {
		paths    string
		disjoint bool
	}{
		{"", true},
		{"/a", true},
		{"/a /b", true},
		{"/a /a", false},
		{"/a/b /a", false},
		{"/a /a-b /a/b", false},
		{"/a-b /a /ab /a.b", true},
		{"/a/b /c /a/b/c/d", false},
		{"/a/b /a/c /a/bc", true},
	} {
		if got := Disjoint(strings.Fields(test.paths)); got != test.disjoint {
			t.Errorf("%q disjoint: %v", test.paths, got)
		}
	}
}
