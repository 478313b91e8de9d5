package plan_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	jujuerrors "github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

func remembering(o *plan.Options) { o.Attempts = true }

func attempted(f *plan.Fact) { f.Attempted = true }

// notes has the state note the attempts of the only batch, and answer with errs. It returns
// the noted attempts and the operations that go ahead.
func (s *script) notes(errs ...error) (noted, ahead string) {
	s.t.Helper()
	batches := s.core.Batches()
	if len(batches) != 1 {
		s.t.Fatalf("%d batches, not 1: %v", len(batches), batches)
	}
	return s.note(batches[0], errs...)
}

func (s *script) note(b plan.Batch, errs ...error) (noted, ahead string) {
	var all, rest []string
	for _, subject := range b.Unnoted() {
		all = append(all, subject.Key.String())
	}
	errs = append(errs, make([]error, len(all))...)
	b = s.core.Noted(b, errs[:len(all)])
	for _, item := range b.Items {
		s.sources[item.Key], s.items[item.Key] = b.Source, item
		rest = append(rest, b.Op.String()+" "+item.Key.String())
	}
	return strings.Join(all, ", "), strings.Join(rest, ", ")
}

func (s *script) unmade() []string {
	var keys []string
	for _, subject := range s.core.Take().Publish.Unmade {
		keys = append(keys, subject.Key.String())
	}
	return keys
}

func (s *script) check(what string, got, want any) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// An item that is no longer wanted once its attempt has been noted is not made. The other
// items are.
func TestWhatIsNotWantedAnyMoreWhenItIsNotedIsNotMade(t *testing.T) {
	s := play(t, remembering)
	s.observe(wanted(volume("0")), wanted(volume("1")))
	batch := s.core.Batches()[0]
	s.observe(wanted(volume("0"), dying))
	noted, ahead := s.note(batch)
	s.check("noted", noted, "volume 0, volume 1")
	s.check("made", ahead, "create volume 1")
	if got := s.unmade(); !slices.Equal(got, []string{"volume 0"}) {
		t.Errorf("taken back: %v", got)
	}
	s.ends(volume("1"))
	s.does("record volume 1: info")
	s.taken(volume("1"))
	s.observe(wanted(volume("0"), dead))
	s.does("remove volume 0")
}

// Nothing of a batch that is dropped altogether holds the source.
func TestSourceIsFreeWhenNothingThatIsNotedIsWanted(t *testing.T) {
	s := play(t, remembering)
	s.observe(wanted(volume("0")))
	batch := s.core.Batches()[0]
	s.gone(volume("0"))
	s.note(batch)
	s.unmade()
	s.nothing()
	s.observe(wanted(volume("1")))
	_, ahead := s.notes()
	s.check("made", ahead, "create volume 1")
}

// Each of a batch has the state's own answer: what is repeated is not noted again, and what
// could not be noted is not made.
func TestEachOfABatchIsNotedByItself(t *testing.T) {
	s := play(t, remembering)
	s.observe(wanted(volume("0")))
	s.notes()
	s.ends(volume("0"), inProgress)
	s.observe(wanted(volume("1")), wanted(volume("2")))
	s.passes(time.Second)
	noted, ahead := s.notes(errors.New("no leader"))
	s.check("noted", noted, "volume 1, volume 2")
	s.check("made", ahead, "create volume 2, create volume 0")
	if got := s.unmade(); !slices.Equal(got, []string{"volume 1"}) {
		t.Errorf("taken back: %v", got)
	}
}

// What must wait by the time it is noted is made when it need not any more.
func TestWhatMustWaitWhenItIsNotedIsMadeLater(t *testing.T) {
	s := play(t, remembering)
	v := volume("0")
	onHost := func(host, instance string) func(*plan.Fact) {
		return func(f *plan.Fact) { f.Host, f.Instance = host, instance }
	}
	s.observe(wanted(v, onHost("machine-1", "instance-1")))
	batch := s.core.Batches()[0]
	s.observe(wanted(v, onHost("machine-2", "")))
	_, ahead := s.note(batch)
	s.check("made", ahead, "")
	s.unmade()
	s.does()
	s.core.Provisioned("machine-2", "instance-2")
	_, ahead = s.notes()
	s.check("made", ahead, "create volume 0")
}

// An entity that the state lacks when it notes the attempt is read before it is tried again.
func TestWhatIsGoneWhenItIsNotedIsReadAgain(t *testing.T) {
	s := play(t, remembering)
	s.observe(wanted(volume("0")))
	_, ahead := s.notes(jujuerrors.NotFoundf("volume 0"))
	s.check("made", ahead, "")
	s.does("read volume 0")
	s.gone(volume("0"))
	s.nothing()
}

// An attempt that made nothing after one that may have is not taken back.
func TestAttemptAfterOneThatMayHaveMadeSomethingIsNotTakenBack(t *testing.T) {
	s := play(t, remembering)
	s.observe(wanted(volume("0"), attempted))
	s.notes()
	s.ends(volume("0"), failing(errors.New("busy")))
	if got := s.unmade(); got != nil {
		t.Errorf("taken back: %v", got)
	}
}

