package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	jujuerrors "github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// growing makes an entity recorded, and wanted larger than it is.
func growing(size, to uint64) func(*plan.Fact) {
	return func(f *plan.Fact) {
		recorded(f)
		f.Size, f.Wanted, f.Args = size, to, fmt.Sprint(to)
	}
}

// is sets the size in a result.
func is(size uint64) func(*plan.Result) {
	return func(r *plan.Result) { r.Size, r.Info = size, size }
}

// says checks which statuses have been set since the last call.
func (s *script) says(want ...string) {
	s.t.Helper()
	s.does()
	got := []string{}
	for _, status := range s.statuses {
		got = append(got, fmt.Sprintf("%s %s: %s", status.Key(), status.Status, status.Message))
	}
	s.statuses = nil
	if !slices.Equal(got, want) {
		s.t.Errorf("says %q, not %q", got, want)
	}
}

// Behaviour G1.
func TestVolumeGrowsUntilItIsLargeEnough(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.attached(v, machine)
	s.says("volume 0 attached: ")
	s.observe(wanted(v, growing(256, 512)))
	s.does("resize volume 0")
	s.says("volume 0 attached: growing to 512 MiB")
	s.observe(wanted(v, growing(256, 768)))
	s.does()
	s.ends(v, is(512))
	s.does("record volume 0: 512")
	s.taken(v)
	s.does("resize volume 0")
	if args := s.items[v].Args; args != "768" {
		t.Errorf("resizes to %v", args)
	}
	s.ends(v, is(1024))
	s.does("record volume 0: 1024")
	s.taken(v)
	s.says("volume 0 attached: ", "volume 0 attached: growing to 768 MiB", "volume 0 attached: ")
	s.observe(wanted(v, recorded, func(f *plan.Fact) { f.Size, f.Wanted = 1024, 768 }))
	s.says()
}

// Reading the attachment of a volume that grows does not change the volume's status.
// Behaviour G4.
func TestAttachmentReadDuringGrowthKeepsStatus(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.attached(v, machine)
	s.observe(wanted(v, growing(256, 512)))
	s.does("resize volume 0")
	s.says("volume 0 attached: ", "volume 0 attached: growing to 512 MiB")
	s.observe(wanted(on(machine, v), recorded))
	s.says()
}

// The status of a volume that this worker has not attached names what is known of it:
// detached, or attaching.
// Behaviour G4.
func TestResizeStatusOfVolumeNotAttachedHere(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v, growing(256, 512)))
	s.does("resize volume 0")
	s.says()
	s.ends(v, failing(errors.New("no space")))
	s.says("volume 0 detached: cannot grow to 512 MiB: no space")
	s.passes(time.Second)
	s.does("resize volume 0")
	s.ends(v, is(512))
	s.does("record volume 0: 512")
	s.says("volume 0 detached: ")

	v = volume("1")
	s.observe(wanted(v, growing(256, 512)))
	s.does("resize volume 1")
	s.ends(v, is(512))
	s.does("record volume 1: 512")
	s.says("volume 1 detached: ")

	v = volume("2")
	s.observe(wanted(v, growing(256, 512)), wanted(on(machine, v)))
	s.does("attach volume attachment 2 on machine-0")
	s.ends(on(machine, v), inProgress)
	s.does("resize volume 2")
	s.says("volume 2 attaching: later")
	s.ends(v, failing(errors.New("no space")))
	s.says()
	s.passes(time.Second)
	s.does("attach volume attachment 2 on machine-0")
	s.ends(on(machine, v))
	s.does("resize volume 2", "record volume attachment 2 on machine-0: info")
	s.says("volume 2 attached: cannot grow to 512 MiB: no space")
}

