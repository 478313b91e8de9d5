package plan_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// An attachment to one of many hosts is found, dropped and recreated like a single one.
func TestFilesystemOnManyHosts(t *testing.T) {
	const hosts = 100
	s := play(t, func(o *plan.Options) { o.Host = "" })
	f := filesystem("0")
	s.observe(wanted(f, recorded))
	s.does()
	all := func(what string) []string {
		var want []string
		for i := range hosts {
			want = append(want, fmt.Sprintf("%s filesystem attachment 0 on machine-%d", what, i))
		}
		return want
	}
	each := func(do func(plan.Key)) {
		for i := range hosts {
			do(on(fmt.Sprintf("machine-%d", i), f))
		}
	}
	each(func(a plan.Key) { s.observe(wanted(a)) })
	s.does(all("attach")...)
	each(func(a plan.Key) { s.ends(a) })
	each(func(a plan.Key) { s.taken(a) })
	s.core.Take()
	s.does()
	// Each is found again: nothing is attached twice.
	each(func(a plan.Key) { s.observe(wanted(a, recorded)) })
	s.does()
	// Every other attachment is dropped and recreated. The rest stay.
	var want []string
	half := func(do func(plan.Key)) {
		for i := 0; i < hosts; i += 2 {
			do(on(fmt.Sprintf("machine-%d", i), f))
		}
	}
	half(func(a plan.Key) { s.gone(a) })
	half(func(a plan.Key) {
		if s.core.Knows(a) {
			t.Errorf("%s is still known", a)
		}
		want = append(want, "attach "+a.String())
	})
	each(func(a plan.Key) { s.observe(wanted(a, recorded)) })
	s.does(want...)
	half(func(a plan.Key) { s.ends(a) })
	half(func(a plan.Key) { s.taken(a) })
	each(func(a plan.Key) { s.gone(a) })
	s.gone(f)
	s.core.Take()
	s.nothing()
}

// A host is known as long as an entity refers to it.
func TestHostForgottenWithLastReference(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on("machine-1", volume("0"))
	s.observe(wanted(v, recorded), wanted(a))
	if !s.core.KnowsHost("machine-1") {
		t.Error("the host of an attachment is not known")
	}
	s.gone(a, v)
	if s.core.KnowsHost("machine-1") {
		t.Error("a host that nothing refers to is known")
	}
	// The next entity that waits for the machine asks again, and is answered.
	unprovisioned := func(f *plan.Fact) { f.Instance = "" }
	s.observe(wanted(v, recorded), wanted(a, unprovisioned))
	if out := s.core.Take(); len(out.Machines) != 1 || out.Machines[0] != "machine-1" {
		t.Errorf("machines asked about: %v", out.Machines)
	}
	s.core.Provisioned("machine-1", "instance")
	s.does("attach volume attachment 0 on machine-1")
}

// A change is read once, in order, and in parts.
func TestChangesAreReadOnceAndInParts(t *testing.T) {
	s := play(t)
	for _, id := range []string{"0", "1", "0", "2", "1"} {
		s.core.Changed(volume(id))
	}
	if !s.core.HasUnread() {
		t.Error("HasUnread is false after changes")
	}
	for _, want := range [][]plan.Key{{volume("0"), volume("1")}, {volume("2")}, nil} {
		var got []plan.Key
		for _, subject := range s.core.Unread(2) {
			got = append(got, subject.Key())
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("reads %v, not %v", got, want)
		}
	}
	if s.core.HasUnread() {
		t.Error("HasUnread is true after all has been read")
	}
	// What changes while it is read is read again.
	s.core.Changed(volume("0"))
	if again := s.core.Unread(math.MaxInt); len(again) != 1 || again[0].Tag().Id() != "0" {
		t.Errorf("reads again %v", again)
	}
	s.gone(volume("0"), volume("1"), volume("2"))
	s.nothing()
}
