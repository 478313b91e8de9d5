package state_test

import (
	"strconv"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// openSession opens and confirms a session of machine 0.
func (w *world) openSession(secret string) state.Session {
	w.t.Helper()
	s, err := w.OpenSession(machine0, []string{secret}, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(s))
	return s
}

func (w *world) wantRefused(what string, secrets ...string) {
	w.t.Helper()
	if _, err := w.OpenSession(machine0, secrets, "boot-1"); !errors.Is(err, errors.Unauthorized) {
		w.t.Errorf("%s: %v", what, err)
	}
}

// Calls of a session are carried out until another session is opened, and not before the session
// is confirmed.
// Fault F33.
func TestSessionEndsTheOneBefore(t *testing.T) {
	w := newWorld(t)
	w.add("data", "loop", storage.StorageKindBlock)
	tag := names.NewVolumeTag("0/0")
	read := func(s state.Session) error {
		_, err := w.ForSession(s).Volumes([]names.VolumeTag{tag})
		return err
	}
	record := func(s state.Session) error {
		return w.ForSession(s).SetStatus([]params.EntityStatusArgs{{Tag: tag.String(), Status: "attaching"}})
	}
	publish := func(s state.Session) error {
		return w.ForSession(s).SetMachineBlockDevices([]storage.BlockDevice{{DeviceName: "sda"}})
	}
	update := func(s state.Session) error {
		return w.ForSession(s).UpdateMachineBlockDevices(nil, []string{"sda"})
	}
	check := func(what string, s state.Session, ended bool) {
		t.Helper()
		for _, err := range []error{read(s), record(s), publish(s), update(s)} {
			if errors.Is(err, state.ErrSessionEnded) != ended || !ended && err != nil {
				t.Errorf("a call %s: %v", what, err)
			}
		}
	}
	first, err := w.OpenSession(machine0, nil, "boot-1")
	w.must(err)
	check("before the session is confirmed", first, true)
	w.must(w.ConfirmSession(first))
	check("in a session", first, false)
	second, err := w.OpenSession(machine0, []string{first.Secret}, "boot-1")
	w.must(err)
	check("after another session was opened", first, true)
	if err := w.ConfirmSession(first); !errors.Is(err, state.ErrSessionEnded) {
		t.Errorf("confirming a session that has ended: %v", err)
	}
	w.must(w.ConfirmSession(second))
	w.must(w.ConfirmSession(second))
	check("in the second session", second, false)
	if second.Number <= first.Number {
		t.Errorf("session %d after %d", second.Number, first.Number)
	}
	w.check()
}

// Of two agents with the same secret, the first to open a session goes on. The other is refused,
// and both can be told.
func TestSessionOfCopiedDirectory(t *testing.T) {
	w := newWorld(t)
	first := w.openSession("")
	notify, err := w.WatchSession(machine0)
	events := follow[struct{}](t, notify, err)
	next(t, events)
	original := w.openSession(first.Secret)
	next(t, events)
	w.wantRefused("a copy", first.Secret)
	next(t, events)
	if info, err := w.CurrentSession(machine0); err != nil || info.Number != original.Number || !info.Refused.Equal(start) {
		t.Errorf("after a copy was refused: %+v, %v", info, err)
	}
	w.wantRefused("an agent without a secret", "")
	w.openSession(original.Secret)
	w.check()
}

// An agent that crashed while it stored the secret of a session can open the next one, with the
// secret of this session or of the one before.
func TestSessionThatWasNotConfirmed(t *testing.T) {
	w := newWorld(t)
	_, err := w.OpenSession(machine0, nil, "boot-1")
	w.must(err)
	first := w.openSession("")
	for _, stored := range []bool{false, true, false} {
		lost, err := w.OpenSession(machine0, []string{first.Secret}, "boot-1")
		w.must(err)
		if stored {
			first = lost
			lost, err = w.OpenSession(machine0, []string{first.Secret}, "boot-1")
			w.must(err)
		}
		w.wantRefused("an agent without a secret", "")
		if _, err := w.ForSession(lost).Life([]names.Tag{names.NewVolumeTag("0/0")}); !errors.Is(err, state.ErrSessionEnded) {
			t.Errorf("a call in a session that was not confirmed: %v", err)
		}
	}
	last := w.openSession(first.Secret)
	w.wantRefused("the secret before the last", first.Secret)
	w.openSession(last.Secret)
}

// An agent has stored the secret of a session, and before it can confirm that, a request that it has
// given up opens another session. It can open the next one with the secret that opened the session.
// Finding N42.
func TestSessionOpenedLate(t *testing.T) {
	w := newWorld(t)
	var stored []string // none at first
	for range 3 {
		for range 2 {
			s, err := w.OpenSession(machine0, stored, "boot-1")
			w.must(err)
			_, err = w.OpenSession(machine0, stored, "boot-1")
			w.must(err)
			if err := w.ConfirmSession(s); !errors.Is(err, state.ErrSessionEnded) {
				t.Errorf("confirming a session after another one was opened: %v", err)
			}
			stored = []string{s.Secret, s.Opener}
			s, err = w.OpenSession(machine0, stored, "boot-1")
			w.must(err)
			stored = []string{s.Secret, s.Opener}
		}
		s, err := w.OpenSession(machine0, stored, "boot-1")
		w.must(err)
		w.must(w.ConfirmSession(s))
		w.wantRefused("a copy of the directory", stored...)
		stored = []string{s.Secret, s.Opener}
	}
}

// After a restore, agents have newer secrets than the state. The first session of a machine
// needs none, the next one does.
func TestSessionAfterRestore(t *testing.T) {
	w := newWorld(t)
	before := w.openSession("")
	w.must(w.RaiseGeneration())
	after := w.openSession("newer than the backup")
	if after.Number <= before.Number {
		t.Errorf("session %d after %d", after.Number, before.Number)
	}
	w.wantRefused("another agent", before.Secret)
	w.openSession(after.Secret)

	// The same with a request that comes late.
	w.must(w.RaiseGeneration())
	stored := []string{"newer than that backup", "newer than the other"}
	s, err := w.OpenSession(machine0, stored, "boot-1")
	w.must(err)
	_, err = w.OpenSession(machine0, stored, "boot-1")
	w.must(err)
	_, err = w.OpenSession(machine0, []string{s.Secret, s.Opener}, "boot-1")
	w.must(err)
}

func TestSessionOfMissingMachine(t *testing.T) {
	w := newWorld(t)
	missing := names.NewMachineTag("7")
	if _, err := w.OpenSession(missing, nil, "boot-1"); !errors.Is(err, errors.NotFound) {
		t.Errorf("a session of a machine that does not exist: %v", err)
	}
	w.openSession("")
	s, err := w.OpenSession(machine1, nil, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(s))
	w.must(w.RemoveMachine(machine1))
	if _, err := w.ForSession(s).Life([]names.Tag{names.NewVolumeTag("0/0")}); !errors.Is(err, state.ErrSessionEnded) {
		t.Errorf("a call of a machine that was removed: %v", err)
	}
	w.check()
}

func TestLabelMachine(t *testing.T) {
	w := newWorld(t)
	tag, err := w.AddMachine("web")
	w.must(err)
	w.must(w.LabelMachine(tag, map[string]string{"zone": "a", "disk": "ssd"}, nil))
	w.must(w.LabelMachine(tag, map[string]string{"zone": "b"}, []string{"disk", "none"}))
	if m, err := w.Machine(tag); err != nil || len(m.Labels) != 1 || m.Labels["zone"] != "b" {
		t.Errorf("labels %v, %v", m.Labels, err)
	}
	many := map[string]string{}
	for i := range 64 {
		many[strconv.Itoa(i)] = "x"
	}
	wantError(t, w.LabelMachine(tag, many, nil), errors.NotValid, "at most 64 labels")
	w.must(w.LabelMachine(tag, nil, []string{"zone"}))
	w.must(w.LabelMachine(tag, many, nil))
	wantError(t, w.LabelMachine(names.NewMachineTag("7"), nil, nil), errors.NotFound)
	w.check()
}