// Behaviour G6.
func TestFailedResizeDoesNotHoldUpDetach(t *testing.T) {
	for name, failure := range map[string]func(*plan.Result){
		"failed":                  failing(errors.New("no space")),
		"for good":                failing(storage.Permanent(errors.New("no space"))),
		"in progress, then fails": inProgress,
		"unknown":                 unknown,
	} {
		t.Run(name, func(t *testing.T) {
			s := play(t)
			v, a := volume("0"), on(machine, volume("0"))
			s.attached(v, machine)
			s.observe(wanted(v, growing(256, 512)))
			s.does("resize volume 0")
			s.ends(v, failure)
			s.does()
			if name == "in progress, then fails" {
				s.observe(wanted(a, recorded, dying))
				s.does()
				if p := s.pending(a); p.WaitsFor != "volume 0 to grow" {
					t.Errorf("the detachment does not wait for the resize: %+v", p)
				}
				s.passes(time.Second)
				s.does("resize volume 0")
				s.ends(v, failing(errors.New("no space")))
			}
			s.observe(wanted(a, recorded, dying))
			s.does("detach volume attachment 0 on machine-0")
			s.ends(a)
			s.does("remove volume attachment 0 on machine-0")
			s.taken(a)
			s.observe(wanted(v, recorded, dead))
			s.does("destroy volume 0")
		})
	}
}

// Behaviour G6.
func TestResizeInProgressRepeatsItsArguments(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.attached(v, machine)
	s.observe(wanted(v, growing(256, 512)))
	s.does("resize volume 0")
	s.ends(v, inProgress)
	s.observe(wanted(v, growing(256, 768)))
	s.passes(time.Second)
	s.does("resize volume 0")
	if item := s.items[v]; item.Args != "512" || !item.Repeat {
		t.Errorf("the resize does not repeat its arguments: %+v", item)
	}
	s.statuses = nil
	s.ends(v, inProgress)
	s.says("volume 0 attached: growing to 768 MiB: later")
	s.observe(wanted(v, recorded, dead), wanted(on(machine, v), recorded, dying))
	s.passes(time.Minute)
	s.does("resize volume 0")
}

// Raising the wanted size retries at once, even what has failed for good.
// Behaviour G3.
func TestRaisedSizeIsTriedAtOnce(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v, growing(256, 512)))
	s.does("resize volume 0")
	s.ends(v, failing(storage.Permanent(errors.New("it cannot"))))
	s.observe(wanted(v, growing(256, 512)))
	s.does()
	s.observe(wanted(v, growing(256, 768)))
	s.does("resize volume 0")
	s.ends(v, failing(errors.New("no space")))
	s.observe(wanted(v, growing(256, 1024)))
	s.does("resize volume 0")
}

// Behaviour G2.
func TestFilesystemGrowsAfterItsVolume(t *testing.T) {
	s := play(t)
	s.mounted(true)
	v, f := volume("0"), filesystem("1")
	s.observe(wanted(f, growing(1000, 2000), backedBy(v)))
	if p := s.pending(f); p.WaitsFor != "block device of volume 0 to grow" {
		t.Errorf("%+v", p)
	}
	s.observe(wanted(v, growing(1000, 2000)))
	s.does("resize volume 0")
	// The device shows the new size before the state records it.
	s.core.DeviceKnown("0", true, true, 2000)
	s.ends(v, is(2000))
	s.does("record volume 0: 2000")
	if p := s.pending(f); p.WaitsFor != "volume 0 to grow" {
		t.Errorf("%+v", p)
	}
	s.taken(v)
	s.does("resize filesystem 1")
	s.ends(f, is(2000))
	s.does("record filesystem 1: 2000")
	s.taken(f)
	s.does()
	if p := s.pending(f); p.Op != plan.None {
		t.Errorf("%+v", p)
	}
}

// The state need not report that another worker has grown a volume: the device shows it.
// Behaviour G2.
func TestFilesystemGrowsWithDeviceGrownByOthers(t *testing.T) {
	s := play(t)
	s.mounted(true)
	v, f := volume("0"), filesystem("1")
	s.observe(wanted(v, growing(1000, 2000), func(f *plan.Fact) { f.Class = plan.Foreign }))
	s.observe(wanted(f, growing(1000, 2000), backedBy(v)))
	s.does()
	s.core.DeviceKnown("0", true, true, 1999)
	s.does()
	s.core.DeviceKnown("0", true, true, 2000)
	s.does("resize filesystem 1")
}

