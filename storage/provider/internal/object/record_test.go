//go:build linux

package object

import (
	"testing"
)

func TestPlacementsThatNoCallRecords(t *testing.T) {
	for _, test := range []struct {
		about string
		place Placement
		ok    bool
	}{
		{"nowhere", Placement{}, true},
		{"in a directory that was there", Placement{MountPoint: "/srv/a"}, true},
		{"in one that was made", Placement{MountPoint: "/srv/a/b", MadeDirs: []string{"/srv/a", "/srv/a/b"}}, true},
		{"made for nothing", Placement{MadeDirs: []string{"/srv"}}, false},
		{"made elsewhere", Placement{MountPoint: "/srv/a", MadeDirs: []string{"/srv/b"}}, false},
		{"with a gap", Placement{MountPoint: "/srv/a/b", MadeDirs: []string{"/srv", "/srv/a/b"}}, false},
		{"without the last", Placement{MountPoint: "/srv/a/b", MadeDirs: []string{"/srv/a"}}, false},
		{"the root", Placement{MountPoint: "/srv", MadeDirs: []string{"/", "/srv"}}, false},
		{"no path", Placement{MountPoint: "srv"}, false},
	} {
		if err := test.place.Check(); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.about, err)
		}
	}
}
