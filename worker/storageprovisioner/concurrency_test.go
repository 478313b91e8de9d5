package storageprovisioner_test

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/juju/errors"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

type concurrencySuite struct{ baseSuite }

var _ = gc.Suite(&concurrencySuite{})

// plainProvider is a provider without optional capabilities; its sources may have
// some.
type plainProvider struct {
	storage.Provider
	volumes storage.VolumeSource
}

func (p plainProvider) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	return p.volumes, nil
}

// plainSource is a volume source without optional capabilities.
type plainSource struct{ storage.VolumeSource }

// plainFilesystems is a filesystem source without optional capabilities.
type plainFilesystems struct{ storage.FilesystemSource }

// maxCalls is the capability to accept that many concurrent calls.
type maxCalls int

func (t maxCalls) MaxConcurrentCalls() int { return int(t) }

// replace makes a provider the "dynamic" one.
func (s *concurrencySuite) replace(p storage.Provider) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.providers["dynamic"] = p
}

// openSources has the worker open the sources of "dynamic". Until a source is open, the
// worker does not know its limit, and makes one call at a time.
func (s *concurrencySuite) openSources(c *gc.C) { s.barrier(c) }

// checkAtOnce adds one volume after the other, and checks how many calls run concurrently
// while none returns.
func (s *concurrencySuite) checkAtOnce(c *gc.C, want int) {
	creating := calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	ids := []string{"0", "1", "2", "3"}
	for i, id := range ids {
		s.addVolumeOn("machine-0", id, "dynamic")
		s.volumesChanged(c, id)
		if i < want {
			creating.Entered(c)
		}
		s.caughtUp(c)
	}
	c.Check(s.states(c), jc.DeepEquals, map[string]int{"running": want, "queued": len(ids) - want})
	creating.Open()
	for _, id := range ids {
		s.AwaitCall(c, "SetVolumeInfo", volumeTag(id))
	}
}

// A source that declares no limit gets one call at a time.
// Behaviour O6.
func (s *concurrencySuite) TestSourceGetsOneCallAtATime(c *gc.C) {
	cfg := s.config(c, false)
	s.replace(plainProvider{s.source, plainSource{s.source}})
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.openSources(c)
	s.checkAtOnce(c, 1)
}

// The limit comes from the source or from its provider. Less than one means one.
// Behaviour O6, O11.
func (s *concurrencySuite) TestConcurrentSourceUsesItsLimit(c *gc.C) {
	type concurrentSource struct {
		plainSource
		maxCalls
	}
	type concurrentProvider struct {
		plainProvider
		maxCalls
	}
	for i, test := range []struct {
		about            string
		source, provider maxCalls
		want             int
	}{
		{"the source says so", 3, 0, 3},
		{"the provider says so", 0, 3, 3},
		{"both say so", 3, 2, 3},
		{"neither says so", 0, -1, 1},
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %s", test.about)
		cfg := s.config(c, false)
		source := concurrentSource{plainSource{s.source}, test.source}
		s.replace(concurrentProvider{plainProvider{s.source, source}, test.provider})
		s.addMachine("0", "instance-0")
		s.start(c, cfg)
		s.openSources(c)
		s.checkAtOnce(c, test.want)
	}
}

// Behaviour O6.
func (s *concurrencySuite) TestMaxConcurrentCallsCapsSource(c *gc.C) {
	for i, test := range []struct {
		caps map[storage.ProviderType]int
		want int
	}{
		{map[storage.ProviderType]int{"dynamic": 2}, 2},
		{map[storage.ProviderType]int{"dynamic": 1}, 1},
		{map[storage.ProviderType]int{"dynamic": 7}, 3},
		{map[storage.ProviderType]int{"dynamic": 0, "static": 1}, 3},
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %v", test.caps)
		cfg := s.config(c, false)
		cfg.MaxConcurrentCalls = test.caps
		s.source.Options.MaxConcurrentCalls = 3
		s.addMachine("0", "instance-0")
		s.start(c, cfg)
		s.openSources(c)
		s.checkAtOnce(c, test.want)
	}
}