// Behaviour G2.
func TestFilesystemGrowsOnlyWhereAttached(t *testing.T) {
	f := filesystem("0")
	m := on(machine, f)
	waits := func(s *script) {
		s.t.Helper()
		if p := s.pending(f); p.Op != plan.Resize || p.WaitsFor != "its attachment" {
			s.t.Errorf("%+v", p)
		}
	}
	t.Run("once attached", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(f, growing(1, 2)))
		s.does()
		waits(s)
		s.observe(wanted(m))
		s.does("attach filesystem attachment 0 on machine-0")
		waits(s)
		s.ends(m)
		s.does("record filesystem attachment 0 on machine-0: info")
		waits(s)
		s.taken(m)
		s.does("resize filesystem 0")
	})
	t.Run("not if attached by another worker", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(f, growing(1, 2)), wanted(m, recorded, without), wanted(f, growing(1, 2)))
		s.does()
		waits(s)
	})
	t.Run("not after a failed detachment", func(t *testing.T) {
		s := play(t)
		s.attached(f, machine)
		s.observe(wanted(m, recorded, dying))
		s.does("detach filesystem attachment 0 on machine-0")
		s.ends(m, failing(errors.New("busy")))
		s.observe(wanted(f, growing(1, 2)))
		s.does()
		waits(s)
	})
	t.Run("not if attached to another machine", func(t *testing.T) {
		s := play(t)
		s.attached(f, "machine-1")
		s.observe(wanted(f, growing(1, 2)))
		s.does()
		waits(s)
	})
	t.Run("environment worker, any machine", func(t *testing.T) {
		s := play(t, func(o *plan.Options) { o.Host = "" })
		s.attached(f, "machine-1")
		s.observe(wanted(f, growing(1, 2)))
		s.does("resize filesystem 0")
	})
	t.Run("detachment waits for the resize", func(t *testing.T) {
		s := play(t)
		s.attached(f, machine)
		s.core.SetLimit(provided(plan.Filesystem), 2)
		s.observe(wanted(f, growing(1, 2)))
		s.does("resize filesystem 0")
		s.observe(wanted(m, recorded, dying))
		s.does()
		s.ends(f, is(2))
		s.does("detach filesystem attachment 0 on machine-0", "record filesystem 0: 2")
	})
}

// Behaviour G8.
func TestForeignStaticAndDyingVolumesDoNotGrow(t *testing.T) {
	for _, class := range []plan.Class{plan.Static, plan.Foreign} {
		s := play(t)
		s.observe(wanted(volume("0"), growing(1, 2), func(f *plan.Fact) { f.Class = class }))
		s.does()
	}
	s := play(t)
	s.observe(wanted(volume("0"), growing(1, 2), dying))
	s.does()
}

// A volume that the state drops while it grows stays with its provider: the worker does not
// destroy it.
// Behaviour G7.
func TestVolumeDroppedDuringResizeIsForgotten(t *testing.T) {
	v := volume("0")
	t.Run("before the resize ends", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(v, growing(1, 2)))
		s.does("resize volume 0")
		s.gone(v)
		s.ends(v, is(2))
		s.nothing()
	})
	t.Run("before it is recorded", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(v, growing(1, 2)))
		s.does("resize volume 0")
		s.ends(v, is(2))
		s.does("record volume 0: 2")
		s.published(v, jujuerrors.NotFoundf("volume 0"))
		s.nothing()
	})
	t.Run("and its record is refused", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(v, growing(1, 2)))
		s.does("resize volume 0")
		s.ends(v, is(2))
		s.does("record volume 0: 2")
		s.gone(v)
		s.published(v, errors.New("busy"))
		s.nothing()
	})
	t.Run("and recreated", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(v, growing(1, 2)))
		s.does("resize volume 0")
		s.observe(wanted(v, func(f *plan.Fact) { f.Wanted = 1 }))
		s.ends(v, is(2))
		s.does("create volume 0")
	})
	t.Run("and recreated, then dead", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(v, growing(1, 2)))
		s.does("resize volume 0")
		s.ends(v, unknown)
		s.observe(wanted(v, dead))
		s.does("remove volume 0")
	})
}

