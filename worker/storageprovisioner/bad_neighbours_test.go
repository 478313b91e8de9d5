package storageprovisioner_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/watchertest"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// badNeighboursSuite has providers, accessors, watchers and observers that break their
// contracts: behaviours B1 to B10.
type badNeighboursSuite struct{ planningSuite }

var _ = gc.Suite(&badNeighboursSuite{})

// misbehaviour is a way to leave a call without returning: a panic, or runtime.Goexit.
type misbehaviour struct {
	do func()
	// message is the resulting error without its first word, which says whose code it was.
	message string
}

var misbehaviours = []misbehaviour{
	{func() { panic("boom") }, " panicked: boom"},
	{func() { panic(errors.New("boom\nboom")) }, " panicked: boom\nboom"},
	{func() { var none []int; _ = none[len(none)] }, " panicked: runtime error: index out of range [0] with length 0"},
	{runtime.Goexit, " ended the goroutine that called it"},
}

// once makes the next call of that name misbehave.
func (m misbehaviour) once(script *calls.Script, name string) {
	done := false
	script.OnCall(name, func(context.Context) error {
		if !done {
			done = true
			m.do()
		}
		return nil
	})
}

// stacks returns the logged warnings that contain a stack.
func (l *fakeLogger) stacks() []string {
	return slices.DeleteFunc(l.warned(), func(message string) bool {
		return !strings.Contains(message, "\ngoroutine ")
	})
}

// nextRound starts afresh in every round of a loop but the first.
func (s *badNeighboursSuite) nextRound(c *gc.C, i int) {
	if i > 0 {
		s.TearDownTest(c)
		s.SetUpTest(c)
	}
}

// Behaviour B1: a provider call that panics or ends its goroutine has failed, and is
// retried. The stack is logged once.
func (s *inProgressSuite) TestPanicOrGoexitInCallIsRetried(c *gc.C) {
	for i, m := range misbehaviours {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		s.each(c, longOperations, func(o longOperation, _ func(...error)) {
			name := strings.TrimPrefix(o.call, "managed.")
			s.startLong(c, 0)
			o.setUp(s, c)
			for n := range 2 {
				m.once(o.script(s), name)
				if n == 0 {
					o.notify(s, c)
				} else {
					s.advance(c, backoff[0])
				}
				c.Check(s.statuses(c), jc.DeepEquals, []string{o.status + "provider" + m.message})
			}
			s.barrier(c) // other entities are not affected
			s.advance(c, backoff[1])
			s.AwaitCall(c, o.done, o.subject)
			c.Check(s.attempts(o), gc.Equals, 3)
			stacks := s.log.stacks()
			c.Assert(stacks, gc.HasLen, 1)
			c.Check(stacks[0], gc.Matches, `(?s).*(volume|filesystem).* 0.*: provider (panicked|ended).*misbehaviour.*`)
			s.noTimer(c)
		})
	}
}

// Behaviours B1, 27: what the call may have made is looked up and undone before the entity
// is removed.
// Behaviour B1.
func (s *inProgressSuite) TestPanicOrGoexitInCallIsUndone(c *gc.C) {
	for i, m := range misbehaviours {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		operations := slices.DeleteFunc(undoable(), func(o longOperation) bool { return o.call == "managed.CreateFilesystems" })
		s.each(c, operations, func(o longOperation, _ func(...error)) {
			s.startLong(c, 0)
			o.setUp(s, c)
			m.once(o.script(s), strings.TrimPrefix(o.call, "managed."))
			o.notify(s, c)
			s.statuses(c)
			o.giveUp(s)
			o.notify(s, c)
			s.AwaitCall(c, o.undo, o.subject)
			s.AwaitCall(c, o.gone, o.subject)
			s.noTimer(c)
		})
	}
}

// Behaviour B2: a panic in a query that precedes a bulk call fails the item in question.
// Nothing has been made.
func (s *badNeighboursSuite) TestPanicOrGoexitBeforeCallIsRetried(c *gc.C) {
	volume := func() { s.addVolumeOn("machine-0", "0", "dynamic") }
	dead := func() {
		s.provisionVolume(s.addVolume("0", "dynamic"))
		s.state.Destroy("volume-0")
	}
	filesystem := func() { s.addFilesystem("0", "dynamic", "") }
	deadFilesystem := func() {
		s.provisionFilesystem(s.addFilesystem("0", "dynamic", ""))
		s.state.Destroy("filesystem-0")
	}
	round := 0
	for _, test := range []struct {
		query        string
		setUp        func()
		status, done string
	}{
		{"VolumeSource", volume, "volume-0 pending: ", "CreateVolumes"},
		{"MaxConcurrentCalls", volume, "volume-0 pending: ", "CreateVolumes"},
		{"ValidateVolumeParams", volume, "volume-0 pending: ", "CreateVolumes"},
		{"ShouldCreateVolume", volume, "volume-0 pending: ", "CreateVolumes"},
		{"ShouldDestroyVolume", dead, "volume-0 error: destroying volume: ", "DestroyVolumes"},
		{"FilesystemSource", filesystem, "filesystem-0 pending: ", "CreateFilesystems"},
		{"ValidateFilesystemParams", filesystem, "filesystem-0 pending: ", "CreateFilesystems"},
		{"ShouldCreateFilesystem", filesystem, "filesystem-0 pending: ", "CreateFilesystems"},
		{"ShouldDestroyFilesystem", deadFilesystem, "filesystem-0 error: removing filesystem: ", "DestroyFilesystems"},
	} {
		for _, m := range misbehaviours {
			s.nextRound(c, round)
			round++
			c.Logf("--- %s%s", test.query, m.message)
			test.setUp()
			s.startRemoving(c)
			m.once(s.source.Script, test.query)
			s.volumesChanged(c, "0")
			s.filesystemsChanged(c, "0")
			c.Check(s.statuses(c), jc.DeepEquals, []string{test.status + "provider" + m.message})
			c.Check(s.Count(test.done), gc.Equals, 0)
			c.Check(s.log.stacks(), gc.HasLen, 1)
			s.advance(c, backoff[0])
			s.Next(c, test.done)
		}
	}
}

