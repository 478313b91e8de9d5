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

// badNeighboursSuite has providers, accessors, watchers and observers that do what they
// must not. It is about the lines B of the behaviours.
type badNeighboursSuite struct{ planningSuite }

var _ = gc.Suite(&badNeighboursSuite{})

// misbehaviour is a way not to return from a call.
type misbehaviour struct {
	do func()
	// message is that of the error which it comes to, after whose code it is.
	message string
}

var misbehaviours = []misbehaviour{
	{func() { panic("boom") }, " panicked: boom"},
	{func() { panic(errors.New("boom\nboom")) }, " panicked: boom\nboom"},
	{func() { var none []int; _ = none[len(none)] }, " panicked: runtime error: index out of range [0] with length 0"},
	{runtime.Goexit, " ended the goroutine that called it"},
}

// once has the next call of that name not return.
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

// stacks returns the messages that have come with a stack.
func (l *fakeLogger) stacks() []string {
	return slices.DeleteFunc(l.warned(), func(message string) bool {
		return !strings.Contains(message, "\ngoroutine ")
	})
}

// nextRound tears down and sets up for all rounds of a loop but the first.
func (s *badNeighboursSuite) nextRound(c *gc.C, i int) {
	if i > 0 {
		s.TearDownTest(c)
		s.SetUpTest(c)
	}
}

