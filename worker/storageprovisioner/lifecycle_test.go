package storageprovisioner_test

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

type lifecycleSuite struct{ baseSuite }

var _ = gc.Suite(&lifecycleSuite{})

func (s *lifecycleSuite) TestConfigIsValidated(c *gc.C) {
	valid := s.config(c, true)
	c.Check(valid.Validate(), jc.ErrorIsNil)
	for field, spoil := range map[string]func(*storageprovisioner.Config){
		"Scope":                 func(cfg *storageprovisioner.Config) { cfg.Scope = nil },
		"Scope ":                func(cfg *storageprovisioner.Config) { cfg.Scope = names.NewUnitTag("app/0") },
		"StorageDir":            func(cfg *storageprovisioner.Config) { cfg.StorageDir = "" },
		"StorageDir ":           func(cfg *storageprovisioner.Config) { cfg.Scope = s.config(c, false).Scope; cfg.StorageDir = "/x" },
		"Volumes":               func(cfg *storageprovisioner.Config) { cfg.Volumes = nil },
		"Filesystems":           func(cfg *storageprovisioner.Config) { cfg.Filesystems = nil },
		"Life":                  func(cfg *storageprovisioner.Config) { cfg.Life = nil },
		"Environ":               func(cfg *storageprovisioner.Config) { cfg.Environ = nil },
		"Machines":              func(cfg *storageprovisioner.Config) { cfg.Machines = nil },
		"Status":                func(cfg *storageprovisioner.Config) { cfg.Status = nil },
		"Clock":                 func(cfg *storageprovisioner.Config) { cfg.Clock = nil },
		"Retry.Min":             func(cfg *storageprovisioner.Config) { cfg.Retry.Min = -1 },
		"Retry.Max":             func(cfg *storageprovisioner.Config) { cfg.Retry.Min, cfg.Retry.Max = 2, 1 },
		"Retry.Factor":          func(cfg *storageprovisioner.Config) { cfg.Retry.Factor = 0.5 },
		"Retry.Jitter":          func(cfg *storageprovisioner.Config) { cfg.Retry.Jitter = 2 },
		"Retry.CreateThreshold": func(cfg *storageprovisioner.Config) { cfg.Retry.CreateThreshold = -1 },
		"Retry.RemoveThreshold": func(cfg *storageprovisioner.Config) { cfg.Retry.RemoveThreshold = -1 },
		"MaxBatch":              func(cfg *storageprovisioner.Config) { cfg.MaxBatch = -1 },
		"ResyncInterval":        func(cfg *storageprovisioner.Config) { cfg.ResyncInterval = -1 },
		"ResyncJitter":          func(cfg *storageprovisioner.Config) { cfg.ResyncJitter = 1.5 },
	} {
		field = strings.TrimSpace(field)
		cfg := valid
		spoil(&cfg)
		err := cfg.Validate()
		c.Check(err, gc.ErrorMatches, ".*\\b"+field+"\\b.*")
		c.Check(errors.Is(err, errors.NotValid), jc.IsTrue, gc.Commentf("%s: %v", field, err))
		_, err = storageprovisioner.New(cfg)
		c.Check(err, gc.ErrorMatches, ".*\\b"+field+"\\b.*")
	}
}

func (s *lifecycleSuite) TestNewStorageProvisionerInvalidArgument(c *gc.C) {
	cfg := s.config(c, true)
	s.worker = storageprovisioner.NewStorageProvisioner(
		cfg.Scope, "", cfg.Volumes, cfg.Filesystems, cfg.Life, cfg.Environ, cfg.Machines, cfg.Status, cfg.Clock)
	err := s.waited(c)
	c.Check(err, gc.ErrorMatches, ".*StorageDir.*")
	c.Check(errors.Is(err, errors.NotValid), jc.IsTrue)
}

func (s *lifecycleSuite) TestNewStorageProvisionerRuns(c *gc.C) {
	cfg := s.config(c, true)
	s.worker = storageprovisioner.NewStorageProvisioner(
		cfg.Scope, cfg.StorageDir, cfg.Volumes, cfg.Filesystems, cfg.Life, cfg.Environ, cfg.Machines, cfg.Status, cfg.Clock)
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.Next(c, "WatchFilesystemAttachments")
}