// The source of filesystems on volumes has no provider: the configuration opens it.
// Behaviour O6.
func (s *concurrencySuite) TestManagedSourceUsesItsLimit(c *gc.C) {
	s.managed.Options.MaxConcurrentCalls = 2
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.openSources(c)
	creating := calls.NewGate()
	s.managed.OnCall("CreateFilesystems", creating.Wait)
	for _, id := range []string{"0", "1"} {
		s.addDevice(id, storage.BlockDevice{DeviceName: "sd" + id})
		s.addMount(id, "dynamic", id)
		s.filesystemsChanged(c, id)
		creating.Entered(c)
	}
	creating.Open()
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-0")
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-1")
}

// Behaviour 25: no call has more than MaxBatch items.
func (s *concurrencySuite) TestMaxBatchSplitsIntoConcurrentCalls(c *gc.C) {
	cfg := s.config(c, false)
	cfg.MaxBatch = 2
	s.source.Options.MaxConcurrentCalls = 2
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.openSources(c)
	creating := calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	ids := []string{"0", "1", "2", "3", "4"}
	for _, id := range ids {
		s.addVolumeOn("machine-0", id, "dynamic")
	}
	s.volumesChanged(c, ids...)
	creating.Entered(c)
	creating.Entered(c)
	s.caughtUp(c)
	c.Check(s.states(c), jc.DeepEquals, map[string]int{"running": 4, "queued": 1})
	creating.Pass(c)
	creating.Entered(c)
	creating.Open()
	for _, id := range ids {
		s.AwaitCall(c, "SetVolumeInfo", volumeTag(id))
	}
	for _, n := range []int{2, 2, 1} {
		c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes"), gc.HasLen, n)
	}
}

// Behaviour 35: however many calls the source accepts, an entity is in at most one of
// them.
func (s *concurrencySuite) TestEntityInOneCallAtATime(c *gc.C) {
	s.source.Options.MaxConcurrentCalls = 8
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.openSources(c)
	creating, attaching := calls.NewGate(), calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.source.OnCall("AttachVolumes", attaching.Wait)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	changed := func() {
		s.volumesChanged(c, "0")
		s.volumeAttachmentsChanged(c, "machine-0", "0")
		s.caughtUp(c)
	}
	changed()
	creating.Entered(c)
	larger := volumeParams("0", "dynamic")
	larger.Size = 2000
	s.state.AddVolume(larger)
	changed()
	creating.Open()
	attaching.Entered(c)
	s.setLife(v, life.Dead)
	s.setLife(a, life.Dying)
	changed()
	c.Check(s.About("volume-0", "CreateVolumes", "DestroyVolumes"), jc.DeepEquals, []string{"CreateVolumes"})
	c.Check(s.About("volume-0 machine-0", providerCalls...), jc.DeepEquals, []string{"AttachVolumes"})
	attaching.Open()
	s.AwaitCall(c, "Remove", "volume-0")
	c.Check(s.Names(providerCalls...), jc.DeepEquals, []string{"CreateVolumes", "AttachVolumes", "DetachVolumes", "DestroyVolumes"})
}

// The contract of storage.ConcurrentSource: attachments of one volume to several machines
// go in one call or one after the other, and do not delay those of other volumes.
// Behaviour 35.
func (s *concurrencySuite) TestAttachmentsOfOneVolumeSerialized(c *gc.C) {
	s.source.Options.MaxConcurrentCalls = 8
	for _, machine := range []string{"0", "1", "2"} {
		s.addMachine(machine, "instance-"+machine)
	}
	s.startEnviron(c)
	s.openSources(c)
	attaching := calls.NewGate()
	s.source.OnCall("AttachVolumes", attaching.Wait)
	for _, id := range []string{"0", "1"} {
		v := s.addVolume(id, "dynamic")
		s.provisionVolume(v)
		for _, host := range []string{"machine-0", "machine-1", "machine-2"} {
			s.addVolumeAttachment(host, id, "dynamic")
		}
	}
	s.volumesChanged(c, "0", "1")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	attaching.Entered(c)
	s.volumeAttachmentsChanged(c, "machine-1", "0", "1")
	attaching.Entered(c)
	s.volumeAttachmentsChanged(c, "machine-2", "0", "1")
	s.caughtUp(c)
	c.Check(s.states(c), jc.DeepEquals, map[string]int{"running": 2, "queued": 3})
	c.Check(s.NextBegun(c, "AttachVolumes").Subjects, jc.DeepEquals, []string{"volume-0 machine-0"})
	c.Check(s.NextBegun(c, "AttachVolumes").Subjects, jc.DeepEquals, []string{"volume-1 machine-1"})

	attaching.Open()
	for _, host := range []string{"machine-0", "machine-1", "machine-2"} {
		s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 "+host)
	}
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-1 machine-2")
	c.Check(s.About("volume-0 machine-1", "AttachVolumes"), gc.HasLen, 1)
}

