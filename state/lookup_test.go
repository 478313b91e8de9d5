package state_test

import (
	"fmt"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/state"
)

// Mount points are compared with those of the storage that a machine has, and by whole names of
// directories.
func TestTakenMountPoints(t *testing.T) {
	w := newWorld(t)
	w.must(w.EnsureMachine(machine1))
	add := func(name, pool, mount string, machine names.MachineTag) {
		t.Helper()
		w.must(w.AddStorage(state.StorageParams{Name: name, Kind: filesystem, Pool: pool, Size: 10, MountPoint: mount, Machine: machine}))
	}
	add("a", "tmpfs", "/srv/a", machine0)
	add("deep/0", "loop", "/srv/deep/down/0", machine0)
	add("other", "tmpfs", "/srv/other", machine1)
	add("shared", "nfs", "/srv/shared", machine0)
	check := func(when string, machine names.MachineTag, path, want string) {
		t.Helper()
		taken, err := w.TakenMountPoints([]state.MountPoint{{Path: "/elsewhere", Machine: machine}, {Path: path, Machine: machine}})
		w.must(err)
		got := ""
		if m := taken[1]; m != nil {
			got = fmt.Sprintf("%s of %s", m.Path, m.Name)
			if m.Machine != machine {
				t.Errorf("%s, %s: the machine is %s", when, path, m.Machine)
			}
		}
		if taken[0] != nil || got != want {
			t.Errorf("%s, %s on %s: taken by %q, want %q", when, path, machine, got, want)
		}
	}
	for _, test := range []struct{ path, want string }{
		{"/srv/a", "/srv/a of a"},
		{"/srv/a/b/c", "/srv/a of a"},
		{"/srv/deep", "/srv/deep/down/0 of deep/0"},
		{"/srv/deep/down/0", "/srv/deep/down/0 of deep/0"},
		{"/srv/deep/down/1", ""},
		{"/srv/aa", ""},
		{"/srv/de", ""},
		{"/srv/other", ""},
		{"/srv", "/srv/a of a"},
	} {
		check("at first", machine0, test.path, test.want)
	}
	check("at first", machine1, "/srv/other/inside", "/srv/other of other")
	nobody := names.MachineTag{}
	check("attached", nobody, "/srv/shared", "")

	// Storage of the environment can be attached anywhere once it is detached, a machine's cannot.
	w.work()
	w.must(w.DetachStorage([]string{"shared", "a"}))
	w.work()
	check("detached", machine0, "/srv/shared", "")
	check("detached", nobody, "/srv/shared", "/srv/shared of shared")
	check("detached", machine0, "/srv/a", "/srv/a of a")
	w.must(w.AttachStorage([]string{"shared"}, machine1))
	check("attached again", nobody, "/srv/shared", "")
	check("attached again", machine1, "/srv/shared", "/srv/shared of shared")
	w.must(w.RemoveStorage([]string{"a", "shared"}))
	w.work()
	check("removed", machine0, "/srv/a", "")
	check("removed", machine1, "/srv/shared", "")
}

// A volume takes space that it does not have yet until it is made, and when it is to grow.
func TestUnmadeStorage(t *testing.T) {
	w := newWorld(t)
	check := func(when, want string) {
		t.Helper()
		unmade, err := w.UnmadeStorage()
		w.must(err)
		got := ""
		for _, u := range unmade {
			got += fmt.Sprintf("%s %d;", u.Name, u.MissingMiB)
		}
		if got != want {
			t.Errorf("%s: %q is to be made, want %q", when, got, want)
		}
	}
	w.add("block", "loop", block)
	w.add("fs", "loop", filesystem)
	w.add("memory", "tmpfs", filesystem)
	size := w.one("block").RequestedMiB
	check("added", fmt.Sprintf("block %d;fs %d;", size, size))
	w.work()
	check("made", "")
	w.must(w.ResizeStorage("block", w.one("block").SizeMiB+30)) // it may have been made larger than wanted
	check("to grow", "block 30;")
	w.must(w.RemoveStorage([]string{"block"}))
	w.work()
	w.add("gone", "loop", block)
	w.must(w.RemoveStorage([]string{"gone"}))
	w.work()
	check("removed", "")
}