// Behaviour 1: only the config, and block devices, are watched before the config is read.
func (s *lifecycleSuite) TestStorageWatchedAfterConfigRead(c *gc.C) {
	for _, machine := range []bool{false, true} {
		if machine {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		reading := calls.NewGate()
		s.state.OnCall("EnvironConfig", reading.Wait)
		s.startUnconfigured(c, s.config(c, machine))
		s.fed.EnvironConfig.Deliver(c, struct{}{})
		reading.Entered(c)
		reading.Open()
		for _, name := range []string{"WatchVolumes", "WatchFilesystems", "WatchVolumeAttachments", "WatchFilesystemAttachments"} {
			s.Next(c, name)
		}

		watches := func(name string) bool { return strings.HasPrefix(name, "Watch") || name == "EnvironConfig" }
		var calls []string
		for _, name := range s.Names() {
			if watches(name) {
				calls = append(calls, name)
			}
		}
		read := slices.Index(calls, "EnvironConfig")
		before, after := slices.Sorted(slices.Values(calls[:read])), slices.Sorted(slices.Values(calls[read+1:]))
		if machine {
			c.Check(before, jc.DeepEquals, []string{"WatchBlockDevices", "WatchForEnvironConfigChanges"})
		} else {
			c.Check(before, jc.DeepEquals, []string{"WatchForEnvironConfigChanges"})
		}
		c.Check(after, jc.DeepEquals, []string{
			"WatchFilesystemAttachments", "WatchFilesystems", "WatchVolumeAttachments", "WatchVolumes",
		})
	}
}

// Behaviour 1: events that were sent before the worker started are handled.
func (s *lifecycleSuite) TestPendingEventsHandledAtStart(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addFilesystem("0", "dynamic", "")
	s.addFilesystemAttachment("machine-0", "0", "dynamic")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.volumesChanged(c, "0")
	s.filesystemsChanged(c, "0")
	s.startEnviron(c)
	s.Next(c, "SetVolumeAttachmentInfo")
	s.Next(c, "SetFilesystemAttachmentInfo")
}

// Behaviour 2: after a config change the sources of the new registry do the work.
func (s *lifecycleSuite) TestConfigChangeReachesTheSources(c *gc.C) {
	changed := s.provider("changed.")
	configs := make(chan *config.Config, 10)
	cfg := s.config(c, false)
	registry := cfg.Registry
	cfg.Registry = func(environ *config.Config) (storage.ProviderRegistry, error) {
		configs <- environ
		return registry(environ)
	}
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	environ := receive(c, configs, "the registry to be built")
	c.Check(environ.Name(), gc.Equals, "site")

	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetVolumeAttachmentInfo")

	s.mu.Lock()
	s.providers = map[storage.ProviderType]storage.Provider{"dynamic": changed}
	s.mu.Unlock()
	s.state.SetEnvironConfig(map[string]any{"name": "renamed"})
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	environ = receive(c, configs, "the registry to be built again")
	c.Check(environ.Name(), gc.Equals, "renamed")

	// The new source removes what the former one made.
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "changed.DetachVolumes")
	s.Next(c, "RemoveAttachments")
	s.setLife(v, life.Dead)
	s.volumesChanged(c, "0")
	s.Next(c, "changed.DestroyVolumes")
	s.Next(c, "Remove")
	c.Check(s.Count("DetachVolumes", "DestroyVolumes"), gc.Equals, 0)
}

// Behaviour 2: a source is opened with its provider type and a storage directory.
func (s *lifecycleSuite) TestSourceGetsProviderAndStorageDir(c *gc.C) {
	cfg := s.config(c, true)
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetVolumeAttachmentInfo")
	configs := s.source.Configs()
	c.Assert(configs, gc.Not(gc.HasLen), 0)
	c.Check(configs[0].Provider(), gc.Equals, storage.ProviderType("dynamic"))
	dir, ok := configs[0].ValueString(storage.ConfigStorageDir)
	c.Check(ok, jc.IsTrue)
	c.Check(strings.HasPrefix(dir, cfg.StorageDir), jc.IsTrue, gc.Commentf("%s", dir))
}