// B1: whatever the call, and however it does not return, it has failed, and is made
// again later. The log tells once where that was.
func (s *inProgressSuite) TestCallThatDoesNotReturnHasFailed(c *gc.C) {
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
			s.barrier(c) // nothing else is the worse for it
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

// B1, 27: what it may have made all the same is looked into before the entity goes.
func (s *inProgressSuite) TestWhatACallThatDidNotReturnMayHaveMadeIsUndone(c *gc.C) {
	for i, m := range misbehaviours {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		operations := slices.DeleteFunc(making(), func(o longOperation) bool { return o.call == "managed.CreateFilesystems" })
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

// B2: what a source is asked before it is called concerns what it is asked about: nothing
// has been made.
func (s *badNeighboursSuite) TestQuestionThatIsNotAnswered(c *gc.C) {
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
		question     string
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
			c.Logf("--- %s%s", test.question, m.message)
			test.setUp()
			s.startRemoving(c)
			m.once(s.source.Script, test.question)
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

// B2: the others of a batch go ahead.
func (s *badNeighboursSuite) TestQuestionThatIsNotAnsweredHoldsUpNobodyElse(c *gc.C) {
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
		// It cannot have been made: it goes without its source.
		s.state.ForgetAttachment("machine-0", "volume-1")
		s.state.Destroy("volume-1")
		s.volumesChanged(c, "1")
		s.AwaitCall(c, "Remove", "volume-1")
		c.Check(s.About("volume-1", providerCalls...), gc.HasLen, 0)
	}
}

// B2: a provider that does not say whose its storage is has nothing done about that until
// it does.
func (s *badNeighboursSuite) TestProviderThatDoesNotSayWhoseItsStorageIs(c *gc.C) {
	for i, question := range []string{"Scope", "Dynamic"} {
		s.nextRound(c, i)
		s.startEnviron(c)
		s.source.OnCall(question, func(context.Context) error { panic("boom") })
		s.addVolumeOn("machine-0", "0", "dynamic")
		s.volumesChanged(c, "0")
		s.caughtUp(c)
		entry := s.unfinished(c, "volume 0")
		c.Check(entry["state"], gc.Equals, "unreadable")
		c.Check(entry["last-failure"], gc.Equals, `asking storage provider "dynamic" what it is: provider panicked: boom`)
		c.Check(s.log.stacks(), gc.HasLen, 1)
		c.Check(s.deeds(), gc.HasLen, 0)
		s.source.OnCall(question, nil)
		s.advance(c, backoff[0])
		s.AwaitCall(c, "SetVolumeInfo", "volume-0")
		c.Check(s.states(c)["unreadable"], gc.Equals, 0)
	}
}

// B2: what is never made because nobody knows whose it is can still go.
func (s *badNeighboursSuite) TestWhatWasNeverMadeGoesWhateverItsProviderDoes(c *gc.C) {
	s.startEnviron(c)
	s.source.OnCall("Scope", func(context.Context) error { panic("boom") })
	s.setLife(s.addVolume("0", "dynamic"), life.Dead)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "Remove", "volume-0")
}

// B2: an embedder's functions are no different, and that they give nothing is an error.
func (s *badNeighboursSuite) TestFunctionsOfTheConfigThatGiveNothing(c *gc.C) {
	type edit func(*storageprovisioner.Config, func())
	callContext := edit(func(cfg *storageprovisioner.Config, do func()) {
		cfg.CallContext = func(context.Context) envcontext.ProviderCallContext { do(); return nil }
	})
	managed := edit(func(cfg *storageprovisioner.Config, do func()) {
		cfg.ManagedFilesystems = func(storage.BackingDevices) storage.FilesystemSource { do(); return nil }
	})
	// They are first asked whether there is anything to carry out.
	asked := false
	carrier := edit(func(cfg *storageprovisioner.Config, do func()) {
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
			return registry(func(storage.ProviderType) (storage.Provider, error) {
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
	const nothing = "neither it nor an error was given"
	for i, test := range []struct {
		edit     edit
		tell     func()
		of, nada string
	}{
		{callContext, volume, "volume-0 pending: ", "there is no context for provider calls"},
		{provider, volume, "volume-0 pending: ", `getting storage provider "dynamic": ` + nothing},
		{source, volume, "volume-0 pending: ", `opening volume source "dynamic": ` + nothing},
		{source, filesystem, "filesystem-0 pending: ", `opening filesystem source "dynamic": ` + nothing},
		{managed, func() {
			s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
			s.addFilesystem("0", "dynamic", "7")
			s.filesystemsChanged(c, "0")
		}, "filesystem-0 pending: ", "opening the source of filesystems on volumes: " + nothing},
		{carrier, func() {
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
			test.tell()
			want := test.of + "provider" + m.message
			if m.message == "" {
				want = test.of + test.nada
			}
			c.Check(s.statuses(c), jc.DeepEquals, []string{want})
			s.advance(c, 0) // it is tried again
			c.Check(s.Count(providerCalls...), gc.Equals, 0)
		}
	}
}

// registry is a registry of what a function says.
type registry func(storage.ProviderType) (storage.Provider, error)

func (r registry) StorageProviderTypes() ([]storage.ProviderType, error) { return nil, nil }

func (r registry) StorageProvider(t storage.ProviderType) (storage.Provider, error) { return r(t) }

// sourceless is a provider that gives no sources.
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

// B2: a rate limiter that does not return has let nothing through.
func (s *badNeighboursSuite) TestRateLimiterThatDoesNotReturn(c *gc.C) {
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

// B2: what a source might have remarked is not worth failing for.
func (s *badNeighboursSuite) TestRemarkThatIsNotMade(c *gc.C) {
	s.source.OnCall("FilesystemRemark", func(context.Context) error { panic("boom") })
	s.startEnviron(c)
	s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
	c.Check(s.state.Status("filesystem-0").Status, gc.Equals, "attached")
	c.Check(s.log.stacks(), gc.HasLen, 1)
}

// B2: a registry that cannot be had ends the worker, as any error of it does.
func (s *badNeighboursSuite) TestRegistryThatIsNotGivenEndsTheWorker(c *gc.C) {
	for i, m := range append(slices.Clone(misbehaviours), misbehaviour{func() {}, ""}) {
		s.nextRound(c, i)
		cfg := s.config(c, false)
		cfg.Registry = func(*config.Config) (storage.ProviderRegistry, error) { m.do(); return nil, nil }
		s.startUnconfigured(c, cfg)
		s.fed.EnvironConfig.Send(struct{}{})
		err := s.waited(c)
		switch i {
		case len(misbehaviours):
			c.Check(err, gc.ErrorMatches, "getting storage providers: neither it nor an error was given")
		case len(misbehaviours) - 1:
			c.Check(err, gc.ErrorMatches, "accessor ended the goroutine that called it")
		default:
			c.Check(err.Error(), gc.Equals, "getting storage providers: registry"+m.message)
		}
	}
}

// typedNil is an error that cannot say what it is: it is nil, and does not look it.
type typedNil struct{ message string }

func (e *typedNil) Error() string { return e.message }

// B1: nor is a nil that is an error taken for none.
func (s *badNeighboursSuite) TestErrorThatCannotBeAsked(c *gc.C) {
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

// fragile is an observer that does not return.
type fragile struct{ do func() }

func (f fragile) OperationStarted(storageprovisioner.Operation) { f.do() }

func (f fragile) OperationFinished(storageprovisioner.Operation, storageprovisioner.Outcome, time.Duration, error) {
	f.do()
}

func (f fragile) QueueDepth(storageprovisioner.OperationKind, int) { f.do() }

// B3: what an observer does concerns nobody else, and is logged once for each method.
func (s *badNeighboursSuite) TestObserverThatDoesNotReturn(c *gc.C) {
	for i, m := range misbehaviours {
		s.nextRound(c, i)
		cfg := s.config(c, false)
		cfg.Observer = fragile{m.do}
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
			c.Check(stack, gc.Matches, "(?s)observing: observer (panicked|ended).*fragile.*")
		}
	}
}

// B4: a result that is about something else is an error of that item.
func (s *badNeighboursSuite) TestResultsAboutSomethingElse(c *gc.C) {
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
		}, "volume-0 pending: provider gave volume 0 no id"},
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
		}, "filesystem-0 pending: provider gave filesystem 0 no id"},
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

// B4: too many results, or none, say nothing of any item.
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

// miscounting is a provider that returns the same however many arguments there are.
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

// B4: whatever size something has been made with is what it has, and where the state tells
// what is wanted it is made as large as that.
func (s *badNeighboursSuite) TestSmallerThanWantedIsRecordedAndGrown(c *gc.C) {
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

// Behaviour 36: two of one call have one id: it is the first's.
func (s *badNeighboursSuite) TestIdGivenTwiceInOneCallIsTheFirsts(c *gc.C) {
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
		`volume-2 error: creating volume: provider "dynamic" answered volume ID "vol-same", which is volume 0's`,
	})
	c.Check(s.Next(c, "SetVolumeInfo").Subjects, jc.DeepEquals, []string{"volume-0", "volume-1"})
	for _, id := range []string{"0", "1"} {
		s.addFilesystem(id, "dynamic", "")
	}
	s.filesystemsChanged(c, "0", "1")
	c.Check(s.statuses(c), jc.DeepEquals, []string{
		"filesystem-0 attaching",
		`filesystem-1 error: creating filesystem: provider "dynamic" answered filesystem ID "fs-same", which is filesystem 0's`,
	})
	c.Check(s.Next(c, "SetFilesystemInfo").Subjects, jc.DeepEquals, []string{"filesystem-0"})
}

// B5: an id that something else has stays that one's, which is not destroyed with the
// other.
func (s *badNeighboursSuite) TestIdOfAnotherIsNotTaken(c *gc.C) {
	s.startRemoving(c)
	s.attachedVolume(c, "1")
	// One that was made before this worker began, and is known by its attachment.
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
			fmt.Sprintf(`creating volume: provider "dynamic" answered volume ID "vol-%s", which is volume %s's`, owner, owner))
		s.state.ForgetAttachment("machine-0", volumeTag(id))
		s.state.Destroy(volumeTag(id))
		s.volumesChanged(c, id)
		s.barrier(c)
		c.Check(s.state.Status(volumeTag(id)).Status, gc.Equals, "error")
		c.Check(s.About(volumeTag(id), "SetVolumeInfo", "AttachVolumes", "DestroyVolumes"), gc.HasLen, 0)
		c.Check(s.About(volumeTag(owner), "DestroyVolumes"), gc.HasLen, 0)
	}
}

// Behaviour 36: the id of an entity that is attached nowhere stays with it too, although
// at first no more is known than that the entity is recorded. Two entities of
// different providers may have equal ids.
func (s *badNeighboursSuite) TestIdOfWhatIsNowhereAttachedIsNotTaken(c *gc.C) {
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
			`volume-2 pending: creating volume: provider "dynamic" answered volume ID "vol-1", which volume 1 has too: its provider is being looked up`,
		})
		s.barrier(c)
		s.advance(c, backoff[0])
		if provider == "dynamic" {
			c.Check(s.statuses(c), jc.DeepEquals, []string{
				`volume-2 error: creating volume: provider "dynamic" answered volume ID "vol-1", which is volume 1's`,
			})
		} else {
			s.AwaitCall(c, "SetVolumeInfo", "volume-2")
		}
	}
}