// What is read while an attempt ends is older than that.
func TestAttemptThatIsReadWhileItEndsIsOver(t *testing.T) {
	s := play(t, remembering)
	v := volume("0")
	s.observe(wanted(v))
	s.notes()
	s.ends(v, failing(storage.NothingMade(errors.New("no room"))))
	s.unmade()
	s.observe(wanted(v, dead, attempted))
	s.does("remove volume 0")
}

// What is recorded is attached again without the state being told.
func TestAttachingAgainIsNotNoted(t *testing.T) {
	s := play(t, remembering)
	s.observe(wanted(volume("0"), recorded), wanted(on(machine, volume("0")), recorded))
	s.does("attach volume attachment 0 on machine-0")
}

// A volume is not made from facts that were read before its attachment became unwanted: that
// would attach the volume, and nobody would look for the attachment after a crash.
func TestVolumeIsNotMadeForAnAttachmentThatIsLetGoOf(t *testing.T) {
	s := play(t, remembering)
	v, a := volume("0"), on(machine, volume("0"))
	s.observe(wanted(v, func(f *plan.Fact) { f.Host = machine }), wanted(a, dying))
	s.does("remove volume attachment 0 on machine-0", "read volume 0")
	s.taken(a)
	s.does()
	s.observe(wanted(v, without))
	s.does()
}

// An attachment that may have been made along with its volume is not undone before it is
// known what was made: it could be made once more by asking, and not be looked for any
// more after a crash.
func TestAttachmentIsNotUndoneBeforeItsVolumeIsKnown(t *testing.T) {
	s := play(t, remembering)
	v, a := volume("0"), on(machine, volume("0"))
	s.observe(wanted(v, func(f *plan.Fact) { f.Host, f.Instance = machine, "instance" }), wanted(a))
	s.notes()
	s.ends(v, unknown)
	s.core.Take()
	s.observe(wanted(a, dying, attempted))
	s.does("read volume 0")
	s.observe(wanted(v, without, attempted))
	s.does("create volume 0")
	s.ends(v, attachedAlong(machine))
	s.does("record volume 0: info")
	s.taken(v)
	s.does("record volume attachment 0 on machine-0: along")
	s.taken(a)
	s.does("read volume attachment 0 on machine-0")
	s.observe(wanted(a, dying, recorded))
	s.does("detach volume attachment 0 on machine-0")
}

// What has not been made is not attached: there is nothing to detach, and no name to do
// it by.
func TestAttachmentOfWhatHasNotBeenMadeIsNotUndone(t *testing.T) {
	v, a := volume("0"), on(machine, volume("0"))
	for _, how := range []string{"read during the attempt", "read as it ends"} {
		t.Run(how, func(t *testing.T) {
			s := play(t, remembering)
			s.observe(wanted(v, func(f *plan.Fact) { f.Host, f.Instance = machine, "instance" }), wanted(a))
			s.notes()
			ends := func() { s.ends(v, failing(storage.NothingMade(errors.New("no room")))) }
			if how == "read as it ends" {
				ends()
			}
			s.observe(wanted(a, dying, attempted, func(f *plan.Fact) { f.ID = "" }))
			if how == "read during the attempt" {
				ends()
			}
			s.observe(wanted(v, without))
			s.does("remove volume attachment 0 on machine-0", "read volume 0")
		})
	}
}

// If a volume is taken away while a filesystem is being made on it in the background, the
// failed attempt leaves nothing to look into, and the filesystem can go.
func TestFilesystemInProgressOnAVolumeThatIsTakenAwayCanGo(t *testing.T) {
	s := play(t)
	f := filesystem("1")
	s.observe(wanted(f, backedBy(volume("0"))))
	s.does("look up 0")
	s.core.DeviceKnown("0", true, false, 1000)
	s.does("create filesystem 1")
	s.ends(f, inProgress)
	s.does()
	s.observe(wanted(f, dead, without))
	s.passes(time.Second)
	s.does("create filesystem 1")
	s.core.DeviceKnown("0", false, false, 0)
	s.ends(f, failing(errors.New("volume 0 has no device")))
	s.does("remove filesystem 1")
}

// A filesystem is not made on a volume that may be taken away because it is not wanted
// on the machine any more.
func TestFilesystemIsMadeOnAVolumeOnlyWhereItIsWanted(t *testing.T) {
	s := play(t, remembering)
	f, m := filesystem("1"), on(machine, filesystem("1"))
	s.attached(volume("0"), machine, recorded)
	s.observe(wanted(f, backedBy(volume("0"))))
	s.does()
	s.observe(wanted(m, backedBy(volume("0"))))
	s.does("look up 0")
	s.core.DeviceKnown("0", true, false, 1000)
	batch := s.core.Batches()[0]
	s.observe(wanted(m, backedBy(volume("0")), dying))
	noted, ahead := s.note(batch)
	s.check("noted", noted, "filesystem 1")
	s.check("made", ahead, "")
}