// If a provider's sources differ by pool, each pool has one, opened with the pool's
// attributes.
func (s *lifecycleSuite) TestEachPoolHasItsOwnSource(c *gc.C) {
	s.source.Options.SourcesByPool = true
	cfg := s.config(c, true)
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	fast := params.Pool{Name: "fast", Attributes: map[string]any{"endpoint": "here", storage.ConfigStorageDir: "/mine"}}
	slow := params.Pool{Name: "slow"}
	for id, pool := range map[string]*params.Pool{"0": &fast, "1": &slow, "2": &fast, "3": nil} {
		s.addVolumeOn("machine-0", id, "dynamic")
		if pool != nil {
			s.state.SetPool(volumeTag(id), *pool)
		}
	}
	s.volumesChanged(c, "0", "1", "2", "3")
	s.volumeAttachmentsChanged(c, "machine-0", "0", "1", "2", "3")
	for _, id := range []string{"0", "1", "2", "3"} {
		s.AwaitCall(c, "SetVolumeAttachmentInfo", volumeTag(id)+" machine-0")
	}
	opened := func() map[string]string {
		all := make(map[string]string)
		for _, config := range s.source.Configs() {
			c.Check(config.Provider(), gc.Equals, storage.ProviderType("dynamic"))
			dir, _ := config.ValueString(storage.ConfigStorageDir)
			c.Check(dir, gc.Equals, filepath.Join(cfg.StorageDir, "dynamic"))
			endpoint, _ := config.ValueString("endpoint")
			all[config.Name()] += endpoint + "."
		}
		return all
	}
	c.Check(opened(), jc.DeepEquals, map[string]string{"fast": "here.", "slow": ".", "dynamic": "."})
	c.Check(s.Count("CreateVolumes"), gc.Equals, 3)
	c.Check(s.Count("AttachVolumes"), gc.Equals, 3)

	// The source of the volume's pool removes it, opened with the pool's latest attributes.
	fast.Attributes = map[string]any{"endpoint": "there"}
	s.state.SetPool("volume-0", fast)
	s.state.SetPool("volume-2", fast)
	s.state.Destroy("volume-0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "Remove", "volume-0")
	c.Check(opened(), jc.DeepEquals, map[string]string{"fast": "here.there.", "slow": ".", "dynamic": "."})
}

// A volume ID is unique in all pools of a provider.
func (s *lifecycleSuite) TestIDFromOtherPoolRefused(c *gc.C) {
	s.source.Options.SourcesByPool = true
	s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) {
		if r.Volume.Tag.Id() == "1" {
			r.Volume.VolumeId = "vol-0"
		}
	}
	s.addMachine("0", "instance-0")
	s.start(c, s.config(c, true))
	for id, pool := range []string{"fast", "slow"} {
		s.addVolumeOn("machine-0", strconv.Itoa(id), "dynamic")
		s.state.SetPool(volumeTag(strconv.Itoa(id)), params.Pool{Name: pool})
		s.volumesChanged(c, strconv.Itoa(id))
		s.volumeAttachmentsChanged(c, "machine-0", strconv.Itoa(id))
		if id == 0 {
			s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
		}
	}
	s.Await(c, "the refusal", func() bool { return s.state.Status("volume-1").Status == "error" })
	c.Check(s.state.Status("volume-0").Status, gc.Equals, "attached")
	c.Check(s.state.Status("volume-1").Info, gc.Matches, `.*returned volume ID "vol-0", which belongs to volume 0`)
}

// Behaviour 3: a worker that waits for the config can be killed.
func (s *lifecycleSuite) TestKillBeforeTheConfigIsRead(c *gc.C) {
	s.startUnconfigured(c, s.config(c, true))
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
}

// Behaviour 3: an idle worker can be killed.
func (s *lifecycleSuite) TestKillWhileIdle(c *gc.C) {
	s.startMachine(c)
	s.barrier(c)
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
}

// Behaviour 3: the error of a watcher that is stopped is not the worker's error.
func (s *lifecycleSuite) TestKillIgnoresWatcherStopError(c *gc.C) {
	s.fed.Volumes.FailOnKill(errors.New("connection lost"))
	s.startMachine(c)
	s.barrier(c)
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
}

// Behaviour 3: a kill stops the watchers of machines, and the retry timer.
func (s *lifecycleSuite) TestKillWithMachineWatchedAndRetryDue(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.addMachine("1", "")
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("boom"))
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-1", "1", "dynamic")
	s.volumesChanged(c, "0", "1")
	w := s.machineWatcher(c, "1")
	s.statuses(c)
	s.advance(c, 0)
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
	receive(c, w.Dead(), "the machine watcher to be stopped")
}

