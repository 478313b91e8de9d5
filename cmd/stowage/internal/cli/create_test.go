package cli_test

import (
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
)

// A command makes storage as an entry of a file would, and never changes storage that there is.
func TestCreate(t *testing.T) {
	for args, want := range map[string]string{
		"data --size 1G --mount /srv/data":                    "declare {Name:data Revisions:[] Exists:false Absent:true} {Directive:loop,1G Kind:filesystem From: Asker: Attached:<nil> Labels:map[] Machine: MachineLabels: Mount:/srv/data Filesystem: MkfsOptions: MountOptions:}",
		"raw --pool fast --size 64M --count 2 --machine any":  "declare {Name:raw Revisions:[] Exists:false Absent:true} {Directive:fast,64M,2 Kind:block From: Asker: Attached:<nil> Labels:map[] Machine:any MachineLabels: Mount: Filesystem: MkfsOptions: MountOptions:}",
		"data --size 1G --from monday --labels tier=fast -- ": "declare {Name:data Revisions:[] Exists:false Absent:true} {Directive:loop,1G Kind:block From:monday Asker: Attached:<nil> Labels:map[tier:fast] Machine: MachineLabels: Mount: Filesystem: MkfsOptions: MountOptions:}",
	} {
		b := &backend{storage: []user.Storage{row("data", status.Pending, "", "")}}
		r := newMachine(t, b).run(t.Context(), append([]string{"create"}, strings.Fields(args)...)...)
		if calls := b.recordedCalls(); r.code != 0 || r.stdout != "data pending\n" || len(calls) == 0 || calls[0] != want {
			t.Errorf("%s: %+v, calls\n%q, want\n%q", args, r, calls, want)
		}
	}
	for _, pool := range []string{"", "loop,3", ","} {
		b := &backend{}
		r := newMachine(t, b).run(t.Context(), "create", "data", "--size", "1G", "--pool", pool)
		if r.code != 2 || !strings.Contains(r.stderr, "is not the name of a pool") || len(b.recordedCalls()) > 0 {
			t.Errorf("pool %q: %+v, asked %q", pool, r, b.recordedCalls())
		}
	}
	for _, size := range []string{"64m", "64", "1G,3", "fast,1G", "0M", ""} {
		b := &backend{}
		r := newMachine(t, b).run(t.Context(), "create", "data", "--size", size)
		if r.code != 2 || !strings.Contains(r.stderr, "--size: \""+size+"\" is not a size: write one such as 512M") || len(b.recordedCalls()) > 0 {
			t.Errorf("%q: %+v, asked %q", size, r, b.recordedCalls())
		}
	}
	b := &backend{err: errors.WithType(errors.New("it exists"), user.ErrPrecondition)}
	r := newMachine(t, b).run(t.Context(), "create", "data", "--size", "1G")
	if want := "stowage: there is storage \"data\" already: \"stowage describe data\" shows it\n"; r.code != 1 || r.stderr != want {
		t.Errorf("%+v, want %q", r, want)
	}
}