// If a volume is taken away while its filesystem is being mounted in the background, the
// attempt has ended too. The filesystem may be mounted, and is unmounted.
func TestMountInProgressFromAVolumeThatIsTakenAwayIsUndone(t *testing.T) {
	s := play(t)
	f, m := filesystem("1"), on(machine, filesystem("1"))
	s.observe(wanted(f, recorded, backedBy(volume("0"))), wanted(m, backedBy(volume("0"))))
	s.does("look up 0")
	s.core.DeviceKnown("0", true, true, 1000)
	s.does("attach filesystem attachment 1 on machine-0")
	s.ends(m, inProgress)
	s.does()
	s.observe(wanted(m, backedBy(volume("0")), dying))
	s.passes(time.Second)
	s.does("attach filesystem attachment 1 on machine-0")
	s.core.DeviceKnown("0", false, false, 0)
	s.ends(m, failing(errors.New("volume 0 has no device")))
	s.does("detach filesystem attachment 1 on machine-0")
}

// What has failed without a word of what it left is made known before it goes, unless a
// later attempt says that nothing was made.
func TestWhatMayHaveLeftSomethingIsMadeKnownBeforeItGoes(t *testing.T) {
	v := volume("0")
	s := play(t, remembering)
	s.observe(wanted(v))
	s.notes()
	s.ends(v, failing(errors.New("no reply to the sync")))
	if got := s.unmade(); got != nil {
		t.Errorf("taken back: %v", got)
	}
	s.observe(wanted(v, dead, attempted))
	s.does("create volume 0")
	s.ends(v, failing(errors.New("no reply to the sync")))
	s.core.Take()
	s.does()
	s.passes(time.Second)
	s.does("create volume 0")
	s.ends(v, failing(storage.NothingMade(errors.New("no room"))))
	if got := s.unmade(); !slices.Equal(got, []string{"volume 0"}) {
		t.Errorf("taken back: %v", got)
	}
}

// A source that has not been called has made nothing, and nothing is known from it of what
// was made before.
func TestAttemptThatIsNotMadeTellsNothing(t *testing.T) {
	untried := func(r *plan.Result) { r.Err, r.Untried = errors.New("no credentials"), true }
	for _, before := range []string{"nothing", "a failure"} {
		s := play(t, remembering)
		v := volume("0")
		s.observe(wanted(v))
		s.notes()
		var want []string
		if before == "nothing" {
			want = []string{"volume 0"}
		} else {
			s.ends(v, failing(errors.New("no reply to the sync")))
			s.passes(time.Second)
			s.notes()
		}
		s.core.Take()
		s.ends(v, untried)
		if got := s.unmade(); !slices.Equal(got, want) {
			t.Errorf("after %s: taken back: %v", before, got)
		}
	}
}

// What an attempt to attach may have left is undone.
func TestAttachmentThatMayHaveLeftSomethingIsUndone(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{errors.New("no reply"), "detach volume attachment 0 on machine-0"},
		{storage.NothingMade(errors.New("no slot")), "remove volume attachment 0 on machine-0"},
	} {
		s := play(t, remembering)
		a := on(machine, volume("0"))
		s.observe(wanted(volume("0"), recorded), wanted(a, func(f *plan.Fact) { f.Instance = "instance" }))
		s.notes()
		s.ends(a, failing(test.err))
		s.core.Take()
		s.observe(wanted(a, dying, func(f *plan.Fact) { f.Instance = "instance" }))
		s.does(test.want)
	}
}

// An operation that went on in the background has ended when it says that it made nothing:
// it is tried again with backoff, and goes when it is not wanted.
func TestOperationInProgressThatMadeNothingHasEnded(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v))
	s.does("create volume 0")
	s.ends(v, inProgress)
	s.observe(wanted(v, dead))
	s.passes(time.Second)
	s.does("create volume 0")
	s.ends(v, failing(storage.NothingMade(errors.New("no room"))))
	s.does("remove volume 0")
}

// A filesystem that may exist in part does not hold the volume that backs it: the state
// learns that nobody is making the filesystem, which is not made again unless it is wanted on
// the machine.
func TestFilesystemThatMayBeThereInPartDoesNotHoldItsVolume(t *testing.T) {
	s := play(t, remembering)
	f, m := filesystem("1"), on(machine, filesystem("1"))
	s.attached(volume("0"), machine, recorded)
	s.observe(wanted(f, backedBy(volume("0"))), wanted(m, backedBy(volume("0"))))
	s.does("look up 0")
	s.core.DeviceKnown("0", true, false, 1000)
	s.notes()
	s.ends(f, failing(errors.New("mkfs was killed")))
	out := s.core.Take().Publish
	if len(out.Unmade) > 0 || len(out.Ended) != 1 || out.Ended[0].Key != f {
		t.Errorf("taken back: %v, ended: %v", out.Unmade, out.Ended)
	}
	s.observe(wanted(m, backedBy(volume("0")), dying))
	s.does("remove filesystem attachment 1 on machine-0")
	s.taken(m)
	s.passes(time.Hour)
	s.does()
}