// A source whose call does not return delays no other source, whether of another provider
// or of its own.
// Behaviour O6.
func (s *concurrencySuite) TestSlowSourceDoesNotDelayOthers(c *gc.C) {
	cfg := s.config(c, true)
	slow := s.provider("slow.")
	slow.Options.Scope = storage.ScopeMachine
	s.providers["slow"] = slow
	stuck := calls.NewGate()
	slow.OnCall("CreateVolumes", stuck.Wait)
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "slow")
	s.volumesChanged(c, "0")
	stuck.Entered(c)

	s.addVolumeOn("machine-0", "1", "dynamic")
	s.addFilesystem("0", "slow", "")
	s.volumesChanged(c, "1")
	s.volumeAttachmentsChanged(c, "machine-0", "1")
	s.filesystemsChanged(c, "0")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-1 machine-0")
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-0")
	s.barrier(c)
	c.Check(s.About("volume-0", stateCalls...), gc.HasLen, 0)
	stuck.Open()
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
}

// The number of goroutines depends on the number of concurrent calls, and not on the
// number of calls so far.
// Behaviour O6.
func (s *concurrencySuite) TestGoroutinesDoNotGrowWithTheCalls(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.openSources(c)
	before := runtime.NumGoroutine()
	const calls = 50
	for i := range calls {
		s.attachedVolume(c, strconv.Itoa(i))
	}
	after := runtime.NumGoroutine()
	c.Check(after < before+calls/2, jc.IsTrue, gc.Commentf("%d goroutines before, %d after", before, after))
}

// Behaviour 3: a kill cancels every call that is running.
func (s *concurrencySuite) TestKillCancelsAllCallsOfASource(c *gc.C) {
	s.source.Options.MaxConcurrentCalls = 3
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.openSources(c)
	creating := calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	for _, id := range []string{"0", "1", "2"} {
		s.addVolumeOn("machine-0", id, "dynamic")
		s.volumesChanged(c, id)
		creating.Entered(c)
	}
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
}

// limiter is a storage.RateLimiter whose calls are in the journal.
type limiter struct {
	*calls.Journal
	*calls.Script
	name string
}

func (s *concurrencySuite) limiter(name string) limiter {
	return limiter{s.Journal, new(calls.Script), name}
}

func (l limiter) WaitToCall(ctx context.Context) error {
	defer l.RecordBegin(l.name, nil)()
	return l.Begin(ctx, l.name)
}

// limited is a provider with a rate limiter for all its sources.
type limited struct {
	storage.Provider
	limiter
}

// limitedSource is a volume source with a rate limiter.
type limitedSource struct {
	storage.VolumeSource
	limiter
}

