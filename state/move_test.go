package state_test

import (
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/state"
)

// connect makes both machines connected, each in a session.
func (w *world) connect() {
	w.t.Helper()
	for _, machine := range []names.MachineTag{machine0, machine1} {
		s, err := w.OpenSession(machine, nil, "boot-1")
		w.must(err)
		w.must(w.ConfirmSession(s))
		w.must(w.SetPresence(s, state.Presence{Connected: true, Since: w.clock.Now()}))
	}
}

func (w *world) disconnect(machine names.MachineTag) {
	w.t.Helper()
	now, err := w.CurrentSession(machine)
	w.must(err)
	w.must(w.SetPresence(state.Session{Machine: machine, Number: now.Number}, state.Presence{Since: w.clock.Now()}))
}

// wantAttached checks that storage is attached to a machine, or detached for the zero tag.
func (w *world) wantAttached(name string, machine names.MachineTag) {
	w.t.Helper()
	var got names.MachineTag
	s := w.one(name)
	if len(s.Attachments) > 0 && s.Attachments[0].Life == life.Alive {
		got = s.Attachments[0].Machine
	}
	if got != machine {
		w.t.Errorf("%s is attached to %q, want %q", name, got, machine)
	}
}

var nowhere names.MachineTag

// Storage of the environment moves once it is detached. Its filesystem on a volume becomes one of
// the other machine, which is told to take over what is there.
func TestMove(t *testing.T) {
	w := newWorld(t)
	w.connect()
	w.add("disk", "disk", block)
	w.add("data", "disk", filesystem)
	w.add("nfs", "nfs", filesystem)
	w.work()
	all := []string{"data", "disk", "nfs"}
	before := w.one("data").Filesystem
	w.must(w.move(all, machine1))
	w.check()
	for _, name := range all {
		w.wantAttached(name, nowhere)
	}
	w.work()
	w.check()
	for _, name := range all {
		w.wantAttached(name, machine1)
		if s := w.one(name); s.Status != "attached" {
			t.Errorf("%s is %s %q", name, s.Status, s.Message)
		}
	}
	after := w.one("data").Filesystem
	if after.Tag == before.Tag || after.UUID != before.UUID {
		t.Errorf("the filesystem was %s with UUID %s, and is %s with UUID %s", before.Tag, before.UUID, after.Tag, after.UUID)
	}
	if got := w.filesystemParams(after.Tag).Attributes["uuid"]; got != before.UUID {
		t.Errorf("the filesystem is made with UUID %v, want %s", got, before.UUID)
	}
	w.must(w.move(all, machine1))
	w.check()
	for _, name := range all {
		w.wantAttached(name, machine1)
	}
	w.must(w.move(all, machine0))
	w.work()
	w.check()
	back := w.one("data").Filesystem
	w.wantAttached("data", machine0)
	if back.Tag == before.Tag || back.UUID != before.UUID {
		t.Errorf("the filesystem was %s with UUID %s, and is %s with UUID %s", before.Tag, before.UUID, back.Tag, back.UUID)
	}
	w.must(w.RemoveStorage(all))
	w.work()
	w.check()
	if left, err := w.AllStorage(); err != nil || len(left) > 0 {
		t.Errorf("left %+v, %v", left, err)
	}
}

// filesystemParams returns the parameters of a filesystem.
func (w *world) filesystemParams(tag names.Tag) params.FilesystemParams {
	w.t.Helper()
	results, err := w.owner(tag).FilesystemParams([]names.FilesystemTag{tag.(names.FilesystemTag)})
	w.must(err)
	w.must(asError(results[0].Error))
	return results[0].Result
}

// A filesystem that was never made is made on the other machine, as new.
func TestMoveBeforeMaking(t *testing.T) {
	w := newWorld(t)
	w.connect()
	w.add("data", "disk", filesystem)
	w.must(w.move([]string{"data"}, machine1))
	for _, tag := range []string{w.one("data").Filesystem.Tag.String(), w.one("data").Volume.Tag.String()} {
		w.must(w.remove(entry{machine: "machine-0", tag: tag}))
	}
	w.check()
	w.wantAttached("data", machine1)
	if _, ok := w.filesystemParams(w.one("data").Filesystem.Tag).Attributes["uuid"]; ok {
		t.Error("a filesystem that was never made is to be taken over")
	}
}

// Other requests end a move.
func TestMoveIsEnded(t *testing.T) {
	for what, test := range map[string]struct {
		end  func(*world) error
		want names.MachineTag
	}{
		"detach":          {func(w *world) error { return w.DetachStorage([]string{"data"}) }, nowhere},
		"move elsewhere":  {func(w *world) error { return w.move([]string{"data"}, machine0) }, machine0},
		"the target ends": {func(w *world) error { return w.RemoveMachine(machine1) }, nowhere},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.connect()
			w.add("data", "disk", filesystem)
			w.work()
			w.must(w.move([]string{"data"}, machine1))
			w.must(test.end(w))
			w.work()
			w.check()
			w.wantAttached("data", test.want)
			w.must(w.AttachStorage([]string{"data"}, machine0))
			w.work()
			w.wantAttached("data", machine0)
		})
	}
}

