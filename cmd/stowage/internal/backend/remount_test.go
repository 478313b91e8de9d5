package backend_test

import (
	"testing"

	"github.com/stowage-io/stowage/api/user"
)

// A detached filesystem is attached at another mount point, unless that belongs to others.
func TestAttachAtOtherMountPoint(t *testing.T) {
	s, _ := newServers(t)
	declare := func(name string, detached bool, declared user.Declaration) {
		t.Helper()
		declared.Machine = "0"
		if detached {
			attach := false
			declared.Attached = &attach
		}
		s.must(s.Declare(t.Context(), user.Condition{Name: name}, declared))
	}
	declare("data", true, user.Declaration{Directive: "rootfs,1M", Kind: "filesystem", Mount: "/srv/data"})
	declare("asked", true, user.Declaration{Directive: "rootfs,1M", Kind: "filesystem", Mount: "/srv/asked", Asker: "csi/pvc"})
	declare("many", true, user.Declaration{Directive: "rootfs,1M,2", Kind: "filesystem", Mount: "/srv/many"})
	declare("raw", true, user.Declaration{Directive: "loop,1M", Kind: "block"})
	declare("log", false, user.Declaration{Directive: "rootfs,1M", Kind: "filesystem", Mount: "/srv/log"})
	attach := func(name, mount string) error {
		return s.Attach(t.Context(), user.AttachArgs{Names: []string{name}, Machine: "0", Mount: mount})
	}
	for _, test := range []struct{ name, mount, want string }{
		{"data", "srv", `storage "data": "srv" is not absolute`},
		{"data", "/srv/log/deep", `"/srv/log/deep" is inside "/srv/log", the mount point of log`},
		{"data", "/srv/asked", `"/srv/asked" is already the mount point of asked`},
		{"asked", "/srv/other", `storage "asked": csi asked for it, as pvc, and decides where it is mounted`},
		{"many", "/srv/other", "2 instances cannot be mounted at one mount point: name one, such as many/0"},
		{"raw", "/srv/other", `storage "raw": a block device has no mount point`},
		{"log", "/srv/other", "its mount point can change only while it is detached: detach it first, with `stowage detach --wait log`"},
	} {
		wantError(t, attach(test.name, test.mount), test.want)
	}
	s.must(attach("data", "/srv/other"))
	s.must(attach("log", "/srv/log")) // where it is
	s.must(attach("asked", "/srv/asked"))
	found, err := s.state.Storage("data")
	s.must(err)
	if got := found[0].MountPoint; got != "/srv/other" || len(found[0].Attachments) != 1 {
		t.Errorf("the mount point is %q, attachments %+v", got, found[0].Attachments)
	}
}