// Behaviour B2: the other items of the batch proceed.
func (s *badNeighboursSuite) TestPanicInValidationSparesRestOfBatch(c *gc.C) {
	for i, m := range misbehaviours {
		s.nextRound(c, i)
		asked := 0
		s.source.OnCall("ValidateVolumeParams", func(context.Context) error {
			if asked++; asked == 2 {
				m.do()
			}
			return nil
		})
		s.startEnviron(c)
		for _, id := range []string{"0", "1", "2"} {
			s.addVolumeOn("machine-0", id, "dynamic")
		}
		s.volumesChanged(c, "0", "1", "2")
		c.Check(s.Next(c, "CreateVolumes").Subjects, jc.DeepEquals, []string{"volume-0", "volume-2"})
		s.AwaitCall(c, "SetVolumeInfo", "volume-2")
		// It cannot have been made, so it is removed without its source.
		s.state.ForgetAttachment("machine-0", "volume-1")
		s.state.Destroy("volume-1")
		s.volumesChanged(c, "1")
		s.AwaitCall(c, "Remove", "volume-1")
		c.Check(s.About("volume-1", providerCalls...), gc.HasLen, 0)
	}
}

// Behaviour B2: while a provider panics when asked for its scope, or whether it is
// dynamic, nothing is done about its storage.
func (s *badNeighboursSuite) TestPanicInScopeOrDynamicIsRetried(c *gc.C) {
	for i, query := range []string{"Scope", "Dynamic"} {
		s.nextRound(c, i)
		s.startEnviron(c)
		s.source.OnCall(query, func(context.Context) error { panic("boom") })
		s.addVolumeOn("machine-0", "0", "dynamic")
		s.volumesChanged(c, "0")
		s.caughtUp(c)
		entry := s.unfinished(c, "volume 0")
		c.Check(entry["state"], gc.Equals, "unreadable")
		c.Check(entry["last-failure"], gc.Equals, `querying the properties of storage provider "dynamic": provider panicked: boom`)
		c.Check(s.log.stacks(), gc.HasLen, 1)
		c.Check(s.deeds(), gc.HasLen, 0)
		s.source.OnCall(query, nil)
		s.advance(c, backoff[0])
		s.AwaitCall(c, "SetVolumeInfo", "volume-0")
		c.Check(s.states(c)["unreadable"], gc.Equals, 0)
	}
}

// Behaviour B2: a volume that was never created is removed without its provider.
func (s *badNeighboursSuite) TestUncreatedVolumeRemovedDespiteScopePanic(c *gc.C) {
	s.startEnviron(c)
	s.source.OnCall("Scope", func(context.Context) error { panic("boom") })
	s.setLife(s.addVolume("0", "dynamic"), life.Dead)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "Remove", "volume-0")
}

// Behaviour B2: the same applies to the functions of the configuration, and to a
// provider's sources. One that returns neither a value nor an error has failed, too.
func (s *badNeighboursSuite) TestConfigFuncPanicOrNilIsRetried(c *gc.C) {
	type edit func(*storageprovisioner.Config, func())
	callContext := edit(func(cfg *storageprovisioner.Config, do func()) {
		cfg.CallContext = func(context.Context) envcontext.ProviderCallContext { do(); return nil }
	})
	managed := edit(func(cfg *storageprovisioner.Config, do func()) {
		cfg.ManagedFilesystems = func(storage.BackingDevices) storage.FilesystemSource { do(); return nil }
	})
	// The first call finds out whether there is a plan, or whose the storage is. The
	// second one misbehaves.
	asked := false
	plansFunc := edit(func(cfg *storageprovisioner.Config, do func()) {
		asked = false
		cfg.Plans = func(storage.DeviceType) (plans.Plan, error) {
			if asked {
				do()
			}
			asked = true
			return nil, nil
		}
	})
	provider := edit(func(cfg *storageprovisioner.Config, do func()) {
		asked = false
		cfg.Registry = func(*config.Config) (storage.ProviderRegistry, error) {
			return registryFunc(func(storage.ProviderType) (storage.Provider, error) {
				if asked {
					do()
				}
				asked = true
				return nil, nil
			}), nil
		}
	})
	source := edit(func(cfg *storageprovisioner.Config, do func()) {
		s.providers["dynamic"] = sourceless{s.source, do}
	})
	volume := func() { s.addVolumeOn("machine-0", "0", "dynamic"); s.volumesChanged(c, "0") }
	filesystem := func() { s.addFilesystem("0", "dynamic", ""); s.filesystemsChanged(c, "0") }
	const nothing = "got neither a value nor an error"
	for i, test := range []struct {
		edit               edit
		notify             func()
		prefix, nilMessage string
	}{
		{callContext, volume, "volume-0 pending: ", "no context for provider calls: Config.CallContext returned nil"},
		{provider, volume, "volume-0 pending: ", `getting storage provider "dynamic": ` + nothing},
		{source, volume, "volume-0 pending: ", `opening volume source "dynamic": ` + nothing},
		{source, filesystem, "filesystem-0 pending: ", `opening filesystem source "dynamic": ` + nothing},
		{managed, func() {
			s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
			s.addFilesystem("0", "dynamic", "7")
			s.filesystemsChanged(c, "0")
		}, "filesystem-0 pending: ", "opening the source of filesystems on volumes: " + nothing},
		{plansFunc, func() {
			s.addPlanned(c, "0", "iscsi")
			s.plansChanged(c, "0")
		}, "volume-0 attaching: ", `getting the plan for device type "iscsi": ` + nothing},
	} {
		for j, m := range append(slices.Clone(misbehaviours), misbehaviour{func() {}, ""}) {
			s.nextRound(c, i+j)
			cfg := s.config(c, true, modeltest.Plans)
			cfg.Plans = s.planFor
			test.edit(&cfg, m.do)
			s.start(c, cfg)
			test.notify()
			want := test.prefix + "provider" + m.message
			if m.message == "" {
				want = test.prefix + test.nilMessage
			}
			c.Check(s.statuses(c), jc.DeepEquals, []string{want})
			s.advance(c, 0) // it is tried again
			c.Check(s.Count(providerCalls...), gc.Equals, 0)
		}
	}
}

// registryFunc is a registry whose providers come from a function.
type registryFunc func(storage.ProviderType) (storage.Provider, error)

func (r registryFunc) StorageProviderTypes() ([]storage.ProviderType, error) { return nil, nil }

func (r registryFunc) StorageProvider(t storage.ProviderType) (storage.Provider, error) { return r(t) }

// sourceless is a provider that returns nil sources without an error.
type sourceless struct {
	storage.Provider
	do func()
}

func (p sourceless) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	p.do()
	return nil, nil
}

func (p sourceless) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	p.do()
	return nil, nil
}

