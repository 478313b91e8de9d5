package storageprovisioner_test

import (
	"fmt"
	"sync"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// attemptsSuite has a state that remembers what workers have set out to make.
type attemptsSuite struct {
	baseSuite
	attempts *attempts
}

var _ = gc.Suite(&attemptsSuite{})

// attempts is what the state remembers, beside the model.
type attempts struct {
	storageprovisioner.LifecycleManager
	journal *calls.Journal

	mu        sync.Mutex
	attempted map[params.MachineStorageId]bool
	refusal   *params.Error
	// unread is why the attempt of an entity cannot be read.
	unread    *params.Error
	unnotable error
	// unreadable is why no attempts can be read, by the machine of the first attempt,
	// which is empty for volumes and filesystems.
	unreadable map[string]error
	// living and reading are called before the state tells of lives and of attempts, if
	// they are there.
	living, reading func()
}

func (a *attempts) Life(tags []names.Tag) ([]params.LifeResult, error) {
	if a.living != nil {
		a.living()
	}
	return a.LifecycleManager.Life(tags)
}

func (a *attempts) SetAttempts(all []params.Attempt) ([]params.ErrorResult, error) {
	var ends []func()
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	results := make([]params.ErrorResult, len(all))
	for i, at := range all {
		ends = append(ends, a.journal.RecordBegin("SetAttempts", at.Attempted, describeAttempt(at)))
		if results[i].Error = a.refusal; a.refusal == nil {
			a.attempted[at.Id] = at.Attempted
		}
	}
	a.refusal = nil
	return results, a.unnotable
}

func describeAttempt(at params.Attempt) string {
	text := at.Id.AttachmentTag
	if at.Id.MachineTag != "" {
		text += " " + at.Id.MachineTag
	}
	text = fmt.Sprintf("%s: %v", text, at.Attempted)
	if at.Ended {
		text += ", ended"
	}
	return text
}

func (a *attempts) Attempts(ids []params.MachineStorageId) ([]params.AttemptResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reading != nil {
		a.reading()
	}
	results := make([]params.AttemptResult, len(ids))
	for i, id := range ids {
		if results[i].Error = a.unread; a.unread == nil {
			results[i].Attempted = a.attempted[id]
		}
	}
	return results, a.unreadable[ids[0].MachineTag]
}

// tell has attempts be read again.
func (a *attempts) tell() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unread = nil
}

func (s *attemptsSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.addMachine("0", "instance-0")
	s.attempts = &attempts{journal: s.Journal, attempted: make(map[params.MachineStorageId]bool)}
}

func (s *attemptsSuite) startRemembering(c *gc.C) {
	cfg := s.config(c, true, modeltest.Removal)
	s.attempts.LifecycleManager = cfg.Life
	cfg.Life = s.attempts
	s.start(c, cfg)
}

// may has the state remember an attempt of a worker before this one.
func (s *attemptsSuite) may(machine, tag string) {
	s.attempts.attempted[params.MachineStorageId{MachineTag: machine, AttachmentTag: tag}] = true
}

// The state knows of an attempt before the source does.
func (s *attemptsSuite) TestAttemptIsNotedBeforeItIsMade(c *gc.C) {
	s.startRemembering(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(s.Names("SetAttempts", "CreateVolumes", "AttachVolumes"), jc.DeepEquals,
		[]string{"SetAttempts", "CreateVolumes", "SetAttempts", "AttachVolumes"})
}

// 34: what a worker made before it crashed is destroyed, although the volume has since
// been given up and no worker has ever recorded it.
func (s *attemptsSuite) TestCrashBetweenMakingAndRecordingLeaksNothing(c *gc.C) {
	v := s.addVolume("0", "dynamic")
	s.may("", v)
	s.setLife(v, life.Dead)
	s.startRemembering(c)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "CreateVolumes", v)
	s.AwaitCall(c, "DestroyVolumes", v)
	s.AwaitCall(c, "Remove", v)
}

// 17: so is what it attached.
func (s *attemptsSuite) TestCrashBetweenAttachingAndRecordingLeavesNothingAttached(c *gc.C) {
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.may("machine-0", v)
	s.setLife(a, life.Dying)
	s.startRemembering(c)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "DetachVolumes", "volume-0 machine-0")
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
}

// 12: what may have been made is looked into, though it is to be attached nowhere now.
func (s *attemptsSuite) TestWhatMayHaveBeenMadeAndIsWantedNowhereIsRecorded(c *gc.C) {
	v := s.addVolume("0", "dynamic")
	s.may("", v)
	s.startRemembering(c)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "SetVolumeInfo", v)
}

