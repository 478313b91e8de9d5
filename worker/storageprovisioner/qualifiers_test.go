package storageprovisioner_test

import (
	"strings"
	"sync"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
)

// qualifiersSuite tests behaviour 30, with sources that defer operations until the test
// allows them.
type qualifiersSuite struct {
	baseSuite

	heldMu sync.Mutex
	// held are the tags of entities whose operations are deferred. For provisioned
	// storage, held also has provider IDs.
	held map[string]bool
	// asked are the tags and IDs in the questions so far, in order.
	asked []string
}

var _ = gc.Suite(&qualifiersSuite{})

func (s *qualifiersSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.held, s.asked = make(map[string]bool), nil
	s.addMachine("0", "instance-0")
	for _, p := range []*providerfake.Provider{s.source, s.managed} {
		p.Options.ShouldCreateVolume = func(v storage.VolumeParams) bool { return s.allowed(v.Tag.String()) }
		p.Options.ShouldCreateFilesystem = func(f storage.FilesystemParams) bool { return s.allowed(f.Tag.String()) }
		p.Options.ShouldDestroyVolume = s.allowed
		p.Options.ShouldDestroyFilesystem = s.allowed
	}
}

func (s *qualifiersSuite) allowed(name string) bool {
	s.heldMu.Lock()
	defer s.heldMu.Unlock()
	s.asked = append(s.asked, name)
	return !s.held[name]
}

// hold defers or allows the operations on a tag or ID.
func (s *qualifiersSuite) hold(name string, held bool) {
	s.heldMu.Lock()
	defer s.heldMu.Unlock()
	s.held[name] = held
}

// questions returns the number of questions about a tag or ID.
func (s *qualifiersSuite) questions(name string) int {
	s.heldMu.Lock()
	defer s.heldMu.Unlock()
	n := 0
	for _, a := range s.asked {
		if a == name {
			n++
		}
	}
	return n
}

// operation is an operation that a source can defer. setUp adds its entity, and notify
// notifies the worker about it.
type operation struct {
	// asked is the tag or ID in the question to the source, tag is that of the entity.
	asked, tag, call, done string
	setUp                  func(*qualifiersSuite)
	notify                 func(*qualifiersSuite, *gc.C)
}

func notifyVolume(s *qualifiersSuite, c *gc.C)     { s.volumesChanged(c, "0") }
func notifyFilesystem(s *qualifiersSuite, c *gc.C) { s.filesystemsChanged(c, "0") }

var deferrable = []operation{{
	"volume-0", "volume-0", "CreateVolumes", "SetVolumeInfo",
	func(s *qualifiersSuite) { s.addVolumeOn("machine-0", "0", "dynamic") }, notifyVolume,
}, {
	"filesystem-0", "filesystem-0", "CreateFilesystems", "SetFilesystemInfo",
	func(s *qualifiersSuite) { s.addFilesystem("0", "dynamic", "") }, notifyFilesystem,
}, {
	"filesystem-0", "filesystem-0", "managed.CreateFilesystems", "SetFilesystemInfo",
	func(s *qualifiersSuite) {
		s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
		s.addFilesystem("0", "dynamic", "7")
	}, notifyFilesystem,
}, {
	"vol-0", "volume-0", "DestroyVolumes", "Remove",
	func(s *qualifiersSuite) { s.deadStorage(s.addVolume("0", "dynamic"), false) }, notifyVolume,
}, {
	"vol-0", "volume-0", "ReleaseVolumes", "Remove",
	func(s *qualifiersSuite) { s.deadStorage(s.addVolume("0", "dynamic"), true) }, notifyVolume,
}, {
	"fs-0", "filesystem-0", "DestroyFilesystems", "Remove",
	func(s *qualifiersSuite) { s.deadStorage(s.addFilesystem("0", "dynamic", ""), false) }, notifyFilesystem,
}, {
	"fs-0", "filesystem-0", "ReleaseFilesystems", "Remove",
	func(s *qualifiersSuite) { s.deadStorage(s.addFilesystem("0", "dynamic", ""), true) }, notifyFilesystem,
}, {
	"fs-0", "filesystem-0", "managed.DestroyFilesystems", "Remove",
	func(s *qualifiersSuite) { s.deadStorage(s.addFilesystem("0", "dynamic", "7"), false) }, notifyFilesystem,
}}