// Behaviour B2: if a rate limiter panics, its source is not called.
func (s *badNeighboursSuite) TestPanicInRateLimiterIsRetried(c *gc.C) {
	for i, m := range misbehaviours {
		s.nextRound(c, i)
		l := limiter{s.Journal, new(calls.Script), "limiter"}
		m.once(l.Script, "limiter")
		cfg := s.config(c, false)
		s.providers["dynamic"] = limited{s.source, l}
		s.start(c, cfg)
		s.addVolumeOn("machine-0", "0", "dynamic")
		s.volumesChanged(c, "0")
		c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: provider" + m.message})
		c.Check(s.Count("CreateVolumes"), gc.Equals, 0)
		s.advance(c, backoff[0])
		s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	}
}

// Behaviour B2: remarks are best effort.
func (s *badNeighboursSuite) TestPanicInRemarkDoesNotFailAttachment(c *gc.C) {
	s.source.OnCall("FilesystemRemark", func(context.Context) error { panic("boom") })
	s.startEnviron(c)
	s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
	c.Check(s.state.Status("filesystem-0").Status, gc.Equals, "attached")
	c.Check(s.log.stacks(), gc.HasLen, 1)
}

// Behaviour B2: a registry that cannot be opened ends the worker, as any error from
// Registry does.
func (s *badNeighboursSuite) TestRegistryPanicOrNilEndsWorker(c *gc.C) {
	for i, m := range append(slices.Clone(misbehaviours), misbehaviour{func() {}, ""}) {
		s.nextRound(c, i)
		cfg := s.config(c, false)
		cfg.Registry = func(*config.Config) (storage.ProviderRegistry, error) { m.do(); return nil, nil }
		s.startUnconfigured(c, cfg)
		s.fed.EnvironConfig.Send(struct{}{})
		err := s.waited(c)
		switch i {
		case len(misbehaviours):
			c.Check(err, gc.ErrorMatches, "getting storage providers: got neither a value nor an error")
		case len(misbehaviours) - 1:
			c.Check(err, gc.ErrorMatches, "accessor ended the goroutine that called it")
		default:
			c.Check(err.Error(), gc.Equals, "getting storage providers: registry"+m.message)
		}
	}
}

// typedNil is an error type. A nil *typedNil makes a non-nil error, whose Error panics.
type typedNil struct{ message string }

func (e *typedNil) Error() string { return e.message }

// Behaviour B1: an error that holds a nil pointer is a failure, although its methods
// panic.
func (s *badNeighboursSuite) TestTypedNilErrorIsFailure(c *gc.C) {
	var none *typedNil
	s.startEnviron(c)
	s.source.FailItem("CreateVolumes", "volume-0", none)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.volumesChanged(c, "0", "1")
	const nilPointer = "provider panicked: runtime error: invalid memory address or nil pointer dereference"
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: " + nilPointer, "volume-1 attaching"})
	s.source.FailCall("CreateVolumes", none)
	s.advance(c, backoff[0])
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: " + nilPointer})
	s.advance(c, backoff[1])
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
}

// faultyObserver is an observer whose methods misbehave.
type faultyObserver struct{ do func() }

func (f faultyObserver) OperationStarted(storageprovisioner.Operation) { f.do() }

func (f faultyObserver) OperationFinished(storageprovisioner.Operation, storageprovisioner.Outcome, time.Duration, error) {
	f.do()
}

func (f faultyObserver) QueueDepth(storageprovisioner.OperationKind, int) { f.do() }

// Behaviour B3: a panic in an observer affects nothing else, and is logged once for each
// method.
func (s *badNeighboursSuite) TestPanicInObserverIsLogged(c *gc.C) {
	for i, m := range misbehaviours {
		s.nextRound(c, i)
		cfg := s.config(c, false)
		cfg.Observer = faultyObserver{m.do}
		cfg.MaxBatch = 1
		s.start(c, cfg)
		s.attachedVolume(c, "0")
		s.attachedVolume(c, "1")
		s.barrier(c)
		s.worker.Kill()
		c.Check(s.waited(c), jc.ErrorIsNil)
		stacks := s.log.stacks()
		c.Check(len(stacks) >= 2 && len(stacks) <= 3, jc.IsTrue, gc.Commentf("%d", len(stacks)))
		for _, stack := range stacks {
			c.Check(stack, gc.Matches, "(?s)observing: observer (panicked|ended).*faultyObserver.*")
		}
	}
}

// Behaviour B4: a result about another entity, or without an ID, is an error of that item.
func (s *badNeighboursSuite) TestMismatchedResultIsItemError(c *gc.C) {
	seven := names.NewVolumeTag("7")
	for i, test := range []struct {
		edit   func()
		status string
	}{
		{func() {
			s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) { r.Volume.Tag = seven }
		}, "volume-0 pending: provider returned volume 7 for volume 0"},
		{func() {
			s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) { r.Volume.VolumeId = "" }
		}, "volume-0 pending: provider returned no ID for volume 0"},
		{func() {
			s.source.Options.AttachOnCreate = true
			s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) { r.VolumeAttachment.Volume = seven }
		}, "volume-0 pending: provider returned an attachment of volume-7 to machine-0 for one of volume-0 to machine-0"},
		{func() {
			s.source.Options.AttachOnCreate = true
			s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) {
				r.VolumeAttachment.Machine = names.NewMachineTag("7")
			}
		}, "volume-0 pending: provider returned an attachment of volume-0 to machine-7 for one of volume-0 to machine-0"},
		{func() {
			s.source.Options.EditAttached = func(a *storage.VolumeAttachment) { a.Volume = seven }
		}, "volume-1 attaching: provider returned an attachment of volume-7 to machine-0 for one of volume-1 to machine-0"},
		{func() {
			s.source.Options.EditAttached = func(a *storage.VolumeAttachment) { a.Machine = names.NewMachineTag("7") }
		}, "volume-1 attaching: provider returned an attachment of volume-1 to machine-7 for one of volume-1 to machine-0"},
		{func() {
			s.source.Options.EditCreatedFilesystem = func(r *storage.CreateFilesystemsResult) {
				r.Filesystem.Tag = names.NewFilesystemTag("7")
			}
		}, "filesystem-0 pending: provider returned filesystem 7 for filesystem 0"},
		{func() {
			s.source.Options.EditCreatedFilesystem = func(r *storage.CreateFilesystemsResult) { r.Filesystem.FilesystemId = "" }
		}, "filesystem-0 pending: provider returned no ID for filesystem 0"},
		{func() {
			s.source.Options.EditMounted = func(a *storage.FilesystemAttachment) { a.Filesystem = names.NewFilesystemTag("7") }
		}, "filesystem-1 attaching: provider returned an attachment of filesystem-7 to machine-0 for one of filesystem-1 to machine-0"},
		{func() {
			s.source.Options.EditMounted = func(a *storage.FilesystemAttachment) { a.Machine = names.NewMachineTag("7") }
		}, "filesystem-1 attaching: provider returned an attachment of filesystem-1 to machine-7 for one of filesystem-1 to machine-0"},
	} {
		s.nextRound(c, i)
		c.Logf("--- %s", test.status)
		test.edit()
		s.startEnviron(c)
		tag, rest, _ := strings.Cut(test.status, " ")
		kind, id, _ := strings.Cut(tag, "-")
		made := id == "1"
		if kind == "volume" {
			v, _ := s.addVolumeOn("machine-0", id, "dynamic")
			if made {
				s.provisionVolume(v)
			}
			s.volumesChanged(c, id)
			s.volumeAttachmentsChanged(c, "machine-0", id)
		} else {
			f, _ := s.addMount(id, "dynamic", "")
			if made {
				s.provisionFilesystem(f)
			}
			s.filesystemsChanged(c, id)
			s.filesystemAttachmentsChanged(c, "machine-0", id)
		}
		c.Check(s.statuses(c), jc.DeepEquals, []string{tag + " " + rest})
		s.advance(c, 0) // it is tried again
		c.Check(s.Count("SetVolumeInfo", "SetVolumeAttachmentInfo", "SetFilesystemInfo", "SetFilesystemAttachmentInfo"), gc.Equals, 0)
	}
}