// B5: what is gone leaves its id to others.
func (s *badNeighboursSuite) TestIdOfWhatIsGoneIsTaken(c *gc.C) {
	s.startRemoving(c)
	s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) { r.Volume.VolumeId = "vol-0" }
	v, a := s.attachedVolume(c, "0")
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	// The state does not take its end at once.
	s.state.FailItem("Remove", v, errors.New("busy"))
	s.setLife(v, life.Dead)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "Remove", v)
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.volumesChanged(c, "1")
	s.AwaitCall(c, "SetVolumeInfo", "volume-1")
}

// B6: however much there is to an error, and whatever is in it, it is told in bounds.
func (s *badNeighboursSuite) TestHugeErrorsAreCut(c *gc.C) {
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
		c.Check(got.Status, gc.Equals, status) // it means what it meant
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

// B6: so are the words of the state, and what a panic says.
func (s *badNeighboursSuite) TestHugeWordsOfOthersAreCut(c *gc.C) {
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
	s.Await(c, "the status", func() bool { return s.state.Status("volume-2").Status == "pending" })
	c.Check(len(s.state.Status("volume-2").Info) < 5<<10, jc.IsTrue)
	s.caughtUp(c)
	for _, message := range s.log.warned() {
		c.Check(len(message) < 32<<10, jc.IsTrue, gc.Commentf("%d bytes", len(message)))
	}
	s.state.FailCall("Life", errors.New(huge))
	s.volumesChanged(c, "3")
	c.Check(len(s.waited(c).Error()) < 5<<10, jc.IsTrue)
}

// B6: many things for which the same is wrong share a line of the log.
func (s *badNeighboursSuite) TestSameErrorOfManyIsLoggedOnce(c *gc.C) {
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
			"busy; it is kept and recorded later",
	})
}