// deadStorage makes a volume or filesystem provisioned and dead.
func (s *qualifiersSuite) deadStorage(tag string, release bool) {
	if _, err := names.ParseVolumeTag(tag); err == nil {
		s.provisionVolume(tag)
	} else {
		s.provisionFilesystem(tag)
	}
	s.setDead(tag, release)
}

// startHolding starts a worker for machine 0 that gives up at the first failure. A
// deferred operation has not failed.
func (s *qualifiersSuite) startHolding(c *gc.C, resync time.Duration) {
	cfg := s.config(c, true, modeltest.Removal)
	cfg.Retry.CreateThreshold, cfg.Retry.RemoveThreshold = 1, 1
	cfg.ResyncInterval = resync
	s.start(c, cfg)
}

// eachDeferrable runs a test for each operation that can be deferred, on fresh fakes.
func (s *qualifiersSuite) eachDeferrable(c *gc.C, test func(operation)) {
	for i, o := range deferrable {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %s", o.call)
		test(o)
	}
}

// fail makes the next calls of an operation fail.
func (s *qualifiersSuite) fail(o operation, errs ...error) {
	source := s.source
	name, managed := strings.CutPrefix(o.call, "managed.")
	if managed {
		source = s.managed
	}
	source.FailItem(name, o.tag, errs...)
}

// A deferred operation is asked about at each change of its entity. It runs at the first
// change after it is allowed.
// Behaviour 30.
func (s *qualifiersSuite) TestDeferredUntilNextChange(c *gc.C) {
	s.eachDeferrable(c, func(o operation) {
		s.startHolding(c, 0)
		s.hold(o.asked, true)
		o.setUp(s)
		for n := range 3 {
			o.notify(s, c)
			s.barrier(c)
			c.Check(s.questions(o.asked), gc.Equals, n+1)
		}
		c.Check(s.deedsAbout(o.tag), gc.HasLen, 0)
		s.noTimer(c)

		// The worker does not ask without a change.
		s.hold(o.asked, false)
		s.barrier(c)
		c.Check(s.questions(o.asked), gc.Equals, 3)
		o.notify(s, c)
		s.AwaitCall(c, o.done, o.tag)
		c.Check(s.Count(o.call), gc.Equals, 1)
		c.Check(s.questions(o.asked), gc.Equals, 4)
	})
}

// Behaviour 30.
func (s *qualifiersSuite) TestConfigChangeAsksAgain(c *gc.C) {
	s.eachDeferrable(c, func(o operation) {
		s.startHolding(c, 0)
		s.hold(o.asked, true)
		o.setUp(s)
		o.notify(s, c)
		s.barrier(c)
		s.hold(o.asked, false)
		s.fed.EnvironConfig.Deliver(c, struct{}{})
		s.AwaitCall(c, o.done, o.tag)
	})
}

// Behaviour 31, 30: a resync asks about deferred operations.
func (s *qualifiersSuite) TestResyncAsksAgain(c *gc.C) {
	s.eachDeferrable(c, func(o operation) {
		s.startHolding(c, time.Hour)
		s.hold(o.asked, true)
		o.setUp(s)
		o.notify(s, c)
		s.barrier(c)
		s.hold(o.asked, false)
		s.advance(c, time.Hour-1)
		s.barrier(c)
		c.Check(s.Count(o.call), gc.Equals, 0)
		s.advance(c, 1)
		s.AwaitCall(c, o.done, o.tag)
	})
}

