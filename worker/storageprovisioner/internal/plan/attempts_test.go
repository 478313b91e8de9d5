package plan_test

import (
	"errors"
	"fmt"
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

// notes has the state note the attempts of the only batch, and return errs. It returns the noted
// attempts and the operations that go ahead.
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
		all = append(all, subject.Key().String())
	}
	errs = append(errs, make([]error, len(all))...)
	b = s.core.Noted(b, errs[:len(all)])
	for _, item := range b.Items {
		s.sources[item.Key()], s.items[item.Key()] = b.Source, item
		rest = append(rest, b.Op.String()+" "+item.Key().String())
	}
	return strings.Join(all, ", "), strings.Join(rest, ", ")
}

func (s *script) unmade() []string {
	var keys []string
	for _, subject := range s.core.Take().Publish.Unmade {
		keys = append(keys, subject.Key().String())
	}
	return keys
}

func (s *script) check(what string, got, want any) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// An item that is no longer wanted once its attempt has been noted is not created. The other
// items of the batch are.
// Behaviour A6.
func TestVolumeUnwantedWhenNotedIsNotCreated(t *testing.T) {
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

// A batch whose items are all dropped does not keep its source busy.
// Behaviour A6.
func TestDroppedBatchFreesSource(t *testing.T) {
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

// Each item of a batch has an answer of its own from the state. A repeated item is not noted
// again, and an item that could not be noted is not created.
func TestItemsOfBatchAreNotedIndividually(t *testing.T) {
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

// That an attempt to attach a volume has made nothing says nothing about the volume's other
// attachments.
func TestAttemptsOfAttachmentsEndIndividually(t *testing.T) {
	s := play(t, remembering)
	v := volume("0")
	a, b := on("machine-1", v), on("machine-2", v)
	s.observe(wanted(v, recorded), wanted(a, attempted, func(f *plan.Fact) { f.Instance = "" }), wanted(b))
	_, ahead := s.notes()
	s.check("attached", ahead, "attach volume attachment 0 on machine-2")
	s.ends(b, failing(storage.NothingMade(errors.New("no"))))
	if got := s.unmade(); !slices.Equal(got, []string{b.String()}) {
		t.Errorf("taken back: %v", got)
	}
	s.observe(wanted(a, dying, attempted, recorded, func(f *plan.Fact) { f.Recorded = false }))
	s.does("detach volume attachment 0 on machine-1")
}

// A volume that must wait once its attempt has been noted is created when the wait is over.
func TestVolumeWaitingWhenNotedIsCreatedLater(t *testing.T) {
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
// Behaviour A5.
func TestVolumeGoneWhenNotedIsReadAgain(t *testing.T) {
	s := play(t, remembering)
	s.observe(wanted(volume("0")))
	_, ahead := s.notes(jujuerrors.NotFoundf("volume 0"))
	s.check("made", ahead, "")
	s.does("read volume 0")
	s.gone(volume("0"))
	s.nothing()
}

// The note of an attempt stays if an earlier attempt may have made something.
// Behaviour A4.
func TestAttemptKeptWhileEarlierOutcomeIsUnknown(t *testing.T) {
	s := play(t, remembering)
	s.observe(wanted(volume("0"), attempted))
	s.notes()
	s.ends(volume("0"), failing(errors.New("busy")))
	if got := s.unmade(); got != nil {
		t.Errorf("taken back: %v", got)
	}
}

// A fact read while an attempt ends is older than that end.
// Behaviour A4.
func TestStaleReadDoesNotReviveEndedAttempt(t *testing.T) {
	s := play(t, remembering)
	v := volume("0")
	s.observe(wanted(v))
	s.notes()
	s.ends(v, failing(storage.NothingMade(errors.New("no room"))))
	s.unmade()
	s.observe(wanted(v, dead, attempted))
	s.does("remove volume 0")
}

// Repeating a recorded attachment is not noted in the state.
// Behaviour A1.
func TestRepeatedAttachIsNotNoted(t *testing.T) {
	s := play(t, remembering)
	s.observe(wanted(volume("0"), recorded), wanted(on(machine, volume("0")), recorded))
	s.does("attach volume attachment 0 on machine-0")
}

// A volume is not created from facts that were read before its attachment was given up: that
// would attach the volume, and after a crash nobody would look for the attachment.
// Behaviour A8.
// Finding N2.
func TestVolumeNotCreatedForDyingAttachment(t *testing.T) {
	s := play(t, remembering)
	v, a := volume("0"), on(machine, volume("0"))
	s.observe(wanted(v, func(f *plan.Fact) { f.Host = machine }), wanted(a, dying))
	s.does("remove volume attachment 0 on machine-0", "read volume 0")
	s.taken(a)
	s.does()
	s.observe(wanted(v, without))
	s.does()
}

// An attachment that the creation of its volume may have made is not detached before the
// outcome of the creation is known: repeating the creation could attach the volume again,
// and after a crash nobody would look for the attachment.
// Behaviour A3.
// Finding N4.
func TestDetachWaitsForRepeatedCreate(t *testing.T) {
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

// A volume that was not created is not attached: there is nothing to detach, and no ID to
// detach it by.
// Finding N12.
func TestAttachmentOfUncreatedVolumeIsNotDetached(t *testing.T) {
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

// If a volume goes away while a filesystem is being made on it in the background, the failed
// attempt leaves nothing to check, and the filesystem can be removed.
// Behaviour A7.
// Finding N5.
func TestFilesystemInProgressEndsWithItsDevice(t *testing.T) {
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

// A filesystem is not made on a volume unless it is wanted on the machine: without that, the
// volume may be detached.
// Behaviour A8.
// Finding N7.
func TestFilesystemNotMadeForDyingMount(t *testing.T) {
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

// If a volume goes away while its filesystem is being mounted in the background, the attempt
// has ended too. The filesystem may be mounted, and is unmounted.
// Behaviour A7.
func TestMountInProgressEndsWithItsDevice(t *testing.T) {
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

// A failure that does not say whether something was made is followed by another creation
// before the removal, until an attempt reports that nothing was made.
// Behaviour A9.
func TestFailedCreateRepeatedBeforeRemoval(t *testing.T) {
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

// A source that was not called has made nothing, but that says nothing about earlier
// attempts.
// Behaviour A4.
func TestUntriedAttemptKeepsEarlierOutcome(t *testing.T) {
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

// A failed attachment is detached, unless the provider reports that nothing was made.
// Behaviour A9.
func TestFailedAttachDetachedUnlessNothingMade(t *testing.T) {
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

// An operation in the background has ended when it reports that nothing was made: it is
// retried with backoff, and removed when it is not wanted.
// Behaviour A9.
func TestNothingMadeEndsOperationInProgress(t *testing.T) {
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

// A refused creation says nothing about earlier ones: if there may be something left of one, the
// creation is repeated when the volume is not wanted any more, to find and destroy that.
// Behaviour A4.
// Finding N44.
func TestRefusalSaysNothingAboutEarlierAttempts(t *testing.T) {
	refusals := map[string]error{
		"for now":  storage.Refused(errors.New("no room")),
		"for good": storage.Refused(storage.Permanent(errors.New("no such class"))),
	}
	for name, refusal := range refusals {
		for _, earlier := range []error{nil, errors.New("lost"), storage.ErrInProgress} {
			t.Run(fmt.Sprint(name, " after ", earlier), func(t *testing.T) {
				s := play(t, remembering)
				v := volume("0")
				s.observe(wanted(v))
				s.notes()
				if earlier != nil {
					s.ends(v, failing(earlier))
					s.passes(time.Minute)
					s.does("create volume 0")
				}
				s.ends(v, failing(refusal))
				s.unmade()
				s.observe(wanted(v, dead, attempted))
				if earlier == nil {
					s.does("remove volume 0")
					return
				}
				if storage.IsPermanent(refusal) {
					s.core.Retry(v)
				} else {
					s.passes(time.Hour)
				}
				s.does("create volume 0")
				s.ends(v, failing(refusal))
				s.does() // it is not removed
			})
		}
	}
}

// A filesystem that may exist in part does not hold the volume that backs it: the state
// learns that nobody is making the filesystem, which is not made again unless it is wanted on
// the machine.
// Behaviour A10.
func TestPartialFilesystemDoesNotHoldUpDetach(t *testing.T) {
	s := play(t, remembering)
	f, m := filesystem("1"), on(machine, filesystem("1"))
	s.attached(volume("0"), machine, recorded)
	s.observe(wanted(f, backedBy(volume("0"))), wanted(m, backedBy(volume("0"))))
	s.does("look up 0")
	s.core.DeviceKnown("0", true, false, 1000)
	s.notes()
	s.ends(f, failing(errors.New("mkfs was killed")))
	out := s.core.Take().Publish
	if len(out.Unmade) > 0 || len(out.Ended) != 1 || out.Ended[0].Key() != f {
		t.Errorf("taken back: %v, ended: %v", out.Unmade, out.Ended)
	}
	s.observe(wanted(m, backedBy(volume("0")), dying))
	s.does("remove filesystem attachment 1 on machine-0")
	s.taken(m)
	s.passes(time.Hour)
	s.does()
}
