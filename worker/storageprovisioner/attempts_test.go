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

// attemptsSuite has a state that records attempts.
type attemptsSuite struct {
	baseSuite
	attempts *attempts
}

var _ = gc.Suite(&attemptsSuite{})

// attempts adds an AttemptAccessor to the state. setError fails each item of the next
// SetAttempts, and setCallError fails every SetAttempts as a whole.
type attempts struct {
	storageprovisioner.LifecycleManager
	journal *calls.Journal

	mu        sync.Mutex
	attempted map[params.MachineStorageId]bool
	setError  *params.Error
	// getError fails each item of Attempts.
	getError     *params.Error
	setCallError error
	// getCallErrors fail Attempts as a whole. They are by the machine of the first ID,
	// which is empty for volumes and filesystems.
	getCallErrors map[string]error
	// onLife and onAttempts, if set, are called before Life and Attempts return.
	onLife, onAttempts func()
}

func (a *attempts) Life(tags []names.Tag) ([]params.LifeResult, error) {
	if a.onLife != nil {
		a.onLife()
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
		if results[i].Error = a.setError; a.setError == nil {
			a.attempted[at.Id] = at.Attempted
		}
	}
	a.setError = nil
	return results, a.setCallError
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
	if a.onAttempts != nil {
		a.onAttempts()
	}
	results := make([]params.AttemptResult, len(ids))
	for i, id := range ids {
		if results[i].Error = a.getError; a.getError == nil {
			results[i].Attempted = a.attempted[id]
		}
	}
	return results, a.getCallErrors[ids[0].MachineTag]
}

// clearGetError lets Attempts succeed.
func (a *attempts) clearGetError() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.getError = nil
}

func (s *attemptsSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.addMachine("0", "instance-0")
	s.attempts = &attempts{journal: s.Journal, attempted: make(map[params.MachineStorageId]bool)}
}

func (s *attemptsSuite) startWithAttempts(c *gc.C) {
	cfg := s.config(c, true, modeltest.Removal)
	s.attempts.LifecycleManager = cfg.Life
	cfg.Life = s.attempts
	s.start(c, cfg)
}

// addAttempt records an attempt of an earlier worker.
func (s *attemptsSuite) addAttempt(machine, tag string) {
	s.attempts.attempted[params.MachineStorageId{MachineTag: machine, AttachmentTag: tag}] = true
}

// The state records an attempt before the source is called.
// Behaviour A1.
func (s *attemptsSuite) TestAttemptRecordedBeforeSourceCall(c *gc.C) {
	s.startWithAttempts(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(s.Names("SetAttempts", "CreateVolumes", "AttachVolumes"), jc.DeepEquals,
		[]string{"SetAttempts", "CreateVolumes", "SetAttempts", "AttachVolumes"})
}

// Behaviour 34, A2: what a worker created before it crashed is destroyed, although the volume
// has been given up since and was never recorded.
// Finding N1.
func (s *attemptsSuite) TestUnrecordedVolumeDestroyedAfterCrash(c *gc.C) {
	v := s.addVolume("0", "dynamic")
	s.addAttempt("", v)
	s.setLife(v, life.Dead)
	s.startWithAttempts(c)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "CreateVolumes", v)
	s.AwaitCall(c, "DestroyVolumes", v)
	s.AwaitCall(c, "Remove", v)
}

// Behaviour 17, A3: what a worker attached before it crashed is detached, although the
// attachment was never recorded.
// Finding N1.
func (s *attemptsSuite) TestUnrecordedAttachmentDetachedAfterCrash(c *gc.C) {
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.addAttempt("machine-0", v)
	s.setLife(a, life.Dying)
	s.startWithAttempts(c)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "DetachVolumes", "volume-0 machine-0")
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
}

// Behaviour 12, A2: an earlier attempt is looked up although the volume has no attachment.
func (s *attemptsSuite) TestAttemptedVolumeWithoutAttachmentRecorded(c *gc.C) {
	v := s.addVolume("0", "dynamic")
	s.addAttempt("", v)
	s.startWithAttempts(c)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "SetVolumeInfo", v)
}

// An attempt that certainly made nothing is cleared, so that the next worker does not look
// it up.
// Behaviour A4.
func (s *attemptsSuite) TestNothingMadeErrorClearsAttempt(c *gc.C) {
	s.startWithAttempts(c)
	s.source.FailItem("CreateVolumes", "volume-0", storage.NothingMade(errors.New("no room")))
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "SetAttempts", v+": true")
	s.AwaitCall(c, "SetAttempts", v+": false")
}

// A source that was not called has made nothing.
// Behaviour A4.
func (s *attemptsSuite) TestAttemptClearedWhenSourceNotCalled(c *gc.C) {
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
		s.startWithAttempts(c)
		v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
		s.volumesChanged(c, "0")
		s.AwaitCall(c, "SetAttempts", v+": true")
		s.AwaitCall(c, "SetAttempts", v+": false")
		c.Check(s.Count("CreateVolumes"), gc.Equals, 0)
	}
}

