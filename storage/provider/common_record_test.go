//go:build linux

package provider

import "testing"

func TestPlacementsThatNoCallRecords(t *testing.T) {
	for _, test := range []struct {
		about string
		place placement
		ok    bool
	}{
		{"nowhere", placement{}, true},
		{"in a directory that was there", placement{MountPoint: "/srv/a"}, true},
		{"in one that was made", placement{MountPoint: "/srv/a/b", MadeDirs: []string{"/srv/a", "/srv/a/b"}}, true},
		{"made for nothing", placement{MadeDirs: []string{"/srv"}}, false},
		{"made elsewhere", placement{MountPoint: "/srv/a", MadeDirs: []string{"/srv/b"}}, false},
		{"with a gap", placement{MountPoint: "/srv/a/b", MadeDirs: []string{"/srv", "/srv/a/b"}}, false},
		{"without the last", placement{MountPoint: "/srv/a/b", MadeDirs: []string{"/srv/a"}}, false},
		{"the root", placement{MountPoint: "/srv", MadeDirs: []string{"/", "/srv"}}, false},
		{"no path", placement{MountPoint: "srv"}, false},
	} {
		if err := test.place.check(); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.about, err)
		}
	}
}
