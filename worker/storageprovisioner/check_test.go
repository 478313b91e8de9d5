package storageprovisioner_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/watchertest"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// checkSuite has a machine's worker that watches mounts. Two filesystems are attached: one on a
// volume, and one of the source.
type checkSuite struct {
	baseSuite
	mounts  *watchertest.Notify
	retries *watchertest.Strings
	// amiss is what has become of each filesystem: nothing, until a test says so.
	amiss atomic.Pointer[string]
	a, b  string
	// onB is the attachment of b.
	onB params.MachineStorageId
}

var _ = gc.Suite(&checkSuite{})

func (s *checkSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.addMachine("0", "instance-0")
	s.amiss.Store(nil)
	check := func(string) error {
		if what := s.amiss.Load(); what != nil {
			return storage.Permanent(errors.New(*what))
		}
		return nil
	}
	s.source.Options.CheckFilesystem, s.managed.Options.CheckFilesystem = check, check
	s.source.Options.Remark = func(id string) string { return id + " is small" }

	cfg := s.config(c, true)
	s.mounts, s.retries = watchertest.New(struct{}{}), watchertest.New[[]string]()
	cfg.Mounts = func() (watcher.NotifyWatcher, error) { return s.mounts, nil }
	cfg.Life = retriable{cfg.Life, s.retries}
	cfg.ResyncInterval = time.Hour
	s.start(c, cfg)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.backedFilesystem(c, "0", "7")
	s.a, s.b = "filesystem-0", "filesystem-1"
	_, s.onB = s.addMount("1", "dynamic", "")
	s.filesystemsChanged(c, "1")
	s.filesystemAttachmentsChanged(c, "machine-0", "1")
	s.awaitLooks(c)
	s.checkStatus(c, "attached", "", "fs-1 is small")
}

// checkStatus checks the statuses of both filesystems.
func (s *checkSuite) checkStatus(c *gc.C, want string, messages ...string) {
	for i, tag := range []string{s.a, s.b} {
		got := s.state.Status(tag)
		c.Check(string(got.Status)+": "+got.Info, gc.Equals, want+": "+messages[i%len(messages)], gc.Commentf("%s", tag))
	}
}

// attachments counts the calls that attach filesystems.
func (s *checkSuite) attachments() int {
	return s.Count("AttachFilesystems") + s.Count("managed.AttachFilesystems")
}

// awaitLooks waits until what was to be looked at has been. A source that is busy does everything
// else first: looks wait for what the first barrier has done, and the second comes after them.
func (s *checkSuite) awaitLooks(c *gc.C) {
	s.barrier(c)
	s.barrier(c)
}

func (s *checkSuite) changeMounts(c *gc.C) {
	s.mounts.Deliver(c, struct{}{})
	s.awaitLooks(c)
}

func (s *checkSuite) becomes(what string) { s.amiss.Store(&what) }

func (s *checkSuite) TestWhatIsTakenAwayIsToldAndNotAttachedAgain(c *gc.C) {
	s.becomes("it was unmounted")
	s.changeMounts(c)
	s.checkStatus(c, "error", "it was unmounted")
	set := s.Count("SetStatus")
	s.changeMounts(c)
	c.Check(s.Count("SetStatus"), gc.Equals, set, gc.Commentf("the same was told again"))
	told := slices.DeleteFunc(s.log.warned(), func(line string) bool {
		return !strings.Contains(line, "filesystem attachment 1 on machine-0: it was unmounted")
	})
	c.Check(told, gc.HasLen, 1)

	s.becomes("contents lost")
	s.changeMounts(c)
	s.checkStatus(c, "error", "contents lost")

	s.amiss.Store(nil)
	s.changeMounts(c)
	s.checkStatus(c, "attached", "", "fs-1 is small")
	c.Check(s.attachments(), gc.Equals, 2)
}

func (s *checkSuite) TestItIsAttachedAgainOnRequest(c *gc.C) {
	s.becomes("it was unmounted")
	s.changeMounts(c)
	s.amiss.Store(nil)
	s.retries.Deliver(c, []string{s.a})
	s.retries.Deliver(c, []string{s.b})
	s.awaitLooks(c)
	c.Check(s.attachments(), gc.Equals, 4)
	s.checkStatus(c, "attached", "", "fs-1 is small")

	// What is as it was attached is not attached again.
	s.retries.Deliver(c, []string{s.a})
	s.awaitLooks(c)
	c.Check(s.attachments(), gc.Equals, 4)
}

// A retry that a user asks for checks the mount first: its loss may not have been reported yet.
func (s *checkSuite) TestItIsLookedAtOnRequest(c *gc.C) {
	s.becomes("it was unmounted")
	s.retries.Deliver(c, []string{s.a})
	s.awaitLooks(c)
	c.Check(s.attachments(), gc.Equals, 3)
	c.Check(s.state.Status(s.a).Status, gc.Equals, "attached")

	// That was one request: what becomes of it then is told, and no more.
	s.changeMounts(c)
	c.Check(s.attachments(), gc.Equals, 3)
	s.checkStatus(c, "error", "it was unmounted")
}