// Behaviour 28, A9: a creation that fails late may leave something behind. That is destroyed
// before the volume is removed.
func (s *attemptsSuite) TestFailedCreationDestroyedBeforeRemoval(c *gc.C) {
	s.startWithAttempts(c)
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

// Behaviour 28, A9: a volume whose creation reports that nothing was made is removed without
// the source. Earlier failures and operations in progress do not change that.
func (s *attemptsSuite) TestNothingMadeVolumeRemovedWithoutSource(c *gc.C) {
	for i, errs := range [][]error{
		{storage.NothingMade(errors.New("no room"))},
		{errors.New("no reply"), storage.NothingMade(errors.New("no room"))},
		{storage.InProgress(errors.New("later")), storage.NothingMade(errors.New("no room"))},
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		s.startWithAttempts(c)
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

// Behaviour 17, A9: an attachment that failed late is detached before it is removed.
func (s *attemptsSuite) TestFailedAttachmentDetachedBeforeRemoval(c *gc.C) {
	s.startWithAttempts(c)
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

// The attempt is marked as ended: a filesystem that may exist in part does not keep its
// volume attached.
// Behaviour A10.
func (s *attemptsSuite) TestFailedManagedCreationMarksAttemptEnded(c *gc.C) {
	s.startWithAttempts(c)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.managed.FailItem("CreateFilesystems", "filesystem-0", errors.New("mkfs was killed"))
	f, _ := s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "SetAttempts", f+": true")
	s.AwaitCall(c, "SetAttempts", f+": true, ended")
}

// An attempt that may have made something is not cleared.
// Behaviour A4.
func (s *attemptsSuite) TestUnknownOutcomeKeepsAttempt(c *gc.C) {
	s.startWithAttempts(c)
	s.source.FailCall("CreateVolumes", errUnknown)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.statuses(c)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	c.Check(s.About("volume-0: false", "SetAttempts"), gc.HasLen, 0)
	c.Check(s.About("volume-0: true", "SetAttempts"), gc.HasLen, 2)
}

// If the state cannot record an attempt, nothing is created, and the operation is retried.
// Behaviour A5.
func (s *attemptsSuite) TestUnrecordedAttemptNotMade(c *gc.C) {
	s.startWithAttempts(c)
	s.attempts.setError = &params.Error{Message: "not now"}
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: recording the attempt: not now"})
	c.Check(s.Count("CreateVolumes"), gc.Equals, 0)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
}

// Behaviour A5.
func (s *attemptsSuite) TestSetAttemptsCallErrorEndsWorker(c *gc.C) {
	s.startWithAttempts(c)
	s.attempts.setCallError = errors.New("no state")
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	c.Check(s.waited(c), gc.ErrorMatches, "recording attempts: no state")
	s.worker = nil
}

func (s *attemptsSuite) TestAttemptsCallErrorEndsWorker(c *gc.C) {
	s.addVolumeOn("machine-0", "0", "dynamic")
	for _, machine := range []string{"", "machine-0"} {
		s.attempts.getCallErrors = map[string]error{machine: errors.New("no state")}
		s.startWithAttempts(c)
		s.volumesChanged(c, "0")
		if machine != "" {
			s.volumeAttachmentsChanged(c, machine, "0")
		}
		c.Check(s.waited(c), gc.ErrorMatches, "reading attempts: no state")
	}
	s.worker = nil
}

// Behaviour 34: nothing is removed as never created while the state cannot say whether a
// creation was attempted.
func (s *attemptsSuite) TestDeadVolumeKeptUntilAttemptRead(c *gc.C) {
	v := s.addVolume("0", "dynamic")
	s.addAttempt("", v)
	s.setLife(v, life.Dead)
	s.attempts.getError = &params.Error{Message: "not now"}
	s.startWithAttempts(c)
	s.volumesChanged(c, "0")
	s.caughtUp(c)
	c.Check(s.unfinished(c, "volume 0")["last-failure"], gc.Equals, "not now")
	c.Check(s.Count("Remove"), gc.Equals, 0)
	s.attempts.clearGetError()
	s.advance(c, backoff[0])
	s.AwaitCall(c, "Remove", v)
	c.Check(s.Names("CreateVolumes", "DestroyVolumes", "Remove"), jc.DeepEquals,
		[]string{"CreateVolumes", "DestroyVolumes", "Remove"})
}

// A lookup that fails permanently is not repeated, and the volume is removed.
// Behaviour A7.
func (s *attemptsSuite) TestPermanentLookupErrorRemovesVolume(c *gc.C) {
	v := s.addVolume("0", "dynamic")
	s.addAttempt("", v)
	s.setLife(v, life.Dead)
	s.source.FailItem("CreateVolumes", v, storage.Permanent(errors.New("no such pool")))
	s.startWithAttempts(c)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "Remove", v)
	c.Check(s.Count("CreateVolumes"), gc.Equals, 1)
	c.Check(s.Count("DestroyVolumes"), gc.Equals, 0)
}

// If a volume is read just before its attachment begins to die, and the attachment just
// after, the volume is read again: otherwise it would be created and attached although
// unwanted. The order of the watcher's events makes no difference.
// Behaviour A8.
// Finding N2.
func (s *attemptsSuite) TestVolumeRereadWhenAttachmentDiesDuringRead(c *gc.C) {
	busy, free := make(chan struct{}), make(chan struct{})
	s.attempts.onLife = sync.OnceFunc(func() { close(busy); <-free })
	s.startWithAttempts(c)
	_, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.attempts.onAttempts = sync.OnceFunc(func() { s.setLife(a, life.Dying) })
	s.volumesChanged(c, "9")
	receive(c, busy, "a read of lives")
	s.fed.VolumeAttachments.Deliver(c, []params.MachineStorageId{a})
	s.fed.Volumes.Deliver(c, []string{"0"})
	close(free)
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.Await(c, "another read of the volume", func() bool { return s.Count("VolumeParams", "SetAttempts") == 2 })
	c.Check(s.Names("VolumeParams", "SetAttempts"), jc.DeepEquals, []string{"VolumeParams", "VolumeParams"})
}