// Behaviour 3: a kill cancels the provider call, and what that made is recorded.
func (s *lifecycleSuite) TestKillCancelsCallAndRecordsResult(c *gc.C) {
	s.addMachine("0", "instance-0")
	entered := make(chan struct{})
	s.source.OnCall("CreateVolumes", func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		return nil // the volumes were made despite the cancellation
	})
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.source.FailItemAlways("CreateVolumes", "volume-1", context.Canceled)
	s.volumesChanged(c, "0", "1")
	s.volumeAttachmentsChanged(c, "machine-0", "0", "1")
	receive(c, entered, "CreateVolumes to be called")
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
	c.Check(s.deedsAbout("volume-0"), jc.DeepEquals, []string{"CreateVolumes", "SetStatus", "SetVolumeInfo"})
	c.Check(s.About("volume-1", "SetVolumeInfo"), gc.HasLen, 0)
	c.Check(s.Count("AttachVolumes"), gc.Equals, 0)
}

// Behaviour 3: an attachment that the creation returns is recorded, too.
func (s *lifecycleSuite) TestKillRecordsAttachmentFromCreation(c *gc.C) {
	s.source.Options.AttachOnCreate = true
	s.addMachine("0", "instance-0")
	entered := make(chan struct{})
	s.source.OnCall("CreateVolumes", func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		return nil
	})
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	receive(c, entered, "CreateVolumes to be called")
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
	c.Check(s.deeds(), jc.DeepEquals, []string{"CreateVolumes", "SetStatus", "SetVolumeInfo", "SetVolumeAttachmentInfo"})
}

// Behaviour 3: sources get the context from Config.CallContext, which a kill cancels.
func (s *lifecycleSuite) TestKillCancelsCustomCallContext(c *gc.C) {
	type key struct{}
	cfg := s.config(c, false)
	cfg.CallContext = func(ctx context.Context) envcontext.ProviderCallContext {
		return envcontext.New(context.WithValue(ctx, key{}, "mine"))
	}
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.Next(c, "SetVolumeInfo")
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
	contexts := s.source.Contexts()
	c.Assert(contexts, gc.HasLen, 1)
	c.Check(contexts[0].Value(key{}), gc.Equals, "mine")
	c.Check(contexts[0].Err(), gc.Equals, context.Canceled)
}

// watchers returns the watchers of a machine's worker.
func (s *lifecycleSuite) watchers(c *gc.C) []watched {
	return []watched{
		{"WatchForEnvironConfigChanges", "watching environment config.*", s.fed.EnvironConfig.Fail, s.fed.EnvironConfig.Close},
		{"WatchBlockDevices", "watching block devices.*", s.fed.BlockDevices.Fail, s.fed.BlockDevices.Close},
		{"WatchVolumes", "watching volumes", s.fed.Volumes.Fail, s.fed.Volumes.Close},
		{"WatchFilesystems", "watching filesystems", s.fed.Filesystems.Fail, s.fed.Filesystems.Close},
		{"WatchVolumeAttachments", "watching volume attachments", s.fed.VolumeAttachments.Fail, s.fed.VolumeAttachments.Close},
		{"WatchFilesystemAttachments", "watching filesystem attachments", s.fed.FilesystemAttachments.Fail, s.fed.FilesystemAttachments.Close},
		{
			"WatchMachine", "watching machine.*",
			func(err error) { s.machineWatcher(c, "1").Fail(err) },
			func(err error) { s.machineWatcher(c, "1").Close(err) },
		},
	}
}

type watched struct {
	accessor string
	message  string
	die      func(error)
	close    func(error)
}

// eachWatcher runs a test on a fresh worker for each of its watchers.
func (s *lifecycleSuite) eachWatcher(c *gc.C, test func(watched)) {
	for i := range s.watchers(c) {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		w := s.watchers(c)[i]
		c.Logf("--- %s", w.accessor)
		test(w)
	}
}

// startWatching starts a worker, and waits until it has all its watchers.
func (s *lifecycleSuite) startWatching(c *gc.C) {
	s.addMachine("1", "")
	s.addVolumeOn("machine-1", "1", "dynamic")
	s.startMachine(c)
	s.volumesChanged(c, "1")
	s.machineWatcher(c, "1")
	s.Next(c, "WatchFilesystemAttachments")
}

// Behaviour 4: the worker's error names what could not be watched.
func (s *lifecycleSuite) TestWatcherStartErrorEndsWorker(c *gc.C) {
	s.eachWatcher(c, func(w watched) {
		s.state.FailCall(w.accessor, errors.New("no connection"))
		s.addMachine("1", "")
		s.addVolumeOn("machine-1", "1", "dynamic")
		s.volumesChanged(c, "1")
		s.fed.EnvironConfig.Send(struct{}{})
		s.startUnconfigured(c, s.config(c, true))
		c.Check(s.waited(c), gc.ErrorMatches, w.message+": no connection")
	})
}