// Behaviour B4: if the number of results is wrong, the outcome of every item is unknown.
func (s *badNeighboursSuite) TestWrongNumberOfResults(c *gc.C) {
	for i, results := range [][]storage.AttachVolumesResult{nil, {}, make([]storage.AttachVolumesResult, 2)} {
		s.nextRound(c, i)
		cfg := s.config(c, false)
		s.providers["dynamic"] = miscounting{s.source, results}
		s.start(c, cfg)
		v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
		s.provisionVolume(v)
		s.volumesChanged(c, "0")
		s.volumeAttachmentsChanged(c, "machine-0", "0")
		c.Check(s.statuses(c), jc.DeepEquals,
			[]string{fmt.Sprintf("volume-0 attaching: provider returned %d results for 1 arguments", len(results))})
		s.advance(c, 0)
	}
}

// miscounting is a provider whose AttachVolumes returns the same results for any arguments.
type miscounting struct {
	storage.Provider
	results []storage.AttachVolumesResult
}

func (p miscounting) VolumeSource(cfg *storage.Config) (storage.VolumeSource, error) {
	source, err := p.Provider.VolumeSource(cfg)
	return miscountingSource{source, p.results}, err
}

type miscountingSource struct {
	storage.VolumeSource
	results []storage.AttachVolumesResult
}

func (p miscountingSource) AttachVolumes(
	envcontext.ProviderCallContext, []storage.VolumeAttachmentParams,
) ([]storage.AttachVolumesResult, error) {
	return p.results, nil
}

// Behaviour B4: the size that the provider reports is recorded. Where the state knows the
// wanted size, the volume is then grown to it.
func (s *badNeighboursSuite) TestUndersizedVolumeRecordedThenGrown(c *gc.C) {
	for i, size := range []uint64{0, 10} {
		s.nextRound(c, i)
		s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) { r.Volume.Size = size }
		s.start(c, s.config(c, false, modeltest.Sizes))
		s.addVolumeOn("machine-0", "0", "dynamic")
		s.volumesChanged(c, "0")
		c.Check(calls.NextArgs[[]params.Volume](c, s.Journal, "SetVolumeInfo")[0].Info.Size, gc.Equals, size)
		s.volumesChanged(c, "0")
		c.Check(calls.NextArgs[[]params.Volume](c, s.Journal, "SetVolumeInfo")[0].Info.Size, gc.Equals, uint64(1000))
	}
}

// Behaviour 36, I1, B5: if two results of one call have the same ID, it belongs to the first.
func (s *badNeighboursSuite) TestDuplicateIDInOneCallRefused(c *gc.C) {
	s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) {
		if id := r.Volume.Tag.Id(); id == "0" || id == "2" {
			r.Volume.VolumeId = "vol-same"
		}
	}
	s.source.Options.EditCreatedFilesystem = func(r *storage.CreateFilesystemsResult) { r.Filesystem.FilesystemId = "fs-same" }
	s.startEnviron(c)
	for _, id := range []string{"0", "1", "2"} {
		s.addVolumeOn("machine-0", id, "dynamic")
	}
	s.volumesChanged(c, "0", "1", "2")
	c.Check(s.statuses(c), jc.DeepEquals, []string{
		"volume-0 attaching",
		"volume-1 attaching",
		`volume-2 error: creating volume: provider "dynamic" returned volume ID "vol-same", which belongs to volume 0`,
	})
	c.Check(s.Next(c, "SetVolumeInfo").Subjects, jc.DeepEquals, []string{"volume-0", "volume-1"})
	for _, id := range []string{"0", "1"} {
		s.addFilesystem(id, "dynamic", "")
	}
	s.filesystemsChanged(c, "0", "1")
	c.Check(s.statuses(c), jc.DeepEquals, []string{
		"filesystem-0 attaching",
		`filesystem-1 error: creating filesystem: provider "dynamic" returned filesystem ID "fs-same", which belongs to filesystem 0`,
	})
	c.Check(s.Next(c, "SetFilesystemInfo").Subjects, jc.DeepEquals, []string{"filesystem-0"})
}

// Behaviour B5, I1: an ID that another volume has stays with that volume, which is not
// destroyed with the refused one.
func (s *badNeighboursSuite) TestIDOfOtherVolumeRefused(c *gc.C) {
	s.startRemoving(c)
	s.attachedVolume(c, "1")
	// A volume that an earlier worker made, whose provider is known by its attachment.
	old, _ := s.addVolumeOn("machine-0", "2", "dynamic")
	s.provisionVolume(old)
	s.volumesChanged(c, "2")
	s.volumeAttachmentsChanged(c, "machine-0", "2")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-2 machine-0")
	s.barrier(c)
	for _, owner := range []string{"1", "2"} {
		id := "3" + owner
		s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) {
			if r.Volume.Tag.Id() == id {
				r.Volume.VolumeId = "vol-" + owner
			}
		}
		s.addVolumeOn("machine-0", id, "dynamic")
		mark := s.Mark()
		s.volumesChanged(c, id)
		s.AwaitCallAfter(c, mark, "SetStatus", volumeTag(id))
		c.Check(s.state.Status(volumeTag(id)).Info, gc.Equals,
			fmt.Sprintf(`creating volume: provider "dynamic" returned volume ID "vol-%s", which belongs to volume %s`, owner, owner))
		s.state.ForgetAttachment("machine-0", volumeTag(id))
		s.state.Destroy(volumeTag(id))
		s.volumesChanged(c, id)
		s.barrier(c)
		c.Check(s.state.Status(volumeTag(id)).Status, gc.Equals, "error")
		c.Check(s.About(volumeTag(id), "SetVolumeInfo", "AttachVolumes", "DestroyVolumes"), gc.HasLen, 0)
		c.Check(s.About(volumeTag(owner), "DestroyVolumes"), gc.HasLen, 0)
	}
}

