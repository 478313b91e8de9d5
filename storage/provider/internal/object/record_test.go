//go:build linux

package object

import (
	"testing"
)

func TestPlacementCheck(t *testing.T) {
	for _, test := range []struct {
		about string
		place Placement
		ok    bool
	}{
		{"nowhere", Placement{}, true},
		{"in place", Placement{InPlace: true}, true},
		{"in two places", Placement{InPlace: true, MountPoint: "/srv"}, false},
		{"in an existing directory", Placement{MountPoint: "/srv/a"}, true},
		{"in a directory that was made", Placement{MountPoint: "/srv/a/b", MadeDirs: []string{"/srv/a", "/srv/a/b"}}, true},
		{"directories without a mount point", Placement{MadeDirs: []string{"/srv"}}, false},
		{"directories elsewhere", Placement{MountPoint: "/srv/a", MadeDirs: []string{"/srv/b"}}, false},
		{"with a gap", Placement{MountPoint: "/srv/a/b", MadeDirs: []string{"/srv", "/srv/a/b"}}, false},
		{"without the last", Placement{MountPoint: "/srv/a/b", MadeDirs: []string{"/srv/a"}}, false},
		{"the root directory", Placement{MountPoint: "/srv", MadeDirs: []string{"/", "/srv"}}, false},
		{"a relative path", Placement{MountPoint: "srv"}, false},
	} {
		if err := test.place.Check(); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.about, err)
		}
	}
}