// Behaviour O4.
func (s *concurrencySuite) TestRateLimitersWaitBeforeEachBulkCall(c *gc.C) {
	cfg := s.config(c, true)
	ofSource, ofProvider, ofManaged := s.limiter("source"), s.limiter("provider"), s.limiter("managed")
	s.replace(limited{plainProvider{s.source, limitedSource{s.source, ofSource}}, ofProvider})
	cfg.ManagedFilesystems = func(storage.BackingDevices) storage.FilesystemSource {
		return struct {
			plainFilesystems
			limiter
		}{plainFilesystems{s.managed}, ofManaged}
	}
	cfg.RateLimiters = map[storage.ProviderType]storage.RateLimiter{"dynamic": s.limiter("config"), "other": s.limiter("other")}
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	for _, id := range []string{"0", "1"} {
		s.addVolumeOn("machine-0", id, "dynamic")
	}
	s.volumesChanged(c, "0", "1")
	s.AwaitCall(c, "SetVolumeInfo", "volume-1")
	s.volumeAttachmentsChanged(c, "machine-0", "0", "1")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-1 machine-0")
	s.addFilesystem("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-0")
	s.addDevice("1", storage.BlockDevice{DeviceName: "sdb"})
	s.addFilesystem("1", "dynamic", "1")
	s.filesystemsChanged(c, "1")
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-1")
	c.Check(s.Names(append([]string{"source", "provider", "config", "other", "managed"}, providerCalls...)...), jc.DeepEquals, []string{
		"source", "provider", "config", "CreateVolumes",
		"source", "provider", "config", "AttachVolumes",
		"provider", "config", "CreateFilesystems",
		"managed", "managed.CreateFilesystems",
	})
}

// ownSource is a provider with a rate limiter that is its own volume source, as small
// providers often are.
type ownSource struct {
	*providerfake.Provider
	limiter *limiter
}

func (o *ownSource) WaitToCall(ctx context.Context) error { return o.limiter.WaitToCall(ctx) }

func (o *ownSource) VolumeSource(*storage.Config) (storage.VolumeSource, error) { return o, nil }

// A provider that is its own source has one rate limiter, which is asked once for a call.
// Behaviour O4.
func (s *concurrencySuite) TestSharedRateLimiterWaitsOnce(c *gc.C) {
	cfg := s.config(c, false)
	limiter := s.limiter("limiter")
	s.replace(&ownSource{s.source, &limiter})
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	c.Check(s.Count("limiter"), gc.Equals, 1)
}

// limitedPlan is a plan with a rate limiter.
type limitedPlan struct {
	plans.Plan
	limiter
}

// Behaviour O4.
func (s *concurrencySuite) TestPlanWaitsForRateLimiter(c *gc.C) {
	cfg := s.config(c, true, modeltest.Plans)
	limiter := s.limiter("plan")
	limiter.FailCall("plan", errors.New("not now"))
	cfg.Plans = func(storage.DeviceType) (plans.Plan, error) { return limitedPlan{visible{}, limiter}, nil }
	s.source.Options.EditAttached = func(a *storage.VolumeAttachment) {
		a.PlanInfo = &storage.VolumeAttachmentPlanInfo{DeviceType: "shy"}
	}
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "plan")
	s.advance(c, backoff[0])
	s.Next(c, "plan")
	s.Next(c, "SetVolumeAttachmentPlanBlockInfo")
}

// Any error of a rate limiter means that the call was not made. The operation is retried:
// it is neither in progress nor permanently failed nor ignored.
// Behaviour O4.
func (s *concurrencySuite) TestRateLimiterErrorRetriedWithoutCall(c *gc.C) {
	for i, err := range []error{
		errors.New("too many calls"),
		context.DeadlineExceeded,
		storage.Permanent(errors.New("too many calls for ever")),
		storage.Ignored(errors.New("too many calls of others")),
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		cfg := s.config(c, false)
		limiter := s.limiter("limiter")
		limiter.FailCall("limiter", err)
		s.replace(limited{plainProvider{s.source, plainSource{s.source}}, limiter})
		s.addMachine("0", "instance-0")
		s.start(c, cfg)
		v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
		s.volumesChanged(c, "0")
		c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: waiting for the rate limiter: " + err.Error()})
		c.Check(s.Count("CreateVolumes"), gc.Equals, 0)

		// The source was not called: a volume that is not wanted any more is removed
		// without it.
		if i%2 == 0 {
			s.advance(c, backoff[0])
			s.Next(c, "SetVolumeInfo")
			c.Check(s.Count("CreateVolumes"), gc.Equals, 1)
		} else {
			s.setLife(v, life.Dead)
			s.volumesChanged(c, "0")
			s.Next(c, "Remove")
			c.Check(s.Count("CreateVolumes", "DestroyVolumes"), gc.Equals, 0)
		}
		s.noTimer(c)
	}
}

