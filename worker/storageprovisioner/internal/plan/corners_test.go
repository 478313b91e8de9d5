package plan_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// An attachment whose outcome is unknown is detached with the arguments of a detachment. It
// is not attached again to learn the outcome.
func TestUnknownAttachIsNotRepeatedBeforeDetach(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.observe(wanted(v, recorded), wanted(a))
	s.does("attach volume attachment 0 on machine-0")
	s.ends(a, unknown)
	s.observe(wanted(a, dying, func(f *plan.Fact) { f.Args = "detach" }))
	s.does("detach volume attachment 0 on machine-0")
	if item := s.items[a]; item.Repeat || item.Args != "detach" {
		t.Errorf("the detachment is %+v", item)
	}
}

// A filesystem that fits its volume already does not wait for the volume to grow.
func TestFilesystemGrowsIntoPresentVolumeSize(t *testing.T) {
	s := play(t)
	s.mounted(true)
	v, f := volume("0"), filesystem("1")
	s.observe(wanted(v, growing(1000, 2000)))
	s.does("resize volume 0")
	s.ends(v, failing(errors.New("no room")))
	s.observe(wanted(f, growing(500, 1000), backedBy(v)))
	s.does("resize filesystem 1")
}

// The source that mounted a filesystem unmounts it, whatever the state says of the
// filesystem then.
func TestMountDetachedBySourceThatMadeIt(t *testing.T) {
	s := play(t)
	s.mounted(true)
	f, m := filesystem("1"), on(machine, filesystem("1"))
	s.gone(f)
	s.does("forget 0")
	s.observe(wanted(f, recorded), wanted(m, recorded, dying))
	s.does("detach filesystem attachment 1 on machine-0")
	if s.sources[m] != plan.Managed {
		t.Errorf("detached by %s", s.sources[m])
	}
}

// A detached volume is attached again if it is wanted again before its detachment is
// recorded.
func TestVolumeWantedAfterDetachIsReattached(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.attached(v, machine)
	s.observe(wanted(a, recorded, dying))
	s.does("detach volume attachment 0 on machine-0")
	s.ends(a)
	s.does("remove volume attachment 0 on machine-0")
	s.observe(wanted(a, recorded))
	s.published(a, errors.New("it is alive"))
	s.does("attach volume attachment 0 on machine-0")
}

// If an entity is forgotten while it is read, the result of the read makes a new record.
func TestReadOfForgottenEntityMakesNewRecord(t *testing.T) {
	s := play(t)
	for _, id := range []string{"0", "1"} {
		s.core.Changed(volume(id))
	}
	read := s.core.Unread(2)
	s.gone(volume("0"))
	f := wanted(volume("0"))
	f.Subject = read[0]
	s.observe(f)
	if !s.core.Knows(volume("0")) {
		t.Error("the volume is not known")
	}
	s.does("create volume 0")
	s.ends(volume("0"), failing(errors.New("no")))
	s.passes(time.Second)
	s.does("create volume 0")
}

// A filesystem may have the id of a volume that it has nothing to do with.
func TestFilesystemAndVolumeIDsAreIndependent(t *testing.T) {
	s := play(t)
	s.attached(volume("0"), machine)
	s.attached(volume("1"), machine)
	s.backed("1", "0", true)
	s.backed("0", "1", true)
}

// A volume that is attached again may be another device: a mount waits until it has been
// looked up.
func TestReattachedVolumeDeviceIsLookedUpAgain(t *testing.T) {
	s := play(t)
	s.mounted(true)
	a, m := on(machine, volume("0")), on(machine, filesystem("1"))
	s.observe(wanted(m, recorded, dying, backedBy(volume("0"))))
	s.does("detach filesystem attachment 1 on machine-0")
	s.ends(m)
	s.does("remove filesystem attachment 1 on machine-0")
	s.taken(m)
	s.observe(wanted(a, recorded, dying))
	s.does("detach volume attachment 0 on machine-0")
	s.ends(a)
	s.does("remove volume attachment 0 on machine-0", "look up 0")
	s.taken(a)
	s.observe(wanted(a), wanted(m, backedBy(volume("0"))))
	s.does("attach volume attachment 0 on machine-0")
	s.ends(a)
	s.does("record volume attachment 0 on machine-0: info")
	s.taken(a)
	s.does("look up 0")
	s.core.DeviceKnown("0", true, true, 1000)
	s.does("attach filesystem attachment 1 on machine-0")
}

// An unknown outcome of a creation is looked into in the end, even if the volume was foreign
// to this worker in between.
func TestUnknownCreateRememberedWhileForeign(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v))
	s.does("create volume 0")
	s.ends(v, unknown)
	foreign := func(f *plan.Fact) { f.Class = plan.Foreign }
	s.observe(wanted(v, foreign))
	s.does()
	s.observe(wanted(v, dead))
	s.does("create volume 0")
	if item := s.items[v]; !item.Repeat || item.Args != "args" {
		t.Errorf("the creation is %+v", item)
	}
}

// A volume stays attached while a filesystem is being made on it.
func TestVolumeNotDetachedDuringMkfs(t *testing.T) {
	s := play(t)
	v, f := volume("0"), filesystem("1")
	a := on(machine, v)
	s.attached(v, machine)
	s.observe(wanted(f, backedBy(v)))
	s.does("look up 0")
	s.core.DeviceKnown("0", true, true, 1000)
	s.does("create filesystem 1")
	s.observe(wanted(a, recorded, dying))
	s.does()
	if p := s.pending(a); p.WaitsFor != "all uses of it to end" {
		t.Errorf("the detachment: %+v", p)
	}
	s.ends(f)
	s.does("detach volume attachment 0 on machine-0", "record filesystem 1: info")
}