// Behaviour 30.
func (s *qualifiersSuite) TestRestOfBatchNotDeferred(c *gc.C) {
	s.startHolding(c, 0)
	for _, id := range []string{"0", "1", "2"} {
		s.addVolumeOn("machine-0", id, "dynamic")
		s.deadStorage(s.addFilesystem(id, "dynamic", ""), false)
	}
	s.hold("volume-1", true)
	s.hold("fs-1", true)
	s.volumesChanged(c, "0", "1", "2")
	s.filesystemsChanged(c, "0", "1", "2")
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes"), jc.SameContents,
		[]storage.VolumeParams{wantedVolume("0"), wantedVolume("2")})
	c.Check(calls.NextArgs[[]string](c, s.Journal, "DestroyFilesystems"), jc.SameContents, []string{"fs-0", "fs-2"})
	s.barrier(c)
	c.Check(s.state.Recorded("volume-0"), jc.IsTrue)
	c.Check(s.state.Recorded("volume-1"), jc.IsFalse)
	c.Check(s.state.Recorded("volume-2"), jc.IsTrue)
	c.Check(s.state.Removed(), jc.SameContents, []string{"filesystem-0", "filesystem-2"})
}

// Behaviour 30.
func (s *qualifiersSuite) TestQualifiersGetSourceParams(c *gc.C) {
	volumes, filesystems := make(chan storage.VolumeParams, 10), make(chan storage.FilesystemParams, 10)
	s.source.Options.ShouldCreateVolume = func(v storage.VolumeParams) bool {
		volumes <- v
		return false
	}
	s.source.Options.ShouldCreateFilesystem = func(f storage.FilesystemParams) bool {
		filesystems <- f
		return false
	}
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addFilesystem("0", "dynamic", "")
	s.volumesChanged(c, "0")
	s.filesystemsChanged(c, "0")
	c.Check(receive(c, volumes, "a question about a volume"), jc.DeepEquals, wantedVolume("0"))
	c.Check(receive(c, filesystems, "a question about a filesystem"), jc.DeepEquals, wantedFilesystem("0", ""))
}