// Behaviour 3: a kill ends the wait for a rate limiter.
func (s *concurrencySuite) TestKillDuringRateLimiterWait(c *gc.C) {
	cfg := s.config(c, false)
	limiter := s.limiter("limiter")
	waiting := calls.NewGate()
	limiter.OnCall("limiter", waiting.Wait)
	s.replace(limited{plainProvider{s.source, plainSource{s.source}}, limiter})
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	waiting.Entered(c)
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
	c.Check(s.deeds(), gc.HasLen, 0)
}

// The wait for the rate limiter is not part of the call.
// Behaviour O4.
func (s *concurrencySuite) TestDurationExcludesRateLimiterWait(c *gc.C) {
	cfg := s.config(c, false)
	witness := newWitness(s.Journal)
	cfg.Observer = witness
	limiter := s.limiter("limiter")
	waiting := calls.NewGate()
	limiter.OnCall("limiter", waiting.Wait)
	s.replace(limited{plainProvider{s.source, plainSource{s.source}}, limiter})
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	waiting.Entered(c)
	s.clock.Advance(time.Minute)
	waiting.Open()
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	c.Check(witness.finished("volume-0")[0].took, gc.Equals, time.Duration(0))
}

// Behaviour 24: jitter shortens each delay by a different fraction, up to the one
// configured.
func (s *concurrencySuite) TestJitterIsWithinItsBounds(c *gc.C) {
	for i, jitter := range []float64{0, 0.25, 1} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		cfg := s.config(c, false)
		cfg.Retry = storageprovisioner.RetryPolicy{Min: time.Hour, Jitter: jitter}
		s.addMachine("0", "instance-0")
		s.source.FailCall("CreateVolumes", errors.New("boom"))
		s.start(c, cfg)
		var ids []string
		for i := range 50 {
			ids = append(ids, strconv.Itoa(i))
			s.addVolumeOn("machine-0", ids[i], "dynamic")
		}
		s.volumesChanged(c, ids...)
		c.Check(s.statuses(c), gc.HasLen, len(ids))
		var delays []time.Duration
		for _, id := range ids {
			next := s.unfinished(c, "volume "+id)["next-attempt"].(time.Time)
			delays = append(delays, next.Sub(s.clock.Now()))
		}
		low, high := slices.Min(delays), slices.Max(delays)
		c.Logf("jitter %v: from %v to %v", jitter, low, high)
		c.Check(low >= time.Duration((1-jitter)*float64(time.Hour)), jc.IsTrue)
		c.Check(high <= time.Hour, jc.IsTrue)
		c.Check(low < high, gc.Equals, jitter > 0)
	}
}

// Behaviour O6.
func (s *concurrencySuite) TestConfigRejectsNegativeCallsOrWrongScope(c *gc.C) {
	cfg := s.config(c, false)
	cfg.MaxConcurrentCalls = map[storage.ProviderType]int{"dynamic": 0, "static": 3}
	c.Check(cfg.Validate(), jc.ErrorIsNil)
	for message, spoil := range map[string]func(*storageprovisioner.Config){
		`negative MaxConcurrentCalls -1 of provider "static" not valid`: func(cfg *storageprovisioner.Config) {
			cfg.MaxConcurrentCalls = map[storage.ProviderType]int{"dynamic": 2, "static": -1}
		},
		`nil RateLimiters of provider "static" not valid`: func(cfg *storageprovisioner.Config) {
			cfg.RateLimiters = map[storage.ProviderType]storage.RateLimiter{"static": nil}
		},
		"Plans with an environment Scope not valid": func(cfg *storageprovisioner.Config) {
			cfg.Plans = plans.PlanByType
		},
		"ManagedFilesystems with an environment Scope not valid": func(cfg *storageprovisioner.Config) {
			cfg.ManagedFilesystems = func(storage.BackingDevices) storage.FilesystemSource {
				return providerfake.New(providerfake.Options{})
			}
		},
	} {
		spoilt := cfg
		spoil(&spoilt)
		err := spoilt.Validate()
		c.Check(err, gc.ErrorMatches, message)
		c.Check(errors.Is(err, errors.NotValid), jc.IsTrue)
		_, err = storageprovisioner.New(spoilt)
		c.Check(err, gc.ErrorMatches, message)
	}
}