// B7: an accessor that does not return ends the worker, which says which that was.
func (s *lifecycleSuite) TestAccessorThatDoesNotReturnEndsTheWorker(c *gc.C) {
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
			s.everythingHappens(c)
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

// B7: a status that is not set for a panic is logged, and nothing else.
func (s *badNeighboursSuite) TestStatusSetterThatPanics(c *gc.C) {
	s.startEnviron(c)
	s.state.OnCall("SetStatus", func(context.Context) error { panic("boom") })
	s.attachedVolume(c, "0")
	c.Check(s.log.stacks(), gc.HasLen, 1)
	c.Check(slices.Contains(s.log.warned(), "setting statuses: accessor panicked: boom"), jc.IsTrue)
}

// B7: what has been made when the worker was killed is recorded as far as that goes.
func (s *badNeighboursSuite) TestAccessorThatPanicsAtTheEnd(c *gc.C) {
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

// noSettings has no configuration of the environment.
type noSettings struct {
	storageprovisioner.EnvironAccessor
}

func (noSettings) EnvironConfig() (*config.Config, error) { return nil, nil }

// B7
func (s *badNeighboursSuite) TestNoConfigOfTheEnvironmentEndsTheWorker(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Environ = noSettings{cfg.Environ}
	s.startUnconfigured(c, cfg)
	s.fed.EnvironConfig.Send(struct{}{})
	c.Check(s.waited(c), gc.ErrorMatches, "reading environment config: accessor returned no config")
}

// strangeVolumes and strangeFilesystems answer about volume, filesystem and machine 7,
// whatever they are asked.
type strangeVolumes struct {
	storageprovisioner.VolumeAccessor
	storageprovisioner.VolumeAttachmentPlanAccessor
	call string
}

// strangely edits the results of the call that is strange.
func strangely[R any](call, strange string, results []R, err error, edit func(*R)) ([]R, error) {
	if call == strange {
		for i := range results {
			edit(&results[i])
		}
	}
	return results, err
}

func (a strangeVolumes) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	results, err := a.VolumeAccessor.Volumes(tags)
	return strangely("Volumes", a.call, results, err, func(r *params.VolumeResult) { r.Result.VolumeTag = "volume-7" })
}

func (a strangeVolumes) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	results, err := a.VolumeAccessor.VolumeParams(tags)
	attachment := func(edit func(*params.VolumeAttachmentParams)) func(*params.VolumeParamsResult) {
		return func(r *params.VolumeParamsResult) {
			edited := *r.Result.Attachment
			edit(&edited)
			r.Result.Attachment = &edited
		}
	}
	results, err = strangely("VolumeParams, of another's attachment", a.call, results, err,
		attachment(func(a *params.VolumeAttachmentParams) { a.VolumeTag = "volume-7" }))
	results, err = strangely("VolumeParams, attached by another provider", a.call, results, err,
		attachment(func(a *params.VolumeAttachmentParams) { a.Provider = "other" }))
	return strangely("VolumeParams", a.call, results, err, func(r *params.VolumeParamsResult) { r.Result.VolumeTag = "volume-7" })
}