// Behaviour 4: a watcher that closes its channel and fails ends the worker.
func (s *lifecycleSuite) TestClosedWatcherChannelEndsWorker(c *gc.C) {
	s.eachWatcher(c, func(w watched) {
		s.startWatching(c)
		w.close(errors.New("connection lost"))
		c.Check(s.waited(c), gc.ErrorMatches, w.message+": connection lost")
	})
}

// Behaviour 4: the same applies to a watcher that ends without an error.
func (s *lifecycleSuite) TestClosedWatcherChannelWithoutError(c *gc.C) {
	s.eachWatcher(c, func(w watched) {
		s.startWatching(c)
		w.close(nil)
		c.Check(s.waited(c), gc.ErrorMatches, w.message+": .+")
	})
}

// Behaviour 4: a watcher that fails while its channel is open ends the worker.
func (s *lifecycleSuite) TestWatcherErrorEndsWorker(c *gc.C) {
	s.eachWatcher(c, func(w watched) {
		s.startWatching(c)
		w.die(errors.New("connection lost"))
		c.Check(s.waited(c), gc.ErrorMatches, w.message+": connection lost")
	})
}

// Behaviour 4: an accessor call that fails as a whole ends the worker.
func (s *lifecycleSuite) TestAccessorCallErrorEndsWorker(c *gc.C) {
	accessors := []string{
		"EnvironConfig", "Life", "AttachmentLife", "Remove", "RemoveAttachments", "InstanceIds",
		"Volumes", "VolumeParams", "VolumeAttachments", "VolumeAttachmentParams", "VolumeBlockDevices",
		"SetVolumeInfo", "SetVolumeAttachmentInfo", "RemoveVolumeParams",
		"Filesystems", "FilesystemParams", "FilesystemAttachments", "FilesystemAttachmentParams",
		"SetFilesystemInfo", "SetFilesystemAttachmentInfo", "RemoveFilesystemParams",
	}
	for i, accessor := range accessors {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %s", accessor)
		s.state.FailCall(accessor, errors.New("no connection"))
		s.startBusyWorker(c)
		c.Check(s.waited(c), gc.ErrorMatches, ".+: no connection", gc.Commentf("%s", accessor))
	}
}

// Behaviour 4, B7: so does one with too few results.
func (s *lifecycleSuite) TestTooFewAccessorResultsEndWorker(c *gc.C) {
	s.state.Shorten("SetVolumeInfo", 1)
	s.startBusyWorker(c)
	c.Check(s.waited(c), gc.ErrorMatches, ".+results.+")
}

// startBusyWorker starts a machine's worker with so much to do that it calls every
// accessor.
func (s *lifecycleSuite) startBusyWorker(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.addMachine("1", "")
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-1", "1", "dynamic")
	dead := s.addVolume("2", "dynamic")
	s.provisionVolume(dead)
	s.setLife(dead, life.Dead)
	dying := s.addVolumeAttachment("machine-0", "3", "dynamic")
	s.setLife(dying, life.Dying)
	s.addFilesystem("0", "dynamic", "")
	s.addFilesystemAttachment("machine-0", "0", "dynamic")
	s.addFilesystem("1", "dynamic", "0")
	deadFilesystem := s.addFilesystem("2", "dynamic", "")
	s.provisionFilesystem(deadFilesystem)
	s.setLife(deadFilesystem, life.Dead)
	s.volumesChanged(c, "0", "1", "2")
	s.filesystemsChanged(c, "0", "1", "2")
	s.volumeAttachmentsChanged(c, "machine-0", "0", "3")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")

	s.fed.EnvironConfig.Send(struct{}{})
	s.startUnconfigured(c, s.config(c, true, modeltest.Removal))
}

// Behaviour 4: so does an error of Config.Registry.
func (s *lifecycleSuite) TestRegistryErrorEndsWorker(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Registry = func(*config.Config) (storage.ProviderRegistry, error) {
		return nil, errors.New("no plugins")
	}
	s.startUnconfigured(c, cfg)
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	c.Check(s.waited(c), gc.ErrorMatches, ".+: no plugins")
}