// Behaviour 36, I4: the ID of an entity without attachments stays with it, too, although its
// provider has to be looked up first. Two entities of different providers may have equal
// IDs.
func (s *badNeighboursSuite) TestIDOfUnattachedVolumeRefused(c *gc.C) {
	for i, provider := range []string{"dynamic", "static"} {
		s.nextRound(c, i)
		s.startEnviron(c)
		s.provisionVolume(s.addVolume("1", provider))
		s.volumesChanged(c, "1")
		s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) {
			if r.Volume.Tag.Id() == "2" {
				r.Volume.VolumeId = "vol-1"
			}
		}
		s.addVolumeOn("machine-0", "2", "dynamic")
		s.volumesChanged(c, "2")
		c.Check(s.statuses(c), jc.DeepEquals, []string{
			`volume-2 pending: creating volume: provider "dynamic" returned volume ID "vol-1", which volume 1 has as well: looking up the provider of volume 1`,
		})
		s.barrier(c)
		s.advance(c, backoff[0])
		if provider == "dynamic" {
			c.Check(s.statuses(c), jc.DeepEquals, []string{
				`volume-2 error: creating volume: provider "dynamic" returned volume ID "vol-1", which belongs to volume 1`,
			})
		} else {
			s.AwaitCall(c, "SetVolumeInfo", "volume-2")
		}
	}
}

// Behaviour B5, I2: the ID of a destroyed volume may be used again.
func (s *badNeighboursSuite) TestIDOfRemovedVolumeReusable(c *gc.C) {
	s.startRemoving(c)
	s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) { r.Volume.VolumeId = "vol-0" }
	v, a := s.attachedVolume(c, "0")
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	// The ID is free although the state does not accept the removal at once.
	s.state.FailItem("Remove", v, errors.New("busy"))
	s.setLife(v, life.Dead)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "Remove", v)
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.volumesChanged(c, "1")
	s.AwaitCall(c, "SetVolumeInfo", "volume-1")
}

// Behaviour B6: an error of any size and content is truncated and sanitized, in the
// status, the report and the log.
func (s *badNeighboursSuite) TestHugeErrorTruncated(c *gc.C) {
	evil := "\x1b[2Jé\xff\n\x00" + strings.Repeat("é", 5<<20)
	s.startEnviron(c)
	s.source.FailItem("CreateVolumes", "volume-0", errors.New(evil), storage.Permanent(errors.New(evil)))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	for i, status := range []string{"pending", "error"} {
		if i > 0 {
			s.advance(c, backoff[0])
		}
		s.statuses(c)
		got := s.state.Status("volume-0")
		c.Check(got.Status, gc.Equals, status) // a truncated error is still permanent
		c.Check(len(got.Info) <= 4<<10, jc.IsTrue, gc.Commentf("%d bytes", len(got.Info)))
		c.Check(utf8.ValidString(got.Info), jc.IsTrue)
		c.Check(strings.HasPrefix(got.Info, "\x1b[2Jé?\n\x00éé"), jc.IsTrue)
		c.Check(strings.HasSuffix(got.Info, fmt.Sprintf("é… (%d bytes in all)", len(evil))), jc.IsTrue)
		c.Check(s.unfinished(c, "volume 0")["last-failure"], gc.Equals, got.Info)
	}
	s.barrier(c)
	warned := s.log.warned()
	c.Assert(warned, gc.HasLen, 2)
	for _, message := range warned {
		c.Check(strings.HasPrefix(message, `dynamic volumes: create volume 0: \u001b[2Jé?\n\u0000éé`), jc.IsTrue)
		c.Check(len(message) < 5<<10, jc.IsTrue)
		c.Check(strings.IndexFunc(message, func(r rune) bool { return !unicode.IsPrint(r) }), gc.Equals, -1)
	}
}

// Behaviour B6: errors of the state and panic values are truncated, too.
func (s *badNeighboursSuite) TestHugeStateErrorOrPanicTruncated(c *gc.C) {
	huge := strings.Repeat("x", 10<<20)
	s.startEnviron(c)
	s.state.FailItem("SetVolumeInfo", "volume-0", errors.New(huge))
	s.state.FailItem("Life", "volume-1", errors.New(huge))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0", "1")
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	s.caughtUp(c)
	for _, what := range []string{"volume 0", "volume 1"} {
		failure := s.unfinished(c, what)["last-failure"].(string)
		c.Check(len(failure) <= 4<<10, jc.IsTrue, gc.Commentf("%s: %d bytes", what, len(failure)))
	}
	s.source.OnCall("CreateVolumes", func(context.Context) error { panic(huge) })
	s.addVolumeOn("machine-0", "2", "dynamic")
	s.volumesChanged(c, "2")
	s.Await(c, "the status of volume 2", func() bool { return s.state.Status("volume-2").Status == "pending" })
	c.Check(len(s.state.Status("volume-2").Info) < 5<<10, jc.IsTrue)
	s.caughtUp(c)
	for _, message := range s.log.warned() {
		c.Check(len(message) < 32<<10, jc.IsTrue, gc.Commentf("%d bytes", len(message)))
	}
	s.state.FailCall("Life", errors.New(huge))
	s.volumesChanged(c, "3")
	c.Check(len(s.waited(c).Error()) < 5<<10, jc.IsTrue)
}

