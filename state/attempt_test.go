package state_test

import (
	"strings"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// attempt notes one attempt, or that it has made nothing, and returns the error code.
func attempt(t *testing.T, a *state.Accessor, attempted bool, machine, tag string) string {
	t.Helper()
	results, err := a.SetAttempts([]params.Attempt{{Id: on(machine, tag), Attempted: attempted}})
	return codes(t, results, err)[0]
}

func attempted(t *testing.T, a *state.Accessor, machine, tag string) bool {
	t.Helper()
	results, err := a.Attempts([]params.MachineStorageId{on(machine, tag)})
	if got := codes(t, results, err)[0]; got != "ok" {
		t.Fatalf("attempt of %s on %q: %s", tag, machine, got)
	}
	return results[0].Attempted
}

// An attempt is remembered until its result is recorded, or is known not to exist.
// Behaviour A1.
func TestAttemptsAreRemembered(t *testing.T) {
	w := mixed(t)
	machine := w.ForMachine(machine0)
	const volume, filesystem = "volume-0-0", "filesystem-0-0"
	for _, step := range []struct {
		do                           string
		result                       string
		volume, attached, filesystem bool
	}{
		{"nothing", "ok", false, false, false},
		{"the filesystem", "ok", false, false, true},
		{"not the filesystem", "ok", false, false, false},
		{"the volume", "ok", true, true, false}, // its creation may attach it
		{"not the volume", "ok", false, false, false},
		{"the attachment", "ok", false, true, false},
		{"another's", params.CodeUnauthorized, false, true, false},
	} {
		result := "ok"
		switch step.do {
		case "the filesystem", "not the filesystem":
			result = attempt(t, machine, step.do == "the filesystem", "", filesystem)
		case "the volume", "not the volume":
			result = attempt(t, machine, step.do == "the volume", "", volume)
		case "the attachment":
			result = attempt(t, machine, true, "machine-0", volume)
		case "another's":
			result = attempt(t, w.ForMachine(machine1), true, "machine-0", volume)
		}
		if result != step.result {
			t.Errorf("%s: %s, want %s", step.do, result, step.result)
		}
		got := []bool{
			attempted(t, machine, "", volume), attempted(t, machine, "machine-0", volume), attempted(t, machine, "", filesystem),
		}
		if want := []bool{step.volume, step.attached, step.filesystem}; got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
			t.Errorf("%s: %v, want %v", step.do, got, want)
		}
	}
	w.must(w.provision(entry{kind: "volume", tag: volume}))
	if attempt(t, machine, true, "", volume); attempted(t, machine, "", volume) {
		t.Error("a recorded volume is still an attempt")
	}
}

// A volume stays attached while a filesystem may be being made on it, and no filesystem is
// begun on a volume that is being detached.
// Behaviour A8.
// Finding N7.
func TestVolumeNotDetachedDuringMkfs(t *testing.T) {
	w := mixed(t)
	machine := w.ForMachine(machine0)
	name := ""
	all, err := w.AllStorage()
	w.must(err)
	for _, s := range all {
		if s.Volume != nil && s.Volume.Tag.String() == "volume-0-0" {
			name = s.Name
		}
	}
	lower := entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-0-0"}
	w.must(w.provision(entry{kind: "volume", tag: "volume-0-0"}))
	if got := attempt(t, machine, true, "", "filesystem-0-0"); got != "ok" {
		t.Fatal(got)
	}
	w.must(w.DetachStorage([]string{name}))
	w.must(w.remove(entry{kind: "filesystem-attachment", machine: "machine-0", tag: "filesystem-0-0"}))
	if got := w.lifeOf(lower); got != life.Alive {
		t.Fatalf("the volume's attachment is %s", got)
	}
	if got := attempt(t, machine, false, "", "filesystem-0-0"); got != "ok" {
		t.Fatal(got)
	}
	if got := w.lifeOf(lower); got != life.Dying {
		t.Fatalf("with nothing made, the volume's attachment is %s", got)
	}
	if got := attempt(t, machine, true, "", "filesystem-0-0"); got == "ok" {
		t.Error("a filesystem is begun on a volume that is being detached")
	}
}

