package state_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
)

// The status of an instance is the higher-ranking status of its volume and filesystem.
// Behaviour G11.
func TestInstanceStatus(t *testing.T) {
	for _, test := range []struct{ volume, filesystem, want string }{
		{"pending", "pending", "pending"},
		{"attached", "pending", "pending"},
		{"attaching", "pending", "pending"},
		{"attached", "attaching", "attaching"},
		{"attached", "attached", "attached"},
		{"attached", "detaching", "detaching"},
		{"detaching", "detached", "detaching"},
		{"detached", "detached", "detached"},
		{"detaching", "destroying", "detaching"},
		{"error: no room", "pending", "error: no room"},
		{"pending", "error: no fs", "error: no fs"},
		{"error: no room", "pending: waiting", "error: no room"},
		{"attaching: try 3", "pending", "attaching: try 3"},
		{"attached", "detaching: busy", "detaching: busy"},
		{"attached", "attached: size is not enforced", "attached: size is not enforced"},
		{"attached: growing to 512 MiB", "attached", "attached: growing to 512 MiB"},
		{"attached: thin", "attached: cannot grow to 512 MiB", "attached: thin; cannot grow to 512 MiB"},
		{"attached: thin", "attaching: try 3", "attaching: try 3"},
		{"attached: growing to 512 MiB", "attaching", "attaching"},
		{"attached: growing to 512 MiB", "attaching: try 3", "attaching: try 3"},
	} {
		w := newWorld(t)
		w.add("it", "loop", filesystem)
		s := w.one("it")
		for tag, text := range map[string]string{s.Volume.Tag.String(): test.volume, s.Filesystem.Tag.String(): test.filesystem} {
			value, message, _ := strings.Cut(text, ": ")
			w.setStatus(tag, status.Status(value), message)
		}
		s = w.one("it")
		value, message, _ := strings.Cut(test.want, ": ")
		if string(s.Status) != value || s.Message != message {
			t.Errorf("volume %s, filesystem %s: %s: %s, want %s", test.volume, test.filesystem, s.Status, s.Message, test.want)
		}
	}
}

// Two workers set the status of a volume with a plan, in either order. The failure of one of
// them is shown until the same worker reports success.
func TestVolumeStatusWithPlan(t *testing.T) {
	w := mixed(t)
	of := entry{kind: "volume-attachment", machine: "machine-1", tag: "volume-3"}
	w.must(w.provision(entry{kind: "volume", tag: of.tag}))
	w.must(w.provision(of))
	w.must(w.plan(of))
	accessors := map[string]*state.Accessor{"environment": w.ForEnviron(), "machine": w.ForMachine(machine1)}
	for _, step := range []struct {
		by      string
		status  status.Status
		message string
		want    string
	}{
		{"environment", status.Attached, "", "attached"},
		{"machine", status.Attaching, "no route to host", "attaching: no route to host"},
		{"environment", status.Attached, "", "attaching: no route to host"},
		{"machine", status.Attached, "", "attached"},
		{"environment", status.Error, "missing", "error: missing"},
		{"machine", status.Attached, "", "error: missing"},
		{"machine", status.Attaching, "no route to host", "error: missing"},
		{"environment", status.Attached, "owner not known", "attaching: no route to host"},
		{"machine", status.Attached, "", "attached: owner not known"},
		{"machine", status.Error, "gave up", "error: gave up"},
	} {
		args := []params.EntityStatusArgs{{Tag: of.tag, Status: string(step.status), Info: step.message}}
		w.must(accessors[step.by].SetStatus(args))
		s := w.one("d")
		if shown := strings.TrimSuffix(fmt.Sprintf("%s: %s", s.Status, s.Message), ": "); shown != step.want {
			t.Errorf("after the %s set %q, %q, the status is %q, want %q", step.by, step.status, step.message, shown, step.want)
		}
	}
	events, err := w.Events("d")
	w.must(err)
	if last := events[len(events)-1]; last.Type != state.EventError || last.Text != "gave up" {
		t.Errorf("the events end with %+v", last)
	}

	// A failed attachment does not show once the volume is being detached.
	w.must(w.DetachStorage([]string{"d"}))
	if s := w.one("d"); s.Status != status.Detaching || s.Message != "" {
		t.Errorf("while being detached, it is %s: %q", s.Status, s.Message)
	}
	for by, accessor := range accessors { // neither has heard of it
		w.must(accessor.SetStatus([]params.EntityStatusArgs{{Tag: of.tag, Status: string(status.Attached)}}))
		if s := w.one("d"); s.Status != status.Detaching {
			t.Errorf("while being detached, it is %s after the %s has said that it is attached", s.Status, by)
		}
	}
	w.must(accessors["machine"].SetStatus([]params.EntityStatusArgs{{Tag: of.tag, Status: "detaching", Info: "busy"}}))
	if s := w.one("d"); s.Status != status.Detaching || s.Message != "busy" {
		t.Errorf("after a failed detachment, it is %s: %q", s.Status, s.Message)
	}
	w.must(single(accessors["machine"].RemoveVolumeAttachmentPlan([]params.MachineStorageId{on(of.machine, of.tag)})))
	if s := w.one("d"); s.Status != status.Detaching || s.Message != "" {
		t.Errorf("with its plan undone, it is %s: %q", s.Status, s.Message)
	}
	w.check()
}