// What cannot move says why, and nothing changes.
func TestMoveIsRefused(t *testing.T) {
	w := newWorld(t)
	w.connect()
	w.add("loop", "loop", filesystem)
	w.add("tmp", "tmpfs", filesystem)
	w.add("disk", "disk", block)
	w.add("gone", "disk", block)
	w.work()
	w.must(w.RemoveStorage([]string{"gone"}))
	refused := func(kind error, text string, machine names.MachineTag, all ...string) {
		t.Helper()
		wantError(t, w.move(all, machine), kind, text)
		w.wantAttached("disk", machine0)
	}
	refused(errors.NotSupported, "cannot leave it", machine1, "disk", "loop")
	refused(errors.NotSupported, "cannot leave it", machine1, "disk", "tmp")
	refused(errors.NotValid, "being removed", machine1, "disk", "gone")
	refused(errors.NotFound, `storage "none"`, machine1, "disk", "none")
	refused(errors.NotFound, "machine 7", names.NewMachineTag("7"), "disk")
	w.disconnect(machine0)
	refused(errors.NotValid, "stowage machine fence 0 --confirmed", machine1, "disk")
	w.must(w.move([]string{"loop"}, machine0))
	w.check()
}

// A machine fails while it makes a filesystem, so it may have made it. The filesystem of the next
// machine has the same UUID, by which that one knows what is on the volume.
// Finding N39: it had another UUID.
// Fault F35.
func TestFilesystemThatMayHaveBeenMadeMoves(t *testing.T) {
	w := newWorld(t)
	w.connect()
	w.add("data", "disk", filesystem)
	volume := w.one("data").Volume.Tag.String()
	w.must(w.provision(entry{scope: "environ", kind: "volume", tag: volume}))
	w.must(w.provision(entry{scope: "environ", kind: "volume-attachment", machine: "machine-0", tag: volume}))
	before := w.one("data").Filesystem
	if code := attempt(t, w.ForMachine(machine0), true, "", before.Tag.String()); code != "ok" {
		t.Fatalf("noting the attempt: %s", code)
	}
	w.disconnect(machine0)
	w.must(w.FenceMachine(machine0))
	w.must(w.move([]string{"data"}, machine1))
	w.work()
	w.check()
	w.wantAttached("data", machine1)
	after := w.one("data").Filesystem
	if after.Tag == before.Tag || after.UUID != before.UUID {
		t.Errorf("the filesystem was %s with UUID %s, and is %s with UUID %s", before.Tag, before.UUID, after.Tag, after.UUID)
	}
	if uuid, ok := w.filesystemParams(after.Tag).Attributes["uuid"]; ok {
		t.Errorf("the filesystem has to exist, with UUID %v", uuid)
	}
}

// A drained machine gets no storage, and keeps what cannot move.
func TestDrainMachine(t *testing.T) {
	w := newWorld(t)
	w.connect()
	w.add("data", "disk", filesystem)
	w.add("disk", "disk", block)
	w.add("loop", "loop", filesystem)
	w.work()
	wantError(t, w.DrainMachine(names.NewMachineTag("7"), state.Changes{}), errors.NotFound, "machine 7")
	to := func(name string, machine names.MachineTag) state.Attach {
		return state.Attach{Name: name, Machine: machine}
	}
	w.must(w.DrainMachine(machine0, state.Changes{Move: []state.Attach{to("data", machine1), to("disk", machine1)}}))
	w.must(w.DrainMachine(machine0, state.Changes{}))
	w.work()
	w.wantAttached("data", machine1)
	w.wantAttached("disk", machine1)
	w.wantAttached("loop", machine0)
	if m, err := w.Machine(machine0); err != nil || !m.Drained {
		t.Errorf("machine %+v, %v", m, err)
	}
	const says = "machine 0 is drained: choose another machine, or end that with `stowage machine undrain 0`"
	wantError(t, w.move([]string{"data"}, machine0), errors.NotValid, says)
	w.must(w.DetachStorage([]string{"disk"}))
	w.work()
	wantError(t, w.AttachStorage([]string{"disk"}, machine0), errors.NotValid, says)
	wantError(t, w.AddStorage(state.StorageParams{Name: "new", Kind: block, Pool: "disk", Size: 1, Machine: machine0}), errors.NotValid, says)

	// A move that has begun before ends where it was to end.
	w.must(w.move([]string{"data"}, machine1))
	w.must(w.UndrainMachine(machine0))
	w.must(w.move([]string{"data"}, machine0))
	w.must(w.DrainMachine(machine0, state.Changes{}))
	w.work()
	w.wantAttached("data", machine0)
	w.check()
}