// What has certainly made nothing is not looked into by the next worker.
func (s *attemptsSuite) TestAttemptThatMadeNothingIsTakenBack(c *gc.C) {
	s.startRemembering(c)
	s.source.FailItem("CreateVolumes", "volume-0", storage.NothingMade(errors.New("no room")))
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "SetAttempts", v+": true")
	s.AwaitCall(c, "SetAttempts", v+": false")
}

// A source that was not called has made nothing.
func (s *attemptsSuite) TestAttemptThatWasNotMadeIsTakenBack(c *gc.C) {
	for i, script := range []func(){
		func() { s.source.FailCall("VolumeSource", errors.New("no connection")) },
		func() { s.source.FailItem("ValidateVolumeParams", "volume-0", errors.New("too large")) },
		func() { s.source.Options.ShouldCreateVolume = func(storage.VolumeParams) bool { return false } },
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		script()
		s.startRemembering(c)
		v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
		s.volumesChanged(c, "0")
		s.AwaitCall(c, "SetAttempts", v+": true")
		s.AwaitCall(c, "SetAttempts", v+": false")
		c.Check(s.Count("CreateVolumes"), gc.Equals, 0)
	}
}

// 28: a creation that fails late may have left something: that is destroyed before the
// volume goes.
func (s *attemptsSuite) TestCreationThatFailedIsLookedIntoBeforeItGoes(c *gc.C) {
	s.startRemembering(c)
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("fsync: input/output error"))
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: fsync: input/output error"})
	c.Check(s.About(v+": false", "SetAttempts"), gc.HasLen, 0)
	s.state.ForgetAttachment(a.MachineTag, a.AttachmentTag)
	s.state.Destroy(v)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "Remove", v)
	c.Check(s.Names("CreateVolumes", "DestroyVolumes", "Remove"), jc.DeepEquals,
		[]string{"CreateVolumes", "CreateVolumes", "DestroyVolumes", "Remove"})
}

// 28: one that says that it made nothing has not, nor has one that was going on.
func (s *attemptsSuite) TestCreationThatMadeNothingGoesWithoutTheSource(c *gc.C) {
	for i, errs := range [][]error{
		{storage.NothingMade(errors.New("no room"))},
		{errors.New("no reply"), storage.NothingMade(errors.New("no room"))},
		{storage.InProgress(errors.New("later")), storage.NothingMade(errors.New("no room"))},
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		s.startRemembering(c)
		s.source.FailItem("CreateVolumes", "volume-0", errs...)
		v, a := s.addVolumeOn("machine-0", "0", "dynamic")
		s.volumesChanged(c, "0")
		s.AwaitCall(c, "CreateVolumes", v)
		for n := range errs[1:] {
			s.advance(c, backoff[n])
			s.Await(c, "another attempt", func() bool { return s.Count("CreateVolumes") == n+2 })
		}
		s.AwaitCall(c, "SetAttempts", v+": false")
		s.state.ForgetAttachment(a.MachineTag, a.AttachmentTag)
		s.state.Destroy(v)
		s.volumesChanged(c, "0")
		s.AwaitCall(c, "Remove", v)
		c.Check(s.Count("CreateVolumes"), gc.Equals, len(errs))
		c.Check(s.Count("DestroyVolumes"), gc.Equals, 0)
	}
}

// 17: an attachment that failed late is undone before it goes.
func (s *attemptsSuite) TestAttachmentThatFailedIsUndoneBeforeItGoes(c *gc.C) {
	s.startRemembering(c)
	s.source.FailItem("AttachVolumes", "volume-0 machine-0", errors.New("no reply"))
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.statuses(c)
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	c.Check(s.Names("AttachVolumes", "DetachVolumes", "RemoveAttachments"), jc.DeepEquals,
		[]string{"AttachVolumes", "DetachVolumes", "RemoveAttachments"})
}

// A volume need not stay for a filesystem that may have been made only in part.
func (s *attemptsSuite) TestStateIsToldThatNobodyMakesAFilesystemAnyMore(c *gc.C) {
	s.startRemembering(c)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.managed.FailItem("CreateFilesystems", "filesystem-0", errors.New("mkfs was killed"))
	f, _ := s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "SetAttempts", f+": true")
	s.AwaitCall(c, "SetAttempts", f+": true, ended")
}