// Behaviour B6: entities that fail with the same error share a line of the log.
func (s *badNeighboursSuite) TestCommonErrorLoggedOnce(c *gc.C) {
	s.startEnviron(c)
	s.source.FailCall("CreateVolumes", errors.New("no connection"))
	var ids []string
	for i := range 1000 {
		id := fmt.Sprint(i)
		ids = append(ids, id)
		s.addVolumeOn("machine-0", id, "dynamic")
		if i > 0 {
			s.state.FailItem("SetVolumeInfo", volumeTag(id), errors.New("busy"))
		}
	}
	s.volumesChanged(c, ids...)
	s.statuses(c)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeInfo", "volume-999")
	s.barrier(c)
	const some = "volume 0, volume 1, volume 2, volume 3, volume 4, volume 5, volume 6, volume 7, volume 8, volume 9 and 990 more"
	c.Check(s.log.warned(), jc.DeepEquals, []string{
		"dynamic volumes: create " + some + ": no connection",
		"recording volume 1, volume 2, volume 3, volume 4, volume 5, volume 6, volume 7, volume 8, volume 9, volume 10 and 989 more: " +
			"busy; will be retried",
	})
}

// Behaviour B7: an accessor that panics or ends its goroutine ends the worker, with an
// error that names the operation.
func (s *lifecycleSuite) TestPanicInAccessorEndsWorker(c *gc.C) {
	round := 0
	for accessor, doing := range map[string]string{
		"WatchForEnvironConfigChanges": "watching environment config", "EnvironConfig": "reading environment config",
		"WatchVolumes": "watching volumes", "Life": "reading lives", "AttachmentLife": "reading attachment lives",
		"RemoveAttachments": "removing attachments", "InstanceIds": "reading instance ids", "WatchMachine": "watching machine-1",
		"Volumes": "reading volumes", "VolumeBlockDevices": "reading block devices", "SetVolumeInfo": "recording volumes",
		"RemoveFilesystemParams": "reading filesystem removal parameters",
	} {
		for _, m := range misbehaviours {
			if round++; round > 1 {
				s.TearDownTest(c)
				s.SetUpTest(c)
			}
			c.Logf("--- %s%s", accessor, m.message)
			m.once(s.state.Script, accessor)
			s.startBusyWorker(c)
			err := s.waited(c)
			if strings.HasPrefix(m.message, " panicked") {
				c.Check(err.Error(), gc.Equals, doing+": accessor"+m.message)
			} else {
				c.Check(err.Error(), gc.Equals, "accessor"+m.message)
			}
			stacks := s.log.stacks()
			c.Assert(stacks, gc.HasLen, 1)
			c.Check(strings.HasPrefix(stacks[0], doing+": accessor"), jc.IsTrue, gc.Commentf("%s", stacks[0]))
		}
	}
}

// Behaviour B7: a panic in SetStatus is logged, and has no other effect.
func (s *badNeighboursSuite) TestPanicInSetStatusIsLogged(c *gc.C) {
	s.startEnviron(c)
	s.state.OnCall("SetStatus", func(context.Context) error { panic("boom") })
	s.attachedVolume(c, "0")
	c.Check(s.log.stacks(), gc.HasLen, 1)
	c.Check(slices.Contains(s.log.warned(), "setting statuses: accessor panicked: boom"), jc.IsTrue)
}

// Behaviour B7: after a kill, results are recorded as far as the accessors allow.
func (s *badNeighboursSuite) TestPanicInAccessorAfterKill(c *gc.C) {
	for i, m := range misbehaviours {
		s.nextRound(c, i)
		entered := make(chan struct{})
		s.source.OnCall("CreateVolumes", func(ctx context.Context) error {
			close(entered)
			<-ctx.Done()
			return nil
		})
		s.startEnviron(c)
		m.once(s.state.Script, "SetVolumeInfo")
		s.addVolumeOn("machine-0", "0", "dynamic")
		s.volumesChanged(c, "0")
		receive(c, entered, "CreateVolumes to be called")
		s.worker.Kill()
		c.Check(s.waited(c), jc.ErrorIsNil)
		c.Check(s.log.stacks(), gc.HasLen, 1)
	}
}

// nilConfig returns neither a config nor an error.
type nilConfig struct {
	storageprovisioner.EnvironAccessor
}

func (nilConfig) EnvironConfig() (*config.Config, error) { return nil, nil }

// Behaviour B7: an accessor must not return a nil config without an error.
func (s *badNeighboursSuite) TestNilEnvironConfigEndsWorker(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Environ = nilConfig{cfg.Environ}
	s.startUnconfigured(c, cfg)
	s.fed.EnvironConfig.Send(struct{}{})
	c.Check(s.waited(c), gc.ErrorMatches, "reading environment config: accessor returned no config")
}

// mismatchedVolumes and mismatchedFilesystems edit the results of one call, so that they
// are about another entity or machine.
type mismatchedVolumes struct {
	storageprovisioner.VolumeAccessor
	storageprovisioner.VolumeAttachmentPlanAccessor
	call string
}

// editMismatched edits the results of a call, if it is the mismatched one.
func editMismatched[R any](call, mismatched string, results []R, err error, edit func(*R)) ([]R, error) {
	if call == mismatched {
		for i := range results {
			edit(&results[i])
		}
	}
	return results, err
}

func (a mismatchedVolumes) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	results, err := a.VolumeAccessor.Volumes(tags)
	return editMismatched("Volumes", a.call, results, err, func(r *params.VolumeResult) { r.Result.VolumeTag = "volume-7" })
}

func (a mismatchedVolumes) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	results, err := a.VolumeAccessor.VolumeParams(tags)
	attachment := func(edit func(*params.VolumeAttachmentParams)) func(*params.VolumeParamsResult) {
		return func(r *params.VolumeParamsResult) {
			edited := *r.Result.Attachment
			edit(&edited)
			r.Result.Attachment = &edited
		}
	}
	results, err = editMismatched("VolumeParams, of another's attachment", a.call, results, err,
		attachment(func(a *params.VolumeAttachmentParams) { a.VolumeTag = "volume-7" }))
	results, err = editMismatched("VolumeParams, attached by another provider", a.call, results, err,
		attachment(func(a *params.VolumeAttachmentParams) { a.Provider = "other" }))
	return editMismatched("VolumeParams", a.call, results, err, func(r *params.VolumeParamsResult) { r.Result.VolumeTag = "volume-7" })
}

func (a mismatchedVolumes) VolumeAttachments(ids []params.MachineStorageId) ([]params.VolumeAttachmentResult, error) {
	results, err := a.VolumeAccessor.VolumeAttachments(ids)
	return editMismatched("VolumeAttachments", a.call, results, err, func(r *params.VolumeAttachmentResult) { r.Result.MachineTag = "machine-7" })
}

func (a mismatchedVolumes) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	results, err := a.VolumeAccessor.VolumeAttachmentParams(ids)
	return editMismatched("VolumeAttachmentParams", a.call, results, err, func(r *params.VolumeAttachmentParamsResult) { r.Result.MachineTag = "machine-7" })
}