// What a fenced machine had of the environment can be attached elsewhere, without a word of that
// machine. Its own storage stays.
// Fault F35.
func TestFence(t *testing.T) {
	w := newWorld(t)
	w.connect()
	w.add("data", "disk", filesystem)
	w.add("disk", "disk", block)
	w.add("loop", "loop", filesystem)
	w.work()
	w.must(w.plan(entry{kind: "volume-attachment", machine: "machine-0", tag: w.one("disk").Volume.Tag.String()}))
	wantError(t, w.FenceMachine(machine0), errors.NotValid, "its agent is connected")
	session, err := w.CurrentSession(machine0)
	w.must(err)
	w.disconnect(machine0)
	w.must(w.FenceMachine(machine0))
	w.must(w.FenceMachine(machine0))
	w.check()
	w.wantAttached("loop", machine0)
	w.wantAttached("data", nowhere)
	if now, err := w.CurrentSession(machine0); err != nil || now.Number <= session.Number {
		t.Errorf("session %d after %d, %v", now.Number, session.Number, err)
	}
	for _, e := range w.entries() {
		if e.machine == "machine-0" && e.kind != "volume-attachment" && e.tag != w.one("loop").Filesystem.Tag.String() {
			t.Errorf("the machine's worker still has to undo %+v", e)
		}
	}
	wantError(t, w.AttachStorage([]string{"disk"}, machine0), errors.NotValid)
	w.must(w.move([]string{"data", "disk"}, machine1))
	// Only the worker of the environment, and that of the other machine, do anything.
	for range 3 {
		for _, e := range w.entries() {
			if w.owner(e.parsed()) != nil && e.scope != "machine-0" {
				switch w.lifeOf(e) {
				case life.Alive:
					_ = w.provision(e)
				case life.Dying:
					w.must(w.remove(e))
				}
			}
		}
	}
	w.check()
	w.wantAttached("data", machine1)
	w.wantAttached("disk", machine1)
	all, err := w.Machines()
	w.must(err)
	if all[0].Fenced.IsZero() || !all[1].Fenced.IsZero() {
		t.Errorf("machines %+v", all)
	}
}

// The fence of a machine ends when it returns after a restart. One that was never off is refused.
// Promise S26.
// Fault F36.
func TestFencedMachineReturns(t *testing.T) {
	w := newWorld(t)
	first, err := w.OpenSession(machine0, nil, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(first))
	w.must(w.FenceMachine(machine0))
	for _, boot := range []string{"boot-1", ""} {
		_, err := w.OpenSession(machine0, []string{first.Secret}, boot)
		wantError(t, err, errors.Forbidden, "it has not been restarted since")
	}
	second, err := w.OpenSession(machine0, []string{first.Secret}, "boot-2")
	w.must(err)
	w.must(w.ConfirmSession(second))
	all, err := w.Machines()
	w.must(err)
	if !all[0].Fenced.IsZero() {
		t.Errorf("machine %+v", all[0])
	}
	wantError(t, w.FenceMachine(names.NewMachineTag("7")), errors.NotFound)
	w.check()
}

// A fence knows the boot ID of a machine whose agent was replaced since.
// Fault F36.
func TestFenceAfterAgentWasReplaced(t *testing.T) {
	w := newWorld(t)
	enrolled, err := w.Enrol(w.token(role.Machine, "", 1), "web", []byte("first"))
	w.must(err)
	session, err := w.OpenSession(enrolled.Machine, nil, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(session))
	_, err = w.Enrol(w.token(role.Machine, "web", 1), "web", []byte("second"))
	w.must(err)
	w.must(w.FenceMachine(enrolled.Machine))
	_, err = w.OpenSession(enrolled.Machine, nil, "boot-1")
	wantError(t, err, errors.Forbidden, "it has not been restarted since")
	_, err = w.OpenSession(enrolled.Machine, nil, "boot-2")
	w.must(err)
	w.check()
}

// In a restored state, the last boot ID of a machine is not known: it has been restarted only if its
// agent returns with another boot ID than it had first after the fence.
// Fault F36.
func TestFenceInRestoredState(t *testing.T) {
	w := newWorld(t)
	first, err := w.OpenSession(machine0, nil, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(first))
	w.must(w.RaiseGeneration())
	w.must(w.FenceMachine(machine0))
	for _, boot := range []string{"", "boot-2", "boot-2", ""} { // of a session since the backup
		_, err := w.OpenSession(machine0, nil, boot)
		wantError(t, err, errors.Forbidden, "it has not been restarted since")
	}
	second, err := w.OpenSession(machine0, nil, "boot-3")
	w.must(err)
	w.must(w.ConfirmSession(second))
	w.check()
}

// A machine that was fenced at the time of a backup may have returned since.
func TestFenceOfBackupDoesNotCount(t *testing.T) {
	w := newWorld(t)
	session, err := w.OpenSession(machine0, nil, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(session))
	w.must(w.FenceMachine(machine0))
	w.must(w.RaiseGeneration())
	if m, err := w.Machines(); err != nil || !m[0].Fenced.IsZero() {
		t.Errorf("machine %+v, %v", m[0], err)
	}
	w.must(w.FinishFences())
	_, err = w.OpenSession(machine0, nil, "boot-1")
	w.must(err)
	w.check()
}