func (a strangeVolumes) VolumeAttachments(ids []params.MachineStorageId) ([]params.VolumeAttachmentResult, error) {
	results, err := a.VolumeAccessor.VolumeAttachments(ids)
	return strangely("VolumeAttachments", a.call, results, err, func(r *params.VolumeAttachmentResult) { r.Result.MachineTag = "machine-7" })
}

func (a strangeVolumes) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	results, err := a.VolumeAccessor.VolumeAttachmentParams(ids)
	return strangely("VolumeAttachmentParams", a.call, results, err, func(r *params.VolumeAttachmentParamsResult) { r.Result.MachineTag = "machine-7" })
}

func (a strangeVolumes) VolumeAttachmentPlans(ids []params.MachineStorageId) ([]params.VolumeAttachmentPlanResult, error) {
	results, err := a.VolumeAttachmentPlanAccessor.VolumeAttachmentPlans(ids)
	return strangely("VolumeAttachmentPlans", a.call, results, err, func(r *params.VolumeAttachmentPlanResult) { r.Result.VolumeTag = "volume-7" })
}

type strangeFilesystems struct {
	storageprovisioner.FilesystemAccessor
	call string
}

func (a strangeFilesystems) Filesystems(tags []names.FilesystemTag) ([]params.FilesystemResult, error) {
	results, err := a.FilesystemAccessor.Filesystems(tags)
	return strangely("Filesystems", a.call, results, err, func(r *params.FilesystemResult) { r.Result.FilesystemTag = "filesystem-7" })
}

