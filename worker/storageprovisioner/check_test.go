package storageprovisioner_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
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
	// failure is what a check finds wrong with each filesystem, or nil.
	failure atomic.Pointer[string]
	a, b    string
	// onB is the attachment of b.
	onB params.MachineStorageId
}

var _ = gc.Suite(&checkSuite{})

func (s *checkSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.addMachine("0", "instance-0")
	s.failure.Store(nil)
	check := func(string) error {
		if what := s.failure.Load(); what != nil {
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
	s.awaitChecks(c)
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

// awaitChecks waits until all checks that are due have run. A source does all its other work
// first: checks run after the first barrier, and before the end of the second.
func (s *checkSuite) awaitChecks(c *gc.C) {
	s.barrier(c)
	s.barrier(c)
}

func (s *checkSuite) changeMounts(c *gc.C) {
	s.mounts.Deliver(c, struct{}{})
	s.awaitChecks(c)
}

func (s *checkSuite) setFailure(what string) { s.failure.Store(&what) }

// Behaviour G12.
func (s *checkSuite) TestLostMountReportedNotReattached(c *gc.C) {
	s.setFailure("it was unmounted")
	s.changeMounts(c)
	s.checkStatus(c, "error", "it was unmounted")
	set := s.Count("SetStatus")
	s.changeMounts(c)
	c.Check(s.Count("SetStatus"), gc.Equals, set, gc.Commentf("the same status was set again"))
	logged := slices.DeleteFunc(s.log.warned(), func(line string) bool {
		return !strings.Contains(line, "filesystem attachment 1 on machine-0: it was unmounted")
	})
	c.Check(logged, gc.HasLen, 1)

	s.setFailure("contents lost")
	s.changeMounts(c)
	s.checkStatus(c, "error", "contents lost")

	s.failure.Store(nil)
	s.changeMounts(c)
	s.checkStatus(c, "attached", "", "fs-1 is small")
	c.Check(s.attachments(), gc.Equals, 2)
}

// Behaviour G12.
func (s *checkSuite) TestLostMountReattachedOnRequest(c *gc.C) {
	s.setFailure("it was unmounted")
	s.changeMounts(c)
	s.failure.Store(nil)
	s.retries.Deliver(c, []string{s.a})
	s.retries.Deliver(c, []string{s.b})
	s.awaitChecks(c)
	c.Check(s.attachments(), gc.Equals, 4)
	s.checkStatus(c, "attached", "", "fs-1 is small")

	// A mount that is intact is not attached again.
	s.retries.Deliver(c, []string{s.a})
	s.awaitChecks(c)
	c.Check(s.attachments(), gc.Equals, 4)
}

// A retry that a user requests checks the mount first: its loss may not have been reported
// yet.
func (s *checkSuite) TestRequestedRetryChecksMountFirst(c *gc.C) {
	s.setFailure("it was unmounted")
	s.retries.Deliver(c, []string{s.a})
	s.awaitChecks(c)
	c.Check(s.attachments(), gc.Equals, 3)
	c.Check(s.state.Status(s.a).Status, gc.Equals, "attached")

	// The request applied once: a later loss is only reported.
	s.changeMounts(c)
	c.Check(s.attachments(), gc.Equals, 3)
	s.checkStatus(c, "error", "it was unmounted")
}

// A loss that no watcher reports is found at the next resync. A changed config does not
// lead to a reattachment.
// Behaviour G12.
func (s *checkSuite) TestFilesystemsCheckedAtResync(c *gc.C) {
	s.setFailure("it is read-only")
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.awaitChecks(c)
	s.checkStatus(c, "attached", "", "fs-1 is small")
	s.advance(c, time.Hour)
	s.awaitChecks(c)
	s.checkStatus(c, "error", "it is read-only")
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.advance(c, time.Hour)
	s.awaitChecks(c)
	s.checkStatus(c, "error", "it is read-only")
	c.Check(s.attachments(), gc.Equals, 2)
}

// If mounts change all the time, checks take at most a fiftieth of the time.
// Behaviour G12.
func (s *checkSuite) TestCheckRateLimitedByDuration(c *gc.C) {
	s.source.OnCall("CheckFilesystems", func(context.Context) error {
		s.clock.Advance(time.Second)
		return nil
	})
	checks := func() int { return s.Count("CheckFilesystems") }
	s.changeMounts(c)
	c.Check(checks(), gc.Equals, 1)
	s.changeMounts(c)
	s.changeMounts(c)
	s.advance(c, 50*time.Second-1)
	s.awaitChecks(c)
	c.Check(checks(), gc.Equals, 1)
	s.advance(c, 1)
	s.awaitChecks(c)
	c.Check(checks(), gc.Equals, 2)
}

// Volumes are checked at each resync, and not when mounts change.
// Behaviour G12.
func (s *checkSuite) TestVolumesCheckedAtResync(c *gc.C) {
	v, a := s.addVolumeOn("machine-0", "3", "dynamic")
	s.volumesChanged(c, "3")
	s.volumeAttachmentsChanged(c, "machine-0", "3")
	s.awaitChecks(c)
	s.source.Options.CheckVolume = func(string) error { return storage.Permanent(errors.New("its loop device was detached")) }
	s.changeMounts(c)
	c.Check(s.state.Status(v).Status, gc.Equals, "attached")
	s.advance(c, time.Hour)
	s.awaitChecks(c)
	c.Check(s.state.Status(v).Status, gc.Equals, "error")
	c.Check(s.state.Status(v).Info, gc.Equals, "its loop device was detached")
	before := len(s.About(v+" "+a.MachineTag, "AttachVolumes"))
	s.retries.Deliver(c, []string{v})
	s.awaitChecks(c)
	c.Check(s.About(v+" "+a.MachineTag, "AttachVolumes"), gc.HasLen, before+1)
	c.Check(s.state.Status(v).Status, gc.Equals, "attached")
}

// A check that fails says nothing about the attachment. It is retried soon.
// Behaviour G12.
func (s *checkSuite) TestFailedCheckIsRetried(c *gc.C) {
	s.setFailure("it was unmounted")
	s.source.FailItem("CheckFilesystems", "filesystem-1", errors.New("no memory"))
	s.managed.FailCall("CheckFilesystems", errors.New("no memory"))
	s.changeMounts(c)
	s.checkStatus(c, "attached", "", "fs-1 is small")
	s.advance(c, backoff[0])
	s.awaitChecks(c)
	s.checkStatus(c, "error", "it was unmounted")
}

// Behaviour G12.
func (s *checkSuite) TestLostMountDetachedWhenDying(c *gc.C) {
	s.setFailure("it was unmounted")
	s.changeMounts(c)
	s.setLife(s.onB, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "1")
	s.Next(c, "DetachFilesystems")
	s.awaitChecks(c)
	c.Check(string(s.state.Status(s.b).Status), gc.Equals, "detached")
	s.changeMounts(c)
	c.Check(string(s.state.Status(s.b).Status), gc.Equals, "detached")
}

// An attachment is not checked while it is being detached, nor detached while it is being
// checked.
// Behaviour G12.
func (s *checkSuite) TestCheckAndDetachDoNotOverlap(c *gc.C) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s.source.OnCall("CheckFilesystems", func(context.Context) error {
		close(entered)
		<-leave
		return nil
	})
	s.setFailure("it was unmounted")
	s.mounts.Deliver(c, struct{}{})
	<-entered
	s.setLife(s.onB, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "1")
	c.Check(s.Count("DetachFilesystems"), gc.Equals, 0)
	close(leave)
	s.Next(c, "DetachFilesystems")
	s.awaitChecks(c)
	c.Check(string(s.state.Status(s.b).Status), gc.Equals, "detached")
}

// Behaviour G12.
func (s *checkSuite) TestMountsWatcherErrorEndsWorker(c *gc.C) {
	s.mounts.Fail(errors.New("gone"))
	c.Check(s.waited(c), gc.ErrorMatches, "watching mounts: gone")
}

// Behaviour G12.
func (s *checkSuite) TestMountsInvalidInEnvironScope(c *gc.C) {
	cfg := storageprovisioner.Config{
		Scope:  names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"),
		Mounts: func() (watcher.NotifyWatcher, error) { return nil, nil },
	}
	c.Check(cfg.Validate(), gc.ErrorMatches, "Mounts with an environment Scope not valid")
}

// changesSuite has a watcher of mounts that says what has changed.
type changesSuite struct {
	baseSuite
	mounts *changingMounts

	mu     sync.Mutex
	checks map[string]int
}

var _ = gc.Suite(&changesSuite{})

// changingMounts is a watcher of mounts with what its ChangedMounts returns next.
type changingMounts struct {
	*watchertest.Notify
	mu    sync.Mutex
	paths []string
	all   bool
	panic bool
}

func (w *changingMounts) ChangedMounts() (paths []string, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.panic {
		panic("ChangedMounts")
	}
	paths, all = w.paths, w.all
	w.paths, w.all = nil, false
	return paths, all
}

func (w *changingMounts) add(all bool, paths ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paths, w.all = append(w.paths, paths...), w.all || all
}

// many is the number of filesystems, mounted at /srv/0 and so on.
const many = 50

func (s *changesSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.addMachine("0", "instance-0")
	s.checks = make(map[string]int)
	s.source.Options.CheckFilesystem = func(id string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.checks[id]++
		return nil
	}
	cfg := s.config(c, true)
	s.mounts = &changingMounts{Notify: watchertest.New(struct{}{}), all: true}
	cfg.Mounts = func() (watcher.NotifyWatcher, error) { return s.mounts, nil }
	cfg.ResyncInterval = time.Hour
	s.start(c, cfg)
	var ids []string
	for i := range many {
		ids = append(ids, strconv.Itoa(i))
		s.addMount(ids[i], "dynamic", "")
	}
	s.filesystemsChanged(c, ids...)
	s.filesystemAttachmentsChanged(c, "machine-0", ids...)
	s.barrier(c)
	s.barrier(c)
	// The first report after their attachment is followed by a check of all.
	c.Check(s.checked(c, func() { s.mounts.Deliver(c, struct{}{}) }), gc.HasLen, many)
}

// checked returns the filesystems that the worker checks after a report of changes.
func (s *changesSuite) checked(c *gc.C, report func()) []string {
	s.takeChecked()
	report()
	s.barrier(c)
	s.barrier(c)
	return s.takeChecked()
}

// takeChecked returns the filesystems that have been checked since the previous call, without
// those of barriers.
func (s *changesSuite) takeChecked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	checked := []string{}
	for i := range many {
		id := fmt.Sprintf("fs-%d", i)
		for range s.checks[id] {
			checked = append(checked, id)
		}
	}
	clear(s.checks)
	return checked
}

// Only the filesystems that a change of mounts concerns are checked.
// Behaviour G12.
func (s *changesSuite) TestOnlyConcernedFilesystemsChecked(c *gc.C) {
	report := func(all bool, paths ...string) func() {
		return func() {
			s.mounts.add(all, paths...)
			s.mounts.Deliver(c, struct{}{})
		}
	}
	c.Check(s.checked(c, report(false, "/srv/7")), jc.DeepEquals, []string{"fs-7"})
	c.Check(s.checked(c, report(false, "/srv/7", "/srv/8/below", "/home")), jc.DeepEquals, []string{"fs-7"})
	c.Check(s.checked(c, report(false)), gc.HasLen, 0)
	c.Check(s.checked(c, report(false, "/srv")), gc.HasLen, many)
	c.Check(s.checked(c, report(true)), gc.HasLen, many)
	c.Check(s.checked(c, func() { s.advance(c, time.Hour) }), gc.HasLen, many)
}

// Changes while the worker waits for the next check are not forgotten.
// Behaviour G12.
func (s *changesSuite) TestChangesDuringPauseAreChecked(c *gc.C) {
	s.source.OnCall("CheckFilesystems", func(context.Context) error {
		s.clock.Advance(time.Second)
		return nil
	})
	report := func(path string) {
		s.mounts.add(false, path)
		s.mounts.Deliver(c, struct{}{})
	}
	c.Check(s.checked(c, func() { report("/srv/1") }), jc.DeepEquals, []string{"fs-1"})
	c.Check(s.checked(c, func() { report("/srv/2"); report("/srv/3") }), gc.HasLen, 0)
	c.Check(s.checked(c, func() { s.advance(c, time.Minute) }), jc.DeepEquals, []string{"fs-2", "fs-3"})
}

// If the watcher cannot say what has changed, everything is checked.
// Behaviour G12.
func (s *changesSuite) TestPanicOfChangedMountsChecksAll(c *gc.C) {
	s.mounts.mu.Lock()
	s.mounts.panic = true
	s.mounts.mu.Unlock()
	c.Check(s.checked(c, func() { s.mounts.Deliver(c, struct{}{}) }), gc.HasLen, many)
}