func (a mismatchedVolumes) VolumeAttachmentPlans(ids []params.MachineStorageId) ([]params.VolumeAttachmentPlanResult, error) {
	results, err := a.VolumeAttachmentPlanAccessor.VolumeAttachmentPlans(ids)
	return editMismatched("VolumeAttachmentPlans", a.call, results, err, func(r *params.VolumeAttachmentPlanResult) { r.Result.VolumeTag = "volume-7" })
}

type mismatchedFilesystems struct {
	storageprovisioner.FilesystemAccessor
	call string
}

func (a mismatchedFilesystems) Filesystems(tags []names.FilesystemTag) ([]params.FilesystemResult, error) {
	results, err := a.FilesystemAccessor.Filesystems(tags)
	return editMismatched("Filesystems", a.call, results, err, func(r *params.FilesystemResult) { r.Result.FilesystemTag = "filesystem-7" })
}

func (a mismatchedFilesystems) FilesystemParams(tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	results, err := a.FilesystemAccessor.FilesystemParams(tags)
	return editMismatched("FilesystemParams", a.call, results, err, func(r *params.FilesystemParamsResult) { r.Result.FilesystemTag = "volume-0" })
}

func (a mismatchedFilesystems) FilesystemAttachments(ids []params.MachineStorageId) ([]params.FilesystemAttachmentResult, error) {
	results, err := a.FilesystemAccessor.FilesystemAttachments(ids)
	return editMismatched("FilesystemAttachments", a.call, results, err, func(r *params.FilesystemAttachmentResult) { r.Result.FilesystemTag = "filesystem-7" })
}

func (a mismatchedFilesystems) FilesystemAttachmentParams(ids []params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error) {
	results, err := a.FilesystemAccessor.FilesystemAttachmentParams(ids)
	return editMismatched("FilesystemAttachmentParams", a.call, results, err, func(r *params.FilesystemAttachmentParamsResult) { r.Result.FilesystemTag = "filesystem-7" })
}

// Behaviour B8: a result about another entity is not acted on, and is read again.
func (s *badNeighboursSuite) TestMismatchedStateResultReadAgain(c *gc.C) {
	for i, test := range []struct{ call, about, err string }{
		{"Volumes", "volume 0", `the state returned the data of "volume-7"`},
		{"VolumeParams", "volume 1", `the state returned the data of "volume-7"`},
		{"VolumeParams, of another's attachment", "volume 1", `the state returned creation parameters with an attachment of "volume-7"`},
		{"VolumeParams, attached by another provider", "volume 1", `the state returned creation parameters with provider "dynamic", but with provider "other" for the attachment`},
		{"VolumeAttachments", "volume attachment 0 on machine-0", `the state returned the data of an attachment on "machine-7"`},
		{"VolumeAttachmentParams", "volume attachment 0 on machine-0", `the state returned the data of an attachment on "machine-7"`},
		{"VolumeAttachmentPlans", "attachment plan of volume 2 on machine-0", `the state returned the data of "volume-7"`},
		{"Filesystems", "filesystem 0", `the state returned the data of "filesystem-7"`},
		{"FilesystemParams", "filesystem 1", `the state returned the data of "volume-0"`},
		{"FilesystemAttachments", "filesystem attachment 0 on machine-0", `the state returned the data of "filesystem-7"`},
		{"FilesystemAttachmentParams", "filesystem attachment 0 on machine-0", `the state returned the data of "filesystem-7"`},
	} {
		s.nextRound(c, i)
		c.Logf("--- %s", test.call)
		cfg := s.planning(c, true)
		planned := cfg.Volumes.(storageprovisioner.VolumeAttachmentPlanAccessor)
		cfg.Volumes = mismatchedVolumes{cfg.Volumes, planned, test.call}
		cfg.Filesystems = mismatchedFilesystems{cfg.Filesystems, test.call}
		s.start(c, cfg)
		// Of each kind one entity that is provisioned, and one that is not.
		v, va := s.addVolumeOn("machine-0", "0", "dynamic")
		s.provisionVolume(v)
		s.provisionVolumeAttachment(va)
		s.addVolumeOn("machine-0", "1", "dynamic")
		s.addPlanned(c, "2", "iscsi")
		f, fa := s.addMount("0", "dynamic", "")
		s.provisionFilesystem(f)
		s.provisionFilesystemAttachment(fa)
		s.addMount("1", "dynamic", "")
		s.volumesChanged(c, "0", "1")
		s.volumeAttachmentsChanged(c, "machine-0", "0")
		s.plansChanged(c, "2")
		s.filesystemsChanged(c, "0", "1")
		s.filesystemAttachmentsChanged(c, "machine-0", "0")
		s.caughtUp(c)
		entry := s.unfinished(c, test.about)
		c.Check(entry["state"], gc.Equals, "unreadable")
		c.Check(entry["last-failure"], gc.Equals, test.err)
		c.Check(slices.Contains(s.log.warned(), "reading "+test.about+": "+test.err), jc.IsTrue)
		s.advance(c, 0) // another read is due
	}
}

// Behaviour B8: an entity that cannot be read stays as it is. The report gives the error,
// and the time of the next attempt.
func (s *badNeighboursSuite) TestUnreadableEntityIsReported(c *gc.C) {
	s.startRemoving(c)
	v, a := s.attachedVolume(c, "0")
	busy := errors.New("database is locked")
	s.state.FailItemAlways("AttachmentLife", "volume-0 machine-0", busy)
	s.setLife(a, life.Dying)
	since := s.clock.Now()
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	for n := range 3 {
		s.caughtUp(c)
		c.Check(s.unfinished(c, "volume attachment 0 on machine-0"), jc.DeepEquals, map[string]any{
			"operation": "none", "state": "unreadable", "since": since,
			"failures": n + 1, "last-failure": busy.Error(), "next-attempt": s.clock.Now().Add(backoff[n]),
		})
		c.Check(s.states(c), jc.DeepEquals, map[string]int{"unreadable": 1})
		c.Check(s.deedsAbout("volume-0 machine-0")[2:], gc.HasLen, 0)
		s.advance(c, backoff[n])
		s.AwaitCalls(c, n+3, "AttachmentLife", "volume-0 machine-0")
	}
	s.state.FailItemAlways("AttachmentLife", "volume-0 machine-0", nil)
	s.advance(c, backoff[3])
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.state.Destroy(v)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "Remove", v)
}

// faultyWatcher is a watcher whose methods run functions that may misbehave.
type faultyWatcher struct {
	*watchertest.Strings
	changes, kill, wait func()
}