func (a strangeFilesystems) FilesystemParams(tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	results, err := a.FilesystemAccessor.FilesystemParams(tags)
	return strangely("FilesystemParams", a.call, results, err, func(r *params.FilesystemParamsResult) { r.Result.FilesystemTag = "volume-0" })
}

func (a strangeFilesystems) FilesystemAttachments(ids []params.MachineStorageId) ([]params.FilesystemAttachmentResult, error) {
	results, err := a.FilesystemAccessor.FilesystemAttachments(ids)
	return strangely("FilesystemAttachments", a.call, results, err, func(r *params.FilesystemAttachmentResult) { r.Result.FilesystemTag = "filesystem-7" })
}

func (a strangeFilesystems) FilesystemAttachmentParams(ids []params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error) {
	results, err := a.FilesystemAccessor.FilesystemAttachmentParams(ids)
	return strangely("FilesystemAttachmentParams", a.call, results, err, func(r *params.FilesystemAttachmentParamsResult) { r.Result.FilesystemTag = "filesystem-7" })
}

// B8: what is answered about something else is not acted on, and asked for again.
func (s *badNeighboursSuite) TestAnswersAboutSomethingElse(c *gc.C) {
	for i, test := range []struct{ call, about, err string }{
		{"Volumes", "volume 0", `the state answered with "volume-7"`},
		{"VolumeParams", "volume 1", `the state answered with "volume-7"`},
		{"VolumeParams, of another's attachment", "volume 1", `the state answered with an attachment of "volume-7"`},
		{"VolumeParams, attached by another provider", "volume 1", `the state answered with provider "dynamic", and an attachment by "other"`},
		{"VolumeAttachments", "volume attachment 0 on machine-0", `the state answered with one on "machine-7"`},
		{"VolumeAttachmentParams", "volume attachment 0 on machine-0", `the state answered with one on "machine-7"`},
		{"VolumeAttachmentPlans", "attachment plan of volume 2 on machine-0", `the state answered with "volume-7"`},
		{"Filesystems", "filesystem 0", `the state answered with "filesystem-7"`},
		{"FilesystemParams", "filesystem 1", `the state answered with "volume-0"`},
		{"FilesystemAttachments", "filesystem attachment 0 on machine-0", `the state answered with "filesystem-7"`},
		{"FilesystemAttachmentParams", "filesystem attachment 0 on machine-0", `the state answered with "filesystem-7"`},
	} {
		s.nextRound(c, i)
		c.Logf("--- %s", test.call)
		cfg := s.planning(c, true)
		planned := cfg.Volumes.(storageprovisioner.VolumeAttachmentPlanAccessor)
		cfg.Volumes = strangeVolumes{cfg.Volumes, planned, test.call}
		cfg.Filesystems = strangeFilesystems{cfg.Filesystems, test.call}
		s.start(c, cfg)
		// One of each that is provisioned, and one that is not.
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
		s.advance(c, 0) // it is read again
	}
}

