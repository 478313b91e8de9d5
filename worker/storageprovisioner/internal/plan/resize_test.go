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

// growing is recorded, and wanted larger than it is.
func growing(size, to uint64) func(*plan.Fact) {
	return func(f *plan.Fact) {
		recorded(f)
		f.Size, f.Wanted, f.Args = size, to, fmt.Sprint(to)
	}
}

// is has a result say how large something is.
func is(size uint64) func(*plan.Result) {
	return func(r *plan.Result) { r.Size, r.Info = size, size }
}

// says checks which statuses have been set since it was last asked.
func (s *script) says(want ...string) {
	s.t.Helper()
	s.does()
	got := []string{}
	for _, status := range s.statuses {
		got = append(got, fmt.Sprintf("%s %s: %s", status.Key, status.Status, status.Message))
	}
	s.statuses = nil
	if !slices.Equal(got, want) {
		s.t.Errorf("says %q, not %q", got, want)
	}
}

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
		t.Errorf("grows to %v", args)
	}
	s.ends(v, is(1024))
	s.does("record volume 0: 1024")
	s.taken(v)
	s.says("volume 0 attached: ", "volume 0 attached: growing to 768 MiB", "volume 0 attached: ")
	s.observe(wanted(v, recorded, func(f *plan.Fact) { f.Size, f.Wanted = 1024, 768 }))
	s.says()
}

// What is said of a volume that nobody has attached since this worker started is what
// is known of it.
func TestGrowthOfWhatIsNotAttachedIsTold(t *testing.T) {
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

func TestFailedGrowthIsTriedAgainAndGivesWay(t *testing.T) {
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
					t.Errorf("it is detached while it grows: %+v", p)
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

func TestGrowthInProgressIsRepeatedAsItWas(t *testing.T) {
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
		t.Errorf("it is not repeated as it was: %+v", item)
	}
	s.statuses = nil
	s.ends(v, inProgress)
	s.says("volume 0 attached: growing to 768 MiB: later")
	s.observe(wanted(v, recorded, dead), wanted(on(machine, v), recorded, dying))
	s.passes(time.Minute)
	s.does("resize volume 0")
}

// A size that is raised has what has been given up tried again, and at once.
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
	// The device is there before it is recorded what the volume has become.
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

// The state need not tell that another worker has grown a volume: the device does.
func TestFilesystemGrowsWithADeviceThatOthersGrow(t *testing.T) {
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

func TestFilesystemGrowsOnlyWhereItIsAttached(t *testing.T) {
	f := filesystem("0")
	m := on(machine, f)
	waits := func(s *script) {
		s.t.Helper()
		if p := s.pending(f); p.Op != plan.Resize || p.WaitsFor != "it to be attached" {
			s.t.Errorf("%+v", p)
		}
	}
	t.Run("when it is attached", func(t *testing.T) {
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
	t.Run("by this worker", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(f, growing(1, 2)), wanted(m, recorded, without), wanted(f, growing(1, 2)))
		s.does()
		waits(s)
	})
	t.Run("and not on its way out", func(t *testing.T) {
		s := play(t)
		s.attached(f, machine)
		s.observe(wanted(m, recorded, dying))
		s.does("detach filesystem attachment 0 on machine-0")
		s.ends(m, failing(errors.New("busy")))
		s.observe(wanted(f, growing(1, 2)))
		s.does()
		waits(s)
	})
	t.Run("to this machine", func(t *testing.T) {
		s := play(t)
		s.attached(f, "machine-1")
		s.observe(wanted(f, growing(1, 2)))
		s.does()
		waits(s)
	})
	t.Run("to any machine of the environment", func(t *testing.T) {
		s := play(t, func(o *plan.Options) { o.Host = "" })
		s.attached(f, "machine-1")
		s.observe(wanted(f, growing(1, 2)))
		s.does("resize filesystem 0")
	})
	t.Run("nor while it is detached", func(t *testing.T) {
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

func TestWhatIsNotOursDoesNotGrow(t *testing.T) {
	for _, class := range []plan.Class{plan.Static, plan.Foreign} {
		s := play(t)
		s.observe(wanted(volume("0"), growing(1, 2), func(f *plan.Fact) { f.Class = class }))
		s.does()
	}
	s := play(t)
	s.observe(wanted(volume("0"), growing(1, 2), dying))
	s.does()
}

// What the state has dropped, its provider keeps: it is not the worker's to destroy.
func TestWhatIsDroppedWhileItGrowsIsForgotten(t *testing.T) {
	v := volume("0")
	t.Run("before it has grown", func(t *testing.T) {
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
	t.Run("and not taken", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(v, growing(1, 2)))
		s.does("resize volume 0")
		s.ends(v, is(2))
		s.does("record volume 0: 2")
		s.gone(v)
		s.published(v, errors.New("busy"))
		s.nothing()
	})
	t.Run("and is there again", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(v, growing(1, 2)))
		s.does("resize volume 0")
		s.observe(wanted(v, func(f *plan.Fact) { f.Wanted = 1 }))
		s.ends(v, is(2))
		s.does("create volume 0")
	})
	t.Run("and its new self goes as well", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(v, growing(1, 2)))
		s.does("resize volume 0")
		s.ends(v, unknown)
		s.observe(wanted(v, dead))
		s.does("remove volume 0")
	})
}

// How large it is, nobody needs to know of what goes.
func TestSizeThatIsNotTakenDoesNotHoldUpTheEnd(t *testing.T) {
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
func TestWhatIsCreatedTooSmallGrows(t *testing.T) {
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

// What has grown after all is not said to have failed, neither while that is recorded
// nor when it is to grow further.
func TestFailureIsForgottenWhenItHasGrown(t *testing.T) {
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

// What was remarked when it was attached is said again when it has grown.
func TestRemarkIsBackAfterTheGrowth(t *testing.T) {
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

// A volume that goes has no more to say about its growth.
func TestGrowthIsNotToldOfWhatGoes(t *testing.T) {
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