// Parameters are validated after the qualifiers have agreed.
// Behaviour 30.
func (s *qualifiersSuite) TestDeferredNotValidated(c *gc.C) {
	s.startHolding(c, 0)
	s.source.FailItemAlways("ValidateVolumeParams", "volume-0", errors.New("too large"))
	s.hold("volume-0", true)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.barrier(c)
	c.Check(s.deedsAbout("volume-0"), gc.HasLen, 0)
	s.hold("volume-0", false)
	s.volumesChanged(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 error: too large"})
}

// Behaviour 28: an operation that may be running is repeated until it is known to have
// ended. Qualifiers cannot defer that.
func (s *qualifiersSuite) TestInProgressNotDeferred(c *gc.C) {
	s.eachDeferrable(c, func(o operation) {
		s.startHolding(c, 0)
		s.fail(o, storage.InProgress(errors.New("later")))
		o.setUp(s)
		o.notify(s, c)
		s.Next(c, o.call)
		s.Next(c, "SetStatus")
		s.hold(o.asked, true)
		o.notify(s, c)
		s.advance(c, backoff[0])
		s.AwaitCall(c, o.done, o.tag)
		c.Check(s.Count(o.call), gc.Equals, 2)
		c.Check(s.questions(o.asked), gc.Equals, 1)
	})
}

// Qualifiers are asked before each attempt.
// Behaviour 30.
func (s *qualifiersSuite) TestRetryDeferred(c *gc.C) {
	s.eachDeferrable(c, func(o operation) {
		s.start(c, s.config(c, true, modeltest.Removal))
		s.fail(o, errors.New("boom"))
		o.setUp(s)
		o.notify(s, c)
		s.statuses(c)
		s.hold(o.asked, true)
		s.advance(c, backoff[0])
		s.noTimer(c)
		s.barrier(c)
		c.Check(s.Count(o.call), gc.Equals, 1)
		c.Check(s.Count("SetStatus"), gc.Equals, 1)
		s.hold(o.asked, false)
		o.notify(s, c)
		s.AwaitCall(c, o.done, o.tag)
	})
}

// Behaviour 24: an event lets a deferred operation run at once, but not one that has
// failed since.
func (s *qualifiersSuite) TestEventsKeepBackoffAfterDeferral(c *gc.C) {
	s.eachDeferrable(c, func(o operation) {
		s.start(c, s.config(c, true, modeltest.Removal))
		s.hold(o.asked, true)
		o.setUp(s)
		o.notify(s, c)
		s.barrier(c)
		s.hold(o.asked, false)
		s.fail(o, errors.New("boom"))
		o.notify(s, c)
		s.statuses(c)
		o.notify(s, c)
		s.barrier(c)
		s.advance(c, backoff[0]-1)
		o.notify(s, c)
		s.barrier(c)
		c.Check(s.Count(o.call), gc.Equals, 1)
		s.advance(c, 1)
		s.AwaitCall(c, o.done, o.tag)
	})
}

// Behaviour 30.
func (s *qualifiersSuite) TestUnwantedDeferredRemovedWithoutSource(c *gc.C) {
	s.startHolding(c, 0)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	f := s.addFilesystem("0", "dynamic", "")
	s.hold(v, true)
	s.hold(f, true)
	notify := func() {
		s.volumesChanged(c, "0")
		s.volumeAttachmentsChanged(c, "machine-0", "0")
		s.filesystemsChanged(c, "0")
		s.barrier(c)
	}
	notify()
	s.hold(v, false)
	s.hold(f, false)
	s.setLife(v, life.Dying)
	s.setLife(a, life.Dying)
	s.setLife(f, life.Dying)
	notify()
	s.setLife(v, life.Dead)
	s.setLife(f, life.Dead)
	notify()
	c.Check(s.state.Removed(), jc.SameContents, []string{"volume-0", "volume-0 machine-0", "filesystem-0"})
	c.Check(s.Count(providerCalls...), gc.Equals, 0)
	c.Check(s.questions(v), gc.Equals, 1)
	c.Check(s.questions(f), gc.Equals, 1)
}

// Behaviour 30.
func (s *qualifiersSuite) TestAttachmentWaitsForDeferredVolume(c *gc.C) {
	s.startHolding(c, 0)
	s.hold("volume-0", true)
	s.addVolumeOn("machine-0", "0", "dynamic")
	for range 2 {
		s.volumesChanged(c, "0")
		s.volumeAttachmentsChanged(c, "machine-0", "0")
		s.barrier(c)
		c.Check(s.deeds(), gc.HasLen, 0)
	}
	s.hold("volume-0", false)
	s.volumesChanged(c, "0")
	s.Next(c, "SetVolumeAttachmentInfo")
	// Attaching cannot be deferred.
	c.Check(s.questions("volume-0"), gc.Equals, 3)
}

// splitProvider is a provider whose volume source is a separate object with its own
// qualifiers.
type splitProvider struct {
	*providerfake.Provider
	volumes storage.VolumeSource
}

func (p splitProvider) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	return p.volumes, nil
}

// Behaviour 30, O3.
func (s *qualifiersSuite) TestProviderAndSourceCanDefer(c *gc.C) {
	cfg := s.config(c, false)
	source := s.provider("")
	no := func(name string) func(string) bool {
		return func(asked string) bool { return asked != name }
	}
	provider := s.source
	provider.Options.ShouldCreateVolume = func(v storage.VolumeParams) bool { return no("volume-0")(v.Tag.String()) }
	source.Options.ShouldCreateVolume = func(v storage.VolumeParams) bool { return no("volume-1")(v.Tag.String()) }
	provider.Options.ShouldDestroyVolume = no("vol-3")
	source.Options.ShouldDestroyVolume = no("vol-4")
	s.providers["dynamic"] = splitProvider{provider, source}
	s.start(c, cfg)
	for _, id := range []string{"0", "1", "2"} {
		s.addVolumeOn("machine-0", id, "dynamic")
	}
	for _, id := range []string{"3", "4", "5"} {
		s.deadStorage(s.addVolume(id, "dynamic"), false)
	}
	s.volumesChanged(c, "0", "1", "2", "3", "4", "5")
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes"), jc.DeepEquals,
		[]storage.VolumeParams{wantedVolume("2")})
	c.Check(calls.NextArgs[[]string](c, s.Journal, "DestroyVolumes"), jc.DeepEquals, []string{"vol-5"})
}