// What nobody tells of is seen at the next resync. That a config has changed is no reason to
// attach it again.
func (s *checkSuite) TestItIsLookedAtAtEachResync(c *gc.C) {
	s.becomes("it is read-only")
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.awaitLooks(c)
	s.checkStatus(c, "attached", "", "fs-1 is small")
	s.advance(c, time.Hour)
	s.awaitLooks(c)
	s.checkStatus(c, "error", "it is read-only")
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.advance(c, time.Hour)
	s.awaitLooks(c)
	s.checkStatus(c, "error", "it is read-only")
	c.Check(s.attachments(), gc.Equals, 2)
}

// Where mounts change all the time, looking at filesystems takes a fiftieth of the time.
func (s *checkSuite) TestLooksAreAsRareAsTheyAreLong(c *gc.C) {
	s.source.OnCall("CheckFilesystems", func(context.Context) error {
		s.clock.Advance(time.Second)
		return nil
	})
	looks := func() int { return s.Count("CheckFilesystems") }
	s.changeMounts(c)
	c.Check(looks(), gc.Equals, 1)
	s.changeMounts(c)
	s.changeMounts(c)
	s.advance(c, 50*time.Second-1)
	s.awaitLooks(c)
	c.Check(looks(), gc.Equals, 1)
	s.advance(c, 1)
	s.awaitLooks(c)
	c.Check(looks(), gc.Equals, 2)
}

// Volumes are looked at at each resync, and not when mounts change.
func (s *checkSuite) TestVolumesAreLookedAtAtEachResync(c *gc.C) {
	v, a := s.addVolumeOn("machine-0", "3", "dynamic")
	s.volumesChanged(c, "3")
	s.volumeAttachmentsChanged(c, "machine-0", "3")
	s.awaitLooks(c)
	s.source.Options.CheckVolume = func(string) error { return storage.Permanent(errors.New("its loop device was detached")) }
	s.changeMounts(c)
	c.Check(s.state.Status(v).Status, gc.Equals, "attached")
	s.advance(c, time.Hour)
	s.awaitLooks(c)
	c.Check(s.state.Status(v).Status, gc.Equals, "error")
	c.Check(s.state.Status(v).Info, gc.Equals, "its loop device was detached")
	before := len(s.About(v+" "+a.MachineTag, "AttachVolumes"))
	s.retries.Deliver(c, []string{v})
	s.awaitLooks(c)
	c.Check(s.About(v+" "+a.MachineTag, "AttachVolumes"), gc.HasLen, before+1)
	c.Check(s.state.Status(v).Status, gc.Equals, "attached")
}

// That something could not be looked at says nothing of it: it is looked at again soon.
func (s *checkSuite) TestLookThatFailsIsTriedAgain(c *gc.C) {
	s.becomes("it was unmounted")
	s.source.FailItem("CheckFilesystems", "filesystem-1", errors.New("no memory"))
	s.managed.FailCall("CheckFilesystems", errors.New("no memory"))
	s.changeMounts(c)
	s.checkStatus(c, "attached", "", "fs-1 is small")
	s.advance(c, backoff[0])
	s.awaitLooks(c)
	s.checkStatus(c, "error", "it was unmounted")
}

func (s *checkSuite) TestWhatIsAmissIsDetached(c *gc.C) {
	s.becomes("it was unmounted")
	s.changeMounts(c)
	s.setLife(s.onB, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "1")
	s.Next(c, "DetachFilesystems")
	s.awaitLooks(c)
	c.Check(string(s.state.Status(s.b).Status), gc.Equals, "detached")
	s.changeMounts(c)
	c.Check(string(s.state.Status(s.b).Status), gc.Equals, "detached")
}

// What is being detached is not looked at, nor is anything while it is looked at detached.
func (s *checkSuite) TestLookingAndDetachingDoNotMeet(c *gc.C) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s.source.OnCall("CheckFilesystems", func(context.Context) error {
		close(entered)
		<-leave
		return nil
	})
	s.becomes("it was unmounted")
	s.mounts.Deliver(c, struct{}{})
	<-entered
	s.setLife(s.onB, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "1")
	c.Check(s.Count("DetachFilesystems"), gc.Equals, 0)
	close(leave)
	s.Next(c, "DetachFilesystems")
	s.awaitLooks(c)
	c.Check(string(s.state.Status(s.b).Status), gc.Equals, "detached")
}

func (s *checkSuite) TestWatcherThatEnds(c *gc.C) {
	s.mounts.Fail(errors.New("gone"))
	c.Check(s.waited(c), gc.ErrorMatches, "watching mounts: gone")
}

func (s *checkSuite) TestMountsOfAnEnvironment(c *gc.C) {
	cfg := storageprovisioner.Config{
		Scope:  names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"),
		Mounts: func() (watcher.NotifyWatcher, error) { return nil, nil },
	}
	c.Check(cfg.Validate(), gc.ErrorMatches, "Mounts with an environment Scope not valid")
}