// The size of a volume that is to be destroyed need not be recorded.
// Behaviour G6.
func TestRefusedSizeDoesNotHoldUpDestroy(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v, growing(1, 2)))
	s.does("resize volume 0")
	s.ends(v, is(2))
	s.does("record volume 0: 2")
	s.published(v, errors.New("busy"))
	s.does()
	s.passes(time.Second)
	s.does("record volume 0: 2")
	s.observe(wanted(v, recorded, dead))
	s.does()
	s.published(v, errors.New("it is dead"))
	s.does("destroy volume 0")
}

// A volume whose wanted size is raised during its creation is read again when the creation is
// recorded, and grows: no watcher reports the new size again.
// Behaviour G3.
func TestVolumeRaisedDuringCreateGrows(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v, func(f *plan.Fact) { f.Wanted = 1 }))
	s.does("create volume 0")
	s.observe(wanted(v, func(f *plan.Fact) { f.Wanted = 2 }))
	s.ends(v, is(1))
	s.does("record volume 0: 1")
	s.taken(v)
	s.does("read volume 0")
	s.observe(wanted(v, growing(1, 2)))
	s.does("resize volume 0")
}

// After a resize has succeeded, no status reports its earlier failure, neither before the
// size is recorded nor when the volume is to grow further.
// Behaviour G4.
func TestResizeFailureClearedBySuccess(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.attached(v, machine)
	s.observe(wanted(v, growing(1, 2)))
	s.does("resize volume 0")
	s.ends(v, failing(errors.New("no space")))
	s.passes(time.Second)
	s.does("resize volume 0")
	s.observe(wanted(v, growing(1, 3)))
	s.ends(v, is(2))
	s.does("record volume 0: 2")
	s.statuses = nil
	s.observe(wanted(a, recorded, dying))
	s.does("detach volume attachment 0 on machine-0")
	s.ends(a)
	s.does("remove volume attachment 0 on machine-0")
	s.says("volume 0 detached: ")
	s.taken(v)
	s.does("resize volume 0")
	s.says("volume 0 detached: growing to 3 MiB")
	s.ends(v, failing(errors.New("no space")))
	if p := s.pending(v); p.Failures != 1 {
		t.Errorf("%+v", p)
	}
}

// The remark of an attachment is shown again when the resize is done.
// Behaviour G11.
func TestRemarkShownAgainAfterResize(t *testing.T) {
	s := play(t)
	f, m := filesystem("0"), on(machine, filesystem("0"))
	s.observe(wanted(f, recorded), wanted(m))
	s.does("attach filesystem attachment 0 on machine-0")
	s.ends(m, func(r *plan.Result) { r.Remark = "size is not enforced" })
	s.does("record filesystem attachment 0 on machine-0: info")
	s.taken(m)
	s.says("filesystem 0 attached: size is not enforced")
	s.observe(wanted(f, growing(1, 2)))
	s.does("resize filesystem 0")
	s.says("filesystem 0 attached: growing to 2 MiB")
	s.ends(f, is(2))
	s.does("record filesystem 0: 2")
	s.taken(f)
	s.says("filesystem 0 attached: size is not enforced")
	s.observe(wanted(m, recorded, dying))
	s.does("detach filesystem attachment 0 on machine-0")
	s.ends(m)
	s.does("remove filesystem attachment 0 on machine-0")
	s.says("filesystem 0 detached: ")
}

// The status of a dying volume does not mention its growth.
// Behaviour G4.
func TestDyingVolumeReportsNoResizeFailure(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.attached(v, machine)
	s.observe(wanted(v, growing(1, 2)))
	s.does("resize volume 0")
	s.ends(v, failing(errors.New("no space")))
	s.does()
	s.statuses = nil
	s.observe(wanted(v, recorded, dying))
	s.says("volume 0 attached: ")
}