func (w faultyWatcher) Changes() <-chan []string { w.changes(); return w.Strings.Changes() }
func (w faultyWatcher) Kill()                    { w.Strings.Kill(); w.kill() }
func (w faultyWatcher) Wait() error              { err := w.Strings.Wait(); w.wait(); return err }

// volumesWithWatcher returns a given watcher of volumes.
type volumesWithWatcher struct {
	storageprovisioner.VolumeAccessor
	watch func() (watcher.StringsWatcher, error)
}

func (a volumesWithWatcher) WatchVolumes() (watcher.StringsWatcher, error) { return a.watch() }

// Behaviour B9: a nil watcher, or one whose methods panic or end their goroutine, ends the
// worker. If that happens while the worker stops, the worker stops without an error.
func (s *badNeighboursSuite) TestNilOrPanickingWatcher(c *gc.C) {
	noop := func() {}
	for i, test := range []struct {
		watcher func() watcher.StringsWatcher
		err     string
	}{
		{func() watcher.StringsWatcher { return nil }, "watching volumes: got neither a value nor an error"},
		{func() watcher.StringsWatcher { return (*faultyWatcher)(nil) }, "watching volumes: accessor panicked: .*nil .*faultyWatcher pointer"},
		{func() watcher.StringsWatcher {
			return faultyWatcher{watchertest.New[[]string](), func() { panic("boom") }, noop, noop}
		}, "watching volumes: accessor panicked: boom"},
		{func() watcher.StringsWatcher {
			w := faultyWatcher{watchertest.New[[]string](), noop, noop, func() { panic("boom") }}
			w.Strings.Kill()
			return w
		}, "watching volumes: watcher panicked: boom"},
		{func() watcher.StringsWatcher {
			w := faultyWatcher{watchertest.New[[]string](), noop, noop, runtime.Goexit}
			w.Strings.Kill()
			return w
		}, "watching volumes: watcher ended the goroutine that called it"},
		{func() watcher.StringsWatcher {
			return faultyWatcher{watchertest.New[[]string](), noop, func() { panic("boom") }, noop}
		}, ""},
		{func() watcher.StringsWatcher {
			return faultyWatcher{watchertest.New[[]string](), noop, runtime.Goexit, runtime.Goexit}
		}, ""},
	} {
		s.nextRound(c, i)
		cfg := s.config(c, false)
		cfg.Volumes = volumesWithWatcher{cfg.Volumes, func() (watcher.StringsWatcher, error) {
			s.Record("WatchVolumes", nil)
			return test.watcher(), nil
		}}
		s.start(c, cfg)
		if test.err == "" {
			s.Next(c, "WatchVolumes")
			s.worker.Kill()
			c.Check(s.waited(c), jc.ErrorIsNil)
			c.Check(len(s.log.stacks()) > 0, jc.IsTrue)
			continue
		}
		c.Check(s.waited(c), gc.ErrorMatches, test.err)
	}
}

// Behaviour B10: each invalid ID from a watcher is logged once, however often it is sent,
// and the valid ones are acted on.
func (s *badNeighboursSuite) TestInvalidIDLoggedOnce(c *gc.C) {
	long := strings.Repeat("1", 10<<20)
	longVolume, longMachine := "volume-"+long, "machine-"+long
	// truncated returns a long text as it is logged.
	truncated := func(text string) string {
		mark := fmt.Sprintf("… (%d bytes in all)", len(text))
		return text[:300-len(mark)] + mark
	}
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addMount("0", "dynamic", "")
	for range 3 {
		var ids []string
		for range 1000 {
			ids = append(ids, "", "../x", "0\n1", "volume-0", "0", "55", long)
		}
		s.fed.Volumes.Deliver(c, ids)
		s.fed.Filesystems.Deliver(c, ids)
		var attachments []params.MachineStorageId
		for range 1000 {
			attachments = append(attachments, onMachine0("volume-0"), onMachine0("volume-0"), onMachine0("filesystem-0"),
				onMachine0(""), onMachine0("volume-../x"), onMachine0("machine-0"), onMachine0(longVolume), onMachine0("volume-55"),
				params.MachineStorageId{MachineTag: "", AttachmentTag: "volume-0"},
				params.MachineStorageId{MachineTag: "machine-\x00", AttachmentTag: "volume-0"},
				params.MachineStorageId{MachineTag: longMachine, AttachmentTag: "volume-0"},
				params.MachineStorageId{MachineTag: "volume-7", AttachmentTag: "volume-0"},
			)
		}
		s.fed.VolumeAttachments.Deliver(c, attachments)
		s.fed.FilesystemAttachments.Deliver(c, attachments[2:3])
	}
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
	s.caughtUp(c)
	var want []string
	for _, kind := range []string{"volume", "filesystem"} {
		for _, id := range []string{``, `../x`, `0\n1`, `volume-0`, truncated(long)} {
			want = append(want, fmt.Sprintf(`watching %[1]ss: "%[2]s" is not a %[1]s ID`, kind, id))
		}
	}
	for _, tag := range []string{
		`"filesystem-0" is not a valid volume tag`, `"" is not a valid tag`, `"volume-../x" is not a valid volume tag`,
		`"machine-0" is not a valid volume tag`, `"machine-\x00" is not a valid machine tag`,
		`"` + truncated(longVolume) + `" is not a valid tag`, `"` + truncated(longMachine) + `" is not a valid tag`,
	} {
		want = append(want, "watching volume attachments: "+tag)
	}
	c.Check(s.log.warned(), jc.SameContents, want)
	c.Check(s.About("volume-0", "CreateVolumes"), gc.HasLen, 1)
	c.Check(s.report()["entities"], jc.DeepEquals, map[string]int{
		"volume": 1, "filesystem": 1, "volume attachment": 1, "filesystem attachment": 1,
	})
}

// Behaviour B10: at most a thousand invalid IDs are logged.
func (s *badNeighboursSuite) TestInvalidIDLogIsBounded(c *gc.C) {
	s.startEnviron(c)
	var ids []string
	for i := range 5000 {
		ids = append(ids, fmt.Sprintf("../%d", i))
	}
	s.fed.Volumes.Send(ids)
	s.barrier(c)
	warned := s.log.warned()
	c.Assert(warned, gc.HasLen, 1001)
	c.Check(warned[999], gc.Equals, `watching volumes: "../999" is not a volume ID`)
	c.Check(warned[1000], gc.Equals, "too many invalid IDs from watchers: further ones are not logged")
}