// B8: what cannot be read stays as it is, however long that takes; the report says so and
// why, and when it is read again.
func (s *badNeighboursSuite) TestWhatCannotBeReadIsReported(c *gc.C) {
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

// oddWatcher is a watcher whose methods do what they must not.
type oddWatcher struct {
	*watchertest.Strings
	changes, kill, wait func()
}

func (w oddWatcher) Changes() <-chan []string { w.changes(); return w.Strings.Changes() }
func (w oddWatcher) Kill()                    { w.Strings.Kill(); w.kill() }
func (w oddWatcher) Wait() error              { err := w.Strings.Wait(); w.wait(); return err }

// oddlyWatched gives a watcher of volumes.
type oddlyWatched struct {
	storageprovisioner.VolumeAccessor
	watch func() (watcher.StringsWatcher, error)
}

func (a oddlyWatched) WatchVolumes() (watcher.StringsWatcher, error) { return a.watch() }

// B9: a nil watcher, or one whose methods panic or end their goroutine, ends the worker,
// or lets it end when it is killed.
func (s *badNeighboursSuite) TestOddWatchers(c *gc.C) {
	well := func() {}
	for i, test := range []struct {
		watcher func() watcher.StringsWatcher
		err     string
	}{
		{func() watcher.StringsWatcher { return nil }, "watching volumes: neither it nor an error was given"},
		{func() watcher.StringsWatcher { return (*oddWatcher)(nil) }, "watching volumes: accessor panicked: .*nil .*oddWatcher pointer"},
		{func() watcher.StringsWatcher {
			return oddWatcher{watchertest.New[[]string](), func() { panic("boom") }, well, well}
		}, "watching volumes: accessor panicked: boom"},
		{func() watcher.StringsWatcher {
			w := oddWatcher{watchertest.New[[]string](), well, well, func() { panic("boom") }}
			w.Strings.Kill()
			return w
		}, "watching volumes: watcher panicked: boom"},
		{func() watcher.StringsWatcher {
			w := oddWatcher{watchertest.New[[]string](), well, well, runtime.Goexit}
			w.Strings.Kill()
			return w
		}, "watching volumes: watcher ended the goroutine that called it"},
		{func() watcher.StringsWatcher {
			return oddWatcher{watchertest.New[[]string](), well, func() { panic("boom") }, well}
		}, ""},
		{func() watcher.StringsWatcher {
			return oddWatcher{watchertest.New[[]string](), well, runtime.Goexit, runtime.Goexit}
		}, ""},
	} {
		s.nextRound(c, i)
		cfg := s.config(c, false)
		cfg.Volumes = oddlyWatched{cfg.Volumes, func() (watcher.StringsWatcher, error) {
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

// B10: whatever ids a watcher sends, and however often, each invalid id is logged once,
// and the others are acted on.
func (s *badNeighboursSuite) TestIdsThatAreNoneAreLoggedOnce(c *gc.C) {
	long := strings.Repeat("1", 10<<20)
	longVolume, longMachine := "volume-"+long, "machine-"+long
	// cut is how a long text is logged.
	cut := func(text string) string {
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
		for _, id := range []string{``, `../x`, `0\n1`, `volume-0`, cut(long)} {
			want = append(want, fmt.Sprintf(`watching %ss: "%s" is not the id of one`, kind, id))
		}
	}
	for _, tag := range []string{
		`"filesystem-0" is not a valid volume tag`, `"" is not a valid tag`, `"volume-../x" is not a valid volume tag`,
		`"machine-0" is not a valid volume tag`, `"machine-\x00" is not a valid machine tag`,
		`"` + cut(longVolume) + `" is not a valid tag`, `"` + cut(longMachine) + `" is not a valid tag`,
	} {
		want = append(want, "watching volume attachments: "+tag)
	}
	c.Check(s.log.warned(), jc.SameContents, want)
	c.Check(s.About("volume-0", "CreateVolumes"), gc.HasLen, 1)
	c.Check(s.report()["entities"], jc.DeepEquals, map[string]int{
		"volume": 1, "filesystem": 1, "volume attachment": 1, "filesystem attachment": 1,
	})
}

// B10: the log of a watcher that knows no end has one.
func (s *badNeighboursSuite) TestTooManyIdsThatAreNoneAreNotLogged(c *gc.C) {
	s.startEnviron(c)
	var ids []string
	for i := range 5000 {
		ids = append(ids, fmt.Sprintf("../%d", i))
	}
	s.fed.Volumes.Send(ids)
	s.barrier(c)
	warned := s.log.warned()
	c.Assert(warned, gc.HasLen, 1001)
	c.Check(warned[999], gc.Equals, `watching volumes: "../999" is not the id of one`)
	c.Check(warned[1000], gc.Equals, "watchers send too much that is no id: no more of it is logged")
}
