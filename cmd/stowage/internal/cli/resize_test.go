package cli_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
)

func TestResizeSizeArgument(t *testing.T) {
	for _, test := range []struct{ size, want string }{
		{"512M", "resize {Names:[data] SizeMiB:512 More:false}"},
		{"2G", "resize {Names:[data] SizeMiB:2048 More:false}"},
		{"+256MiB", "resize {Names:[data] SizeMiB:256 More:true}"},
	} {
		b := &backend{changes: []user.Change{{Action: user.ActionGrow, Item: "storage", Name: "data", Detail: "256 MiB to 512 MiB"}}}
		r := newMachine(t, b).run(t.Context(), "resize", "data", test.size)
		if r.code != 0 || r.stdout != "~ data  grow  256 MiB to 512 MiB\n" || !slices.Equal(b.recordedCalls(), []string{test.want}) {
			t.Errorf("%s: %+v, asked %q", test.size, r, b.recordedCalls())
		}
	}
	for _, size := range []string{"", "512", "-512M", "0M", "+", "++1M", "big", "loop,512M", "512M,2", "512M,", "1Q", "64m"} {
		b := &backend{}
		r := newMachine(t, b).run(t.Context(), "resize", "data", "--", size)
		if r.code != 2 || !strings.Contains(r.stderr, "is not a size: write one such as 512M, 10G, 10Gi or 10GiB, with a unit of M, G, T, P, E, Z or Y; +256M grows by that much") || len(b.recordedCalls()) > 0 {
			t.Errorf("%q: %+v, asked %q", size, r, b.recordedCalls())
		}
	}
}

func TestResizeWaits(t *testing.T) {
	has := func(size uint64, s status.Status, message string) user.Event {
		r := row("data", s, message, "/srv/data")
		r.SizeMiB, r.WantedMiB = size, 512
		return event(r)
	}
	cannot := func(size uint64) user.Event {
		r := row("data", status.Attached, fmt.Sprintf("cannot grow to %d MiB: no space left", size), "/srv/data")
		r.SizeMiB, r.WantedMiB, r.CannotGrowToMiB = 256, 512, size
		return event(r)
	}
	for _, test := range []struct {
		about  string
		events []user.Event
		code   int
		stdout string
		stderr string
	}{
		{"grown", []user.Event{has(256, status.Attached, ""), has(256, status.Attached, "growing to 512 MiB"), has(513, status.Attached, "")}, 0,
			"data attached at /srv/data, 256M → 512M\ndata attached at /srv/data, 256M → 512M: growing to 512 MiB\ndata attached at /srv/data\nall 1 resized\n", ""},
		{"growth fails", []user.Event{cannot(512)}, 1,
			"data attached at /srv/data, 256M → 512M: cannot grow to 512 MiB: no space left\n",
			"stowage: 1 of 1 not resized: data attached at /srv/data, 256M → 512M: cannot grow to 512 MiB: no space left\n"},
		{"growth to a smaller size failed", []user.Event{cannot(511), has(512, status.Attached, "")}, 0,
			"data attached at /srv/data, 256M → 512M: cannot grow to 511 MiB: no space left\ndata attached at /srv/data\nall 1 resized\n", ""},
		{"detached", []user.Event{has(256, status.Detached, "")}, 1, "data detached at /srv/data, 256M → 512M\n",
			"stowage: 1 of 1 not resized: data detached at /srv/data, 256M → 512M\n"},
		{"in error", []user.Event{has(256, status.Error, "no loop devices")}, 1, "data error at /srv/data, 256M → 512M: no loop devices\n",
			"stowage: 1 of 1 not resized: data error at /srv/data, 256M → 512M: no loop devices\n"},
	} {
		r := newMachine(t, &backend{events: test.events}).run(t.Context(), "resize", "data", "512M", "--wait")
		stdout := strings.TrimPrefix(r.stdout, "nothing to change\n")
		if r.code != test.code || stdout != test.stdout || r.stderr != test.stderr {
			t.Errorf("%s: exit status %d, stdout\n%sstderr\n%swant %d,\n%s%s", test.about, r.code, stdout, r.stderr, test.code, test.stdout, test.stderr)
		}
	}
}

func TestApplyWaitsForGrowth(t *testing.T) {
	growing := row("data", status.Attached, "growing to 128 MiB", "/srv/data")
	growing.WantedMiB = 128
	grown := row("data", status.Attached, "", "/srv/data")
	grown.SizeMiB, grown.WantedMiB = 128, 128
	b := &backend{
		changes: []user.Change{{Action: user.ActionGrow, Item: "storage", Name: "data", Detail: "64 MiB to 128 MiB"}},
		names:   []string{"data"},
		events:  []user.Event{event(growing), event(grown)},
	}
	m := newMachine(t, b)
	r := m.run(t.Context(), "apply", "-f", m.file(t, spec), "--wait")
	if r.code != 0 || !strings.HasSuffix(r.stdout, "growing to 128 MiB\ndata attached at /srv/data\nall 1 attached and resized\n") {
		t.Errorf("%+v", r)
	}
}

func TestImportArguments(t *testing.T) {
	here, err := filepath.Abs("some/file")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"data", "/old/file", "--pool", "loop", "--mount", "/srv/data"}, "import {Name:data Pool:loop Machine: Source:/old/file Mount:/srv/data Block:false Copy:false}"},
		{[]string{"data", "some/file", "--pool", "loop", "--block"}, "import {Name:data Pool:loop Machine: Source:" + here + " Mount: Block:true Copy:false}"},
		{[]string{"data", "UUID=1-2", "--pool", "loop"}, "import {Name:data Pool:loop Machine: Source:UUID=1-2 Mount: Block:false Copy:false}"},
		{[]string{"data", "/old/file", "--pool", "loop", "--copy"}, "import {Name:data Pool:loop Machine: Source:/old/file Mount: Block:false Copy:true}"},
		{[]string{"data", "/old/file", "--pool", "loop", "--machine", "web"}, "import {Name:data Pool:loop Machine:web Source:/old/file Mount: Block:false Copy:false}"},
	} {
		b := &backend{changes: []user.Change{{Action: user.ActionImport, Item: "storage", Name: "data", Detail: "block"}}}
		r := newMachine(t, b).run(t.Context(), append([]string{"import"}, test.args...)...)
		if r.code != 0 || r.stdout != "+ data  import  block\n" || !slices.Equal(b.recordedCalls(), []string{test.want}) {
			t.Errorf("%q: %+v, asked %q", test.args, r, b.recordedCalls())
		}
	}
	for _, args := range [][]string{
		{"data", "/old/file"}, {"data", "--pool", "loop"}, {"data", "", "--pool", "loop"}, {"data", "/old/file", "--pool", "loop", "--block", "--mount", "/m"},
		{"data", "old/file", "--pool", "loop", "--machine", "web"},
	} {
		b := &backend{}
		if r := newMachine(t, b).run(t.Context(), append([]string{"import"}, args...)...); r.code != 2 || len(b.recordedCalls()) > 0 {
			t.Errorf("%q: %+v, asked %q", args, r, b.recordedCalls())
		}
	}
}
