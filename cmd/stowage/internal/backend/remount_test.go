package backend_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/status"
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
		_, err := s.Attach(t.Context(), user.AttachArgs{Names: []string{name}, Machine: "0", Mount: mount})
		return err
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

// Attaching names the storage that has failed, once, also if the change has to be planned again.
func TestAttachNamesWhatIsTriedAgain(t *testing.T) {
	s, _ := newServers(t)
	_, err := s.apply("a loop,1M", "b loop,1M")
	s.must(err)
	tag := "volume-" + strings.ReplaceAll(s.one("b").Volume, "/", "-")
	s.must(s.state.ForMachine(machine).SetStatus([]params.EntityStatusArgs{{Tag: tag, Status: string(status.Error), Info: "no loop devices"}}))
	s.store.before = func() { s.lease.ended = true }
	result, err := s.Attach(t.Context(), user.AttachArgs{Names: []string{"a", "b"}, Machine: "0"})
	s.must(err)
	if want := []user.Change{{Action: user.ActionRetry, Item: "storage", Name: "b", Detail: "no loop devices"}}; !slices.Equal(result.Changes, want) {
		t.Errorf("attaching: %+v, want %+v", result.Changes, want)
	}
	if b := s.one("b"); b.Status != status.Pending {
		t.Errorf("it is not tried again: %+v", b)
	}
}