// What may have made something is not taken back.
func (s *attemptsSuite) TestAttemptOfWhichNothingIsKnownStays(c *gc.C) {
	s.startRemembering(c)
	s.source.FailCall("CreateVolumes", unknown)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.statuses(c)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	c.Check(s.About("volume-0: false", "SetAttempts"), gc.HasLen, 0)
	c.Check(s.About("volume-0: true", "SetAttempts"), gc.HasLen, 2)
}

// If the state cannot note an attempt, nothing is made, and the attempt is tried again.
func (s *attemptsSuite) TestAttemptThatCannotBeNotedIsNotMade(c *gc.C) {
	s.startRemembering(c)
	s.attempts.refusal = &params.Error{Message: "not now"}
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: noting what is about to be made: not now"})
	c.Check(s.Count("CreateVolumes"), gc.Equals, 0)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
}

func (s *attemptsSuite) TestAttemptsThatCannotBeNotedAsAWholeEndTheWorker(c *gc.C) {
	s.startRemembering(c)
	s.attempts.unnotable = errors.New("no state")
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	c.Check(s.waited(c), gc.ErrorMatches, "noting attempts: no state")
	s.worker = nil
}

func (s *attemptsSuite) TestAttemptsThatCannotBeReadAsAWholeEndTheWorker(c *gc.C) {
	s.addVolumeOn("machine-0", "0", "dynamic")
	for _, machine := range []string{"", "machine-0"} {
		s.attempts.unreadable = map[string]error{machine: errors.New("no state")}
		s.startRemembering(c)
		s.volumesChanged(c, "0")
		if machine != "" {
			s.volumeAttachmentsChanged(c, machine, "0")
		}
		c.Check(s.waited(c), gc.ErrorMatches, "reading attempts: no state")
	}
	s.worker = nil
}

// 34: nothing is removed as never made while the state cannot tell whether it was.
func (s *attemptsSuite) TestWhatMayHaveBeenMadeStaysUntilThatIsRead(c *gc.C) {
	v := s.addVolume("0", "dynamic")
	s.may("", v)
	s.setLife(v, life.Dead)
	s.attempts.unread = &params.Error{Message: "not now"}
	s.startRemembering(c)
	s.volumesChanged(c, "0")
	s.caughtUp(c)
	c.Check(s.unfinished(c, "volume 0")["last-failure"], gc.Equals, "not now")
	c.Check(s.Count("Remove"), gc.Equals, 0)
	s.attempts.tell()
	s.advance(c, backoff[0])
	s.AwaitCall(c, "Remove", v)
	c.Check(s.Names("CreateVolumes", "DestroyVolumes", "Remove"), jc.DeepEquals,
		[]string{"CreateVolumes", "DestroyVolumes", "Remove"})
}

// What another worker has permanently failed at is asked for once, and then let go.
func (s *attemptsSuite) TestWhatCannotBeLookedIntoForGoodIsRemoved(c *gc.C) {
	v := s.addVolume("0", "dynamic")
	s.may("", v)
	s.setLife(v, life.Dead)
	s.source.FailItem("CreateVolumes", v, storage.Permanent(errors.New("no such pool")))
	s.startRemembering(c)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "Remove", v)
	c.Check(s.Count("CreateVolumes"), gc.Equals, 1)
	c.Check(s.Count("DestroyVolumes"), gc.Equals, 0)
}

// If a volume was read just before its attachment began to die, and the attachment just
// after, the volume is read once more: otherwise it would be made and attached for nobody.
// It makes no difference that the watcher reported the attachment first.
func (s *attemptsSuite) TestWhatIsReadTogetherIsTakenInAsItWasRead(c *gc.C) {
	busy, free := make(chan struct{}), make(chan struct{})
	s.attempts.living = sync.OnceFunc(func() { close(busy); <-free })
	s.startRemembering(c)
	_, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.attempts.reading = sync.OnceFunc(func() { s.setLife(a, life.Dying) })
	s.volumesChanged(c, "9")
	receive(c, busy, "a reading")
	s.fed.VolumeAttachments.Deliver(c, []params.MachineStorageId{a})
	s.fed.Volumes.Deliver(c, []string{"0"})
	close(free)
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.Await(c, "another reading of the volume", func() bool { return s.Count("VolumeParams", "SetAttempts") == 2 })
	c.Check(s.Names("VolumeParams", "SetAttempts"), jc.DeepEquals, []string{"VolumeParams", "VolumeParams"})
}
