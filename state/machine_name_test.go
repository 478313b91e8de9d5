package state_test

import (
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state"
)

// describe describes the machines that have been added by name.
func (w *world) describe() string {
	w.t.Helper()
	all, err := w.Machines()
	w.must(err)
	var lines []string
	for _, m := range all {
		lines = append(lines, m.Name+"="+m.Tag.Id())
	}
	return strings.Join(lines, " ")
}

// Machines have names, and numbers that are never used again.
func TestMachineNames(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"web-1", "db.example"} {
		_, err := w.AddMachine(name)
		w.must(err)
	}
	// The world has two machines without names.
	if got, want := w.describe(), "0=0 1=1 db.example=3 web-1=2"; got != want {
		t.Errorf("machines %s, want %s", got, want)
	}
	if _, err := w.AddMachine("web-1"); !errors.Is(err, errors.AlreadyExists) {
		t.Errorf("adding a machine whose name another has: %v", err)
	}
	for name, id := range map[string]string{"web-1": "2", "2": "2", "0": "0", "db.example": "3"} {
		if tag, err := w.MachineNamed(name); err != nil || tag.Id() != id {
			t.Errorf("machine %s is %s, %v; want %s", name, tag.Id(), err, id)
		}
	}
	for _, name := range []string{"nobody", "7", "", "a/b"} {
		if tag, err := w.MachineNamed(name); !errors.Is(err, errors.NotFound) {
			t.Errorf("machine %q is %s, %v", name, tag, err)
		}
	}
	tag, err := w.MachineNamed("web-1")
	w.must(err)
	w.must(w.SetInstanceId(tag, "i-2"))
	w.check()
	w.must(w.RemoveMachine(tag))
	if _, err := w.MachineNamed("web-1"); !errors.Is(err, errors.NotFound) {
		t.Errorf("the name of a machine that was removed: %v", err)
	}
	again, err := w.AddMachine("web-1")
	w.must(err)
	if again.Id() != "4" {
		t.Errorf("after the machine was removed, its name has number %s", again.Id())
	}
	w.check()
}

func TestMachineNameForm(t *testing.T) {
	for _, name := range []string{"a", "web-1", "db.example.com", "0a", "anyone", strings.Repeat("a", 63)} {
		if err := state.CheckMachineName(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", "0", "17", "Web", "-a", "a-", ".a", "a_b", "a/b", "../a", "ä", "a\n", strings.Repeat("a", 64), "any"} {
		if err := state.CheckMachineName(name); !errors.Is(err, errors.NotValid) {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

// Numbers of machines continue above the mark after a restore.
func TestMachineNumbersAfterRestore(t *testing.T) {
	w, marks := markedWorld(t)
	backup := w.dump()
	for _, name := range []string{"a", "b"} {
		_, err := w.AddMachine(name)
		w.must(err)
	}
	w.restore(backup)
	w.must(w.reopen(marks, ""))
	tag, err := w.AddMachine("c")
	w.must(err)
	if !w.Restored() || tag.Id() != "3" {
		t.Errorf("after a restore (%t), a machine has number %s, want 3, since 1 and 2 have been handed out", w.Restored(), tag.Id())
	}
	w.check()
}