func TestStatusSince(t *testing.T) {
	w := newWorld(t)
	w.add("it", "loop", block)
	since := func(want time.Time) {
		t.Helper()
		if s := w.one("it"); !s.Since.Equal(want) {
			t.Errorf("%s %q since %s, want %s", s.Status, s.Message, s.Since, want)
		}
	}
	since(start)
	w.clock.Advance(time.Minute)
	w.setStatus("volume-0-0", status.Pending, "no room")
	since(start.Add(time.Minute))
	w.clock.Advance(time.Minute)
	w.setStatus("volume-0-0", status.Pending, "no room")
	since(start.Add(time.Minute))
	w.setStatus("volume-0-0", status.Pending, "no room at all")
	since(start.Add(2 * time.Minute))
}

// A number tells programs that storage cannot grow, whichever part of it cannot.
func TestCannotGrowTo(t *testing.T) {
	w := newWorld(t)
	w.add("data", "loop", filesystem)
	w.work()
	report := func(tag string, data map[string]any) {
		w.must(w.ForMachine(machine0).SetStatus([]params.EntityStatusArgs{{Tag: tag, Status: "attached", Info: "cannot grow", Data: data}}))
	}
	for _, size := range []any{uint64(512), 512.0} { // as it is in JSON
		for _, tag := range []string{"volume-0-0", "filesystem-0-0"} {
			report(tag, map[string]any{status.CannotGrowTo: size})
			if got := w.one("data").CannotGrowTo; got != 512 {
				t.Errorf("%s: it cannot grow to %d", tag, got)
			}
			report(tag, map[string]any{"other": size})
			if got := w.one("data").CannotGrowTo; got != 0 {
				t.Errorf("%s: it still cannot grow to %d", tag, got)
			}
		}
	}
	w.check()
}

func TestFailureStatusOutlastsLaterRequests(t *testing.T) {
	w := newWorld(t)
	w.add("busy", "loop", filesystem)
	w.add("bad", "loop", block)
	w.must(w.DetachStorage([]string{"busy"}))
	w.setStatus("filesystem-0-0", status.Detaching, "held by process 7")
	w.must(w.DetachStorage([]string{"busy"}))
	w.must(w.RemoveStorage([]string{"busy"}))
	w.must(w.provision(entry{kind: "volume", tag: "volume-0-0"}))
	if s := w.one("busy"); s.Status != status.Detaching || s.Message != "held by process 7" {
		t.Errorf("storage whose detachment failed is %s: %q", s.Status, s.Message)
	}
	w.must(w.DetachStorage([]string{"bad"}))
	w.setStatus("volume-0-1", status.Error, "no such thing")
	w.must(w.remove(partsOf(w.one("bad"))["va"]))
	if s := w.one("bad"); s.Status != status.Error || s.Message != "no such thing" {
		t.Errorf("storage whose creation failed is %s: %q", s.Status, s.Message)
	}
}