// An attempt that has ended, and may have left something, does not keep the volume attached.
// What it has left is destroyed with the filesystem.
// Behaviour A10.
func TestVolumeDetachedAfterFailedMkfs(t *testing.T) {
	w := newWorld(t)
	w.add("a", "disk", storage.StorageKindFilesystem)
	machine := w.ForMachine(machine0)
	filesystem, volume := w.one("a").Filesystem.Tag.String(), w.one("a").Volume.Tag.String()
	lower := entry{kind: "volume-attachment", machine: "machine-0", tag: volume}
	w.must(w.provision(entry{kind: "volume", tag: volume}))
	if got := attempt(t, machine, true, "", filesystem); got != "ok" {
		t.Fatal(got)
	}
	w.must(w.DetachStorage([]string{"a"}))
	w.must(w.remove(entry{kind: "filesystem-attachment", machine: "machine-0", tag: filesystem}))
	if got := w.lifeOf(lower); got != life.Alive {
		t.Fatalf("the volume's attachment is %s", got)
	}
	// The end of the attempt is recorded although the filesystem is no longer wanted here.
	for range 2 {
		results, err := machine.SetAttempts([]params.Attempt{{
			Id: params.MachineStorageId{AttachmentTag: filesystem}, Attempted: true, Ended: true,
		}})
		if err != nil || results[0].Error != nil {
			t.Fatal(err, results)
		}
		if got := w.lifeOf(lower); got != life.Dying {
			t.Fatalf("with the attempt ended, the volume's attachment is %s", got)
		}
	}
	if !attempted(t, machine, "", filesystem) {
		t.Error("the attempt is forgotten, which may have left something")
	}
	w.must(w.RemoveStorage([]string{"a"}))
	removal, err := machine.RemoveFilesystemParams([]names.FilesystemTag{w.one("a").Filesystem.Tag.(names.FilesystemTag)})
	if err != nil || removal[0].Error != nil || !strings.HasPrefix(removal[0].Result.FilesystemId, filesystem+"-") {
		t.Errorf("the parameters of its destruction are %+v, %v", removal, err)
	}
}

// A filesystem without a mount is dead as soon as it is removed. Its worker may be looking
// for what an attempt has made: the volume stays attached until the filesystem is gone.
// Finding N13.
func TestVolumeNotDetachedUntilDeadFilesystemGone(t *testing.T) {
	w := newWorld(t)
	w.add("a", "disk", storage.StorageKindFilesystem)
	machine := w.ForMachine(machine0)
	filesystem, volume := w.one("a").Filesystem.Tag.String(), w.one("a").Volume.Tag.String()
	lower := entry{kind: "volume-attachment", machine: "machine-0", tag: volume}
	w.must(w.provision(entry{kind: "volume", tag: volume}))
	if got := attempt(t, machine, true, "", filesystem); got != "ok" {
		t.Fatal(got)
	}
	w.must(w.DetachStorage([]string{"a"}))
	w.must(w.remove(entry{kind: "filesystem-attachment", machine: "machine-0", tag: filesystem}))
	w.must(w.RemoveStorage([]string{"a"}))
	w.setStatus(filesystem, status.Pending, "")
	if got := w.lifeOf(entry{kind: "filesystem", tag: filesystem}); got != life.Dead {
		t.Errorf("the filesystem is %s", got)
	}
	if got := w.lifeOf(lower); got != life.Alive {
		t.Errorf("the volume's attachment is %s", got)
	}
	w.must(w.remove(entry{kind: "filesystem", tag: filesystem}))
	if got := w.lifeOf(lower); got != life.Dying {
		t.Errorf("with the filesystem gone, the volume's attachment is %s", got)
	}
}