// Behaviour 5: Wait does not return before an accessor call that is stuck.
func (s *lifecycleSuite) TestWaitBlocksOnStuckAccessorCall(c *gc.C) {
	s.addMachine("0", "instance-0")
	creating, cancelled := make(chan struct{}), make(chan struct{})
	s.source.OnCall("CreateVolumes", func(ctx context.Context) error {
		close(creating)
		<-ctx.Done()
		close(cancelled)
		return ctx.Err()
	})
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	receive(c, creating, "CreateVolumes to be called")

	stuck := calls.NewGate()
	s.state.OnCall("Life", stuck.Wait)
	s.volumesChanged(c, "1")
	stuck.Entered(c)
	s.worker.Kill()

	order := make(chan string, 2)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.worker.Wait()
		order <- "ended"
	}()
	// The worker has handled the kill, and would end if it did not wait.
	receive(c, cancelled, "the provider call to be cancelled")
	order <- "unstuck"
	stuck.Open()
	receive(c, ended, "the worker's end")
	c.Check(<-order, gc.Equals, "unstuck")
	c.Check(<-order, gc.Equals, "ended")
	c.Check(s.waited(c), jc.ErrorIsNil)
}

// Nil results and no error of a call that writes mean that every item succeeded.
// Behaviour O9.
func (s *lifecycleSuite) TestNilResultsMeanSuccess(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Volumes, cfg.Life = nilVolumeResults{cfg.Volumes}, nilLifeResults{cfg.Life}
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetVolumeAttachmentInfo")
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "RemoveAttachments")
	s.setLife(v, life.Dead)
	s.volumesChanged(c, "0")
	s.Next(c, "Remove")
	s.barrier(c)
	s.noTimer(c)
}

// nilVolumeResults returns nil results from calls that write.
type nilVolumeResults struct {
	storageprovisioner.VolumeAccessor
}

func (s nilVolumeResults) SetVolumeInfo(volumes []params.Volume) ([]params.ErrorResult, error) {
	_, err := s.VolumeAccessor.SetVolumeInfo(volumes)
	return nil, err
}

func (s nilVolumeResults) SetVolumeAttachmentInfo(attachments []params.VolumeAttachment) ([]params.ErrorResult, error) {
	_, err := s.VolumeAccessor.SetVolumeAttachmentInfo(attachments)
	return nil, err
}

type nilLifeResults struct {
	storageprovisioner.LifecycleManager
}

func (s nilLifeResults) Remove(tags []names.Tag) ([]params.ErrorResult, error) {
	_, err := s.LifecycleManager.Remove(tags)
	return nil, err
}

func (s nilLifeResults) RemoveAttachments(ids []params.MachineStorageId) ([]params.ErrorResult, error) {
	_, err := s.LifecycleManager.RemoveAttachments(ids)
	return nil, err
}

// A worker with nothing to wait for has no timer.
// Behaviour 24.
func (s *lifecycleSuite) TestIdleWorkerHasNoTimer(c *gc.C) {
	cfg := s.config(c, true)
	cfg.Clock = noTimerClock{s.clock, c}
	s.start(c, cfg)
	s.barrier(c)
}

// noTimerClock is a clock that fails the test when a timer is made.
type noTimerClock struct {
	clock.Clock
	c *gc.C
}

func (t noTimerClock) NewTimer(d time.Duration) clock.Timer {
	t.c.Errorf("an idle worker made a timer")
	return t.Clock.NewTimer(d)
}

// A worker with several retries to wait for has one timer.
// Behaviour 24.
func (s *lifecycleSuite) TestOneTimerForManyRetries(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	for _, id := range []string{"0", "1", "2"} {
		s.addVolumeOn("machine-0", id, "dynamic")
		s.source.FailItem("CreateVolumes", volumeTag(id), errors.New("boom"))
		s.volumesChanged(c, id)
		s.statuses(c)
		s.advance(c, time.Second)
	}
	s.advance(c, 0)
}

// Behaviour 4: the watchers of other machines that were started before are stopped.
func (s *lifecycleSuite) TestMachineWatchErrorStopsOtherWatchers(c *gc.C) {
	s.state.FailCall("WatchMachine", nil, nil, errors.New("no connection"))
	for _, id := range []string{"1", "2", "3"} {
		s.addMachine(id, "")
		s.addVolumeOn("machine-"+id, id, "dynamic")
	}
	s.startEnviron(c)
	s.volumesChanged(c, "1", "2", "3")
	c.Check(s.waited(c), gc.ErrorMatches, "watching machine-3: no connection")
}