// The machine that has a plan for a volume of the environment may set the volume's status.
// Finding N6.
func TestMachineSetsStatusOfPlannedVolume(t *testing.T) {
	w := mixed(t)
	failed := []params.EntityStatusArgs{{Tag: "volume-2", Status: "attaching", Info: "no login"}}
	w.must(w.provision(entry{kind: "volume", tag: "volume-2"}))
	wantCode(t, w.ForMachine(machine0).SetStatus(failed), params.CodeUnauthorized)
	w.must(w.plan(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-2"}))
	wantCode(t, w.ForMachine(machine1).SetStatus(failed), params.CodeUnauthorized)
	w.must(w.ForMachine(machine0).SetStatus(failed))
	if s := w.one("c"); s.Volume.Message != "no login" {
		t.Errorf("the volume is %s %q", s.Volume.Status, s.Volume.Message)
	}
}

// A worker learns that storage was detached while it was being made only after it has reported
// that it is made.
func TestDetachedStorageIsNotAttaching(t *testing.T) {
	w := newWorld(t)
	w.add("it", "loop", block)
	w.must(w.DetachStorage([]string{"it"}))
	w.must(w.remove(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-0-0"}))
	w.setStatus("volume-0-0", status.Attaching, "")
	if s := w.one("it"); s.Status != status.Detached {
		t.Errorf("detached storage is %s", s.Status)
	}
	w.must(w.AttachStorage([]string{"it"}, machine0))
	w.setStatus("volume-0-0", status.Attaching, "busy")
	if s := w.one("it"); s.Status != status.Attaching || s.Message != "busy" {
		t.Errorf("storage that is attached again is %s %q", s.Status, s.Message)
	}
}

// A worker that starts has looked at nothing yet.
func TestRecheck(t *testing.T) {
	w := newWorld(t)
	for name, pool := range map[string]string{"own": "loop", "detached": "loop", "failed": "loop", "environ": "disk"} {
		w.add(name, pool, filesystem)
	}
	w.work()
	w.must(w.DetachStorage([]string{"detached"}))
	w.work()
	w.setStatus(w.one("failed").Filesystem.Tag.String(), status.Error, "no")
	w.must(w.RecheckMachine(machine0, "x"))
	w.check()
	for name, want := range map[string]string{"own": "attaching rechecking: x", "detached": "detached ", "failed": "error no", "environ": "attaching rechecking: x"} {
		if s := w.one(name); string(s.Status)+" "+s.Message != want {
			t.Errorf("%s is %s %q, want %s", name, s.Status, s.Message, want)
		}
	}
	if v := w.one("environ").Volume; v.Status != status.Attached {
		t.Errorf("the environment's volume is %s", v.Status)
	}
	w.must(w.RecheckEnviron("y"))
	if v := w.one("environ").Volume; v.Status != status.Attaching || v.Message != "rechecking: y" {
		t.Errorf("the environment's volume is %s %q", v.Status, v.Message)
	}
}

// What is removed while a machine's storage is rechecked is no error.
func TestRecheckDuringRemoval(t *testing.T) {
	store := &hookedStore{Store: newStore(t)}
	w := openWorld(t, store)
	w.add("it", "loop", block)
	w.add("other", "loop", block)
	w.work()
	store.before = func() {
		w.must(w.RemoveStorage([]string{"it"}))
		w.work()
	}
	w.must(w.RecheckMachine(machine0, "x"))
	if s := w.one("other"); s.Message != "rechecking: x" {
		t.Errorf("the other storage is %s %q", s.Status, s.Message)
	}
}

// hookedStore calls before ahead of its next update.
type hookedStore struct {
	kv.Store
	before func()
}

func (s *hookedStore) Update(ctx context.Context, fn func(kv.Tx) error) error {
	if before := s.before; before != nil {
		s.before = nil
		before()
	}
	return s.Store.Update(ctx, fn)
}

func TestSetStatusSetsValidOnes(t *testing.T) {
	w := newWorld(t)
	w.add("it", "loop", block)
	accessor := w.ForMachine(machine0)
	for _, bad := range []struct{ tag, status, code string }{
		{"volume-0-9", "error", params.CodeNotFound},
		{"volume-0", "error", params.CodeUnauthorized},
		{"machine-0", "error", params.CodeNotValid},
		{"nonsense", "error", params.CodeNotValid},
		{"volume-0-0", "happy", params.CodeNotValid},
	} {
		w.setStatus("volume-0-0", status.Pending, "")
		err := accessor.SetStatus([]params.EntityStatusArgs{
			{Tag: bad.tag, Status: bad.status},
			{Tag: "volume-0-0", Status: "attaching", Info: "second"},
		})
		wantCode(t, err, bad.code)
		if s := w.one("it"); s.Status != status.Attaching || s.Message != "second" {
			t.Errorf("%v: it is %s %q", bad, s.Status, s.Message)
		}
	}
	w.must(accessor.SetStatus(nil))
	w.setStatus("volume-0-0", status.Error, strings.Repeat("é", 1<<20))
	if s := w.one("it"); len(s.Message) > 5000 || !strings.HasPrefix(s.Message, "éé") || strings.ContainsRune(s.Message, '\uFFFD') {
		t.Errorf("a huge message is kept with %d bytes", len(s.Message))
	}
}
