package storageprovisioner_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	"github.com/juju/worker/v4/dependency"
	dt "github.com/juju/worker/v4/dependency/testing"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// openingSuite tests how sources are opened, how their invalid results and those about
// machines are handled, and the defaults and bounds of the configuration.
type openingSuite struct{ planningSuite }

var _ = gc.Suite(&openingSuite{})

func (s *openingSuite) replace(t storage.ProviderType, p storage.Provider) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.providers[t] = p
}

// An open source is reused until the config changes.
// Behaviour 2.
func (s *openingSuite) TestSourceIsOpenedOnce(c *gc.C) {
	s.startEnviron(c)
	s.attachedVolume(c, "0")
	s.attachedVolume(c, "1")
	configs := s.source.Configs()
	c.Assert(configs, gc.HasLen, 1)
	// Behaviour 2: a provider of the environment has no directory on a machine.
	_, ok := configs[0].ValueString(storage.ConfigStorageDir)
	c.Check(ok, jc.IsFalse)
}

// incomparable is a provider that is its own source and has no comparable Go type.
type incomparable struct {
	*providerfake.Provider
	_ []string
}

func (p incomparable) VolumeSource(cfg *storage.Config) (storage.VolumeSource, error) {
	_, err := p.Provider.VolumeSource(cfg)
	return p, err
}

func (s *openingSuite) TestProviderNeedNotBeComparable(c *gc.C) {
	cfg := s.config(c, false)
	s.replace("dynamic", incomparable{Provider: s.source})
	s.start(c, cfg)
	s.attachedVolume(c, "0")
}

// Behaviour 26: a volume whose provider has no name gets an error status.
func (s *openingSuite) TestUnnamedProviderRefused(c *gc.C) {
	cfg := s.config(c, false)
	s.replace("", s.source)
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "")
	s.volumesChanged(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals,
		[]string{`volume-0 error: configuring storage provider "": storage pool with an empty name not valid`})
}

// concurrentPlan takes several calls at once.
type concurrentPlan struct {
	*fakePlan
	maxCalls
}

// O6: a plan can declare how many calls it takes at once.
// Behaviour O6.
func (s *openingSuite) TestPlanMaxConcurrentCalls(c *gc.C) {
	cfg := s.planning(c, true)
	cfg.Plans = func(storage.DeviceType) (plans.Plan, error) { return concurrentPlan{s.iscsi, 2}, nil }
	s.start(c, cfg)
	s.carriedOut(c, "9") // from here on the worker knows the limit
	attaching := calls.NewGate()
	s.iscsi.OnCall("AttachPlan", attaching.Wait)
	for _, id := range []string{"0", "1"} {
		s.addPlanned(c, id, "iscsi")
		s.plansChanged(c, id)
		attaching.Entered(c)
	}
	attaching.Open()
}

// editedSource is a source that returns the given error and, unless value is false, a value.
type editedSource struct {
	*providerfake.Provider
	err   error
	value bool
}

func (p *editedSource) VolumeSource(*storage.Config) (storage.VolumeSource, error) { return p, nil }

func (p *editedSource) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	return p, nil
}

// editResults edits the results of a call.
func editResults[R any](p *editedSource, results []R, err error, edit func(*R)) ([]R, error) {
	for i := range results {
		edit(&results[i])
	}
	return results, err
}

func (p *editedSource) CreateVolumes(ctx envcontext.ProviderCallContext, args []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	results, err := p.Provider.CreateVolumes(ctx, args)
	return editResults(p, results, err, func(r *storage.CreateVolumesResult) {
		if r.Error = p.err; !p.value {
			r.Volume = nil
		}
	})
}

func (p *editedSource) AttachVolumes(ctx envcontext.ProviderCallContext, args []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	results, err := p.Provider.AttachVolumes(ctx, args)
	return editResults(p, results, err, func(r *storage.AttachVolumesResult) {
		if r.Error = p.err; !p.value {
			r.VolumeAttachment = nil
		}
	})
}

func (p *editedSource) CreateFilesystems(ctx envcontext.ProviderCallContext, args []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	results, err := p.Provider.CreateFilesystems(ctx, args)
	return editResults(p, results, err, func(r *storage.CreateFilesystemsResult) {
		if r.Error = p.err; !p.value {
			r.Filesystem = nil
		}
	})
}

func (p *editedSource) AttachFilesystems(ctx envcontext.ProviderCallContext, args []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	results, err := p.Provider.AttachFilesystems(ctx, args)
	return editResults(p, results, err, func(r *storage.AttachFilesystemsResult) {
		if r.Error = p.err; !p.value {
			r.FilesystemAttachment = nil
		}
	})
}

// Behaviour 24: a result with an error has failed even if it also has a value. An empty
// result has failed too.
func (s *openingSuite) TestErrorWithValueAndEmptyResultFail(c *gc.C) {
	for i, test := range []struct {
		err   error
		value bool
		want  []string
	}{{
		errors.New("half done"), true, []string{
			"filesystem-0 pending: half done", "filesystem-1 attaching: half done",
			"volume-0 pending: half done", "volume-1 attaching: half done",
		},
	}, {
		nil, false, []string{
			"filesystem-0 pending: provider returned neither a filesystem nor an error",
			"filesystem-1 attaching: provider returned neither a filesystem attachment nor an error",
			"volume-0 pending: provider returned neither a volume nor an error",
			"volume-1 attaching: provider returned neither a volume attachment nor an error",
		},
	}} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		cfg := s.config(c, false)
		s.replace("dynamic", &editedSource{s.source, test.err, test.value})
		s.start(c, cfg)
		s.addVolumeOn("machine-0", "0", "dynamic")
		s.addFilesystem("0", "dynamic", "")
		v, _ := s.addVolumeOn("machine-0", "1", "dynamic")
		s.provisionVolume(v)
		f, _ := s.addMount("1", "dynamic", "")
		s.provisionFilesystem(f)
		s.volumesChanged(c, "0", "1")
		s.filesystemsChanged(c, "0", "1")
		s.volumeAttachmentsChanged(c, "machine-0", "1")
		s.filesystemAttachmentsChanged(c, "machine-0", "1")
		var got []string
		for len(got) < len(test.want) {
			got = append(got, s.statuses(c)...)
		}
		c.Check(got, jc.SameContents, test.want)
		c.Check(s.Count("SetVolumeInfo", "SetVolumeAttachmentInfo", "SetFilesystemInfo", "SetFilesystemAttachmentInfo"), gc.Equals, 0)
	}
}

// editedMachines returns a given result for machine 1.
type editedMachines struct {
	storageprovisioner.MachineAccessor
	result params.StringResult
}

func (m editedMachines) InstanceIds(machines []names.MachineTag) ([]params.StringResult, error) {
	results, err := m.MachineAccessor.InstanceIds(machines)
	for i := range results {
		if machines[i].Id() == "1" {
			results[i] = m.result
		}
	}
	return results, err
}

// Behaviour 8: a machine whose instance ID is empty or comes with an error is not
// provisioned. No warning is logged.
func (s *openingSuite) TestUnprovisionedMachineAwaited(c *gc.C) {
	notYet := params.ServerError(errors.NotProvisionedf("machine 1"))
	for i, result := range []params.StringResult{{}, {Error: notYet}, {Result: "instance-1", Error: notYet}} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		cfg := s.config(c, false)
		cfg.Machines = editedMachines{cfg.Machines, result}
		s.addMachine("1", "")
		s.start(c, cfg)
		s.addVolumeOn("machine-1", "0", "dynamic")
		s.volumesChanged(c, "0")
		s.machineWatcher(c, "1")
		s.AwaitCalls(c, 2, "InstanceIds", "machine-1") // the second follows the first event of the watcher
		s.barrier(c)
		c.Check(s.deedsAbout("volume-0"), gc.HasLen, 0)
		c.Check(s.log.warned(), gc.HasLen, 0)
	}
}

// withoutInstances returns the parameters of volumes without instance IDs.
type withoutInstances struct {
	storageprovisioner.VolumeAccessor
}

func (w withoutInstances) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	results, err := w.VolumeAccessor.VolumeParams(tags)
	for i := range results {
		if a := results[i].Result.Attachment; a != nil {
			a.InstanceId = ""
		}
	}
	return results, err
}

// Behaviour 8: the instance ID of a provisioned machine is read, and the machine is not
// watched.
func (s *openingSuite) TestProvisionedMachineNotWatched(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Volumes = withoutInstances{cfg.Volumes}
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "InstanceIds", "machine-0")
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	s.barrier(c)
	c.Check(s.Count("WatchMachine"), gc.Equals, 0)
}

// Behaviour 8: the worker goes on if a machine cannot be watched because it is gone.
func (s *openingSuite) TestWatchGoneMachineIsNotFatal(c *gc.C) {
	s.state.FailCall("WatchMachine", errors.NotFoundf("machine 1"))
	s.startEnviron(c)
	s.addVolumeOn("machine-1", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "WatchMachine", "machine-1")
	s.barrier(c)
	c.Check(s.deedsAbout("volume-0"), gc.HasLen, 0)
	c.Check(s.log.warned(), jc.DeepEquals, []string{"machine-1 not found: operations that wait for it keep waiting"})
}

// Behaviour 2: without a registry in its config, the worker has the common providers.
func (s *openingSuite) TestDefaultRegistry(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Registry = nil
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "loop") // a provider of machine scope
	s.addVolumeOn("machine-0", "1", "cloud")
	s.volumesChanged(c, "0", "1")
	c.Check(s.statuses(c), jc.DeepEquals,
		[]string{`volume-1 pending: getting storage provider "cloud": storage provider "cloud" not found`})
	s.caughtUp(c)
	c.Check(s.deedsAbout("volume-0"), gc.HasLen, 0)
}

func (s *openingSuite) TestRetryPolicyBounds(c *gc.C) {
	for _, test := range []struct {
		retry storageprovisioner.RetryPolicy
		err   string
	}{
		{storageprovisioner.RetryPolicy{Min: 1, Max: 1, Factor: 1}, ""},
		{storageprovisioner.RetryPolicy{Jitter: 1}, ""},
		{storageprovisioner.RetryPolicy{Jitter: -0.1}, "Retry.Jitter -0.1 outside 0 to 1 not valid"},
		{storageprovisioner.RetryPolicy{Factor: 0.9}, "Retry.Factor 0.9 below 1 not valid"},
	} {
		cfg := s.config(c, false)
		cfg.Retry = test.retry
		if test.err == "" {
			c.Check(cfg.Validate(), jc.ErrorIsNil)
		} else {
			c.Check(cfg.Validate(), gc.ErrorMatches, test.err)
		}
	}
}

// O9: the output of AccessorsManifold can be read as Accessors only.
// Behaviour O9.
func (s *openingSuite) TestAccessorsManifoldOutputType(c *gc.C) {
	manifold := storageprovisioner.AccessorsManifold(s.state.For(names.NewMachineTag("0"), modeltest.Plans))
	var logger storageprovisioner.Logger
	c.Check(manifold.Output(nil, &logger), gc.ErrorMatches, `output of the accessors manifold: want a \*storageprovisioner.Accessors, got a \*storageprovisioner.Logger`)
	c.Check(logger, gc.IsNil)
	var accessors storageprovisioner.Accessors
	c.Check(manifold.Output(nil, &accessors), jc.ErrorIsNil)
	c.Check(accessors, gc.NotNil)
}

// O9: the worker of AccessorsManifold runs until it is killed.
// Behaviour O9.
func TestAccessorsManifoldRunsUntilKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var getter dependency.Getter = dt.NewStubResources(nil).Getter()
		w, err := storageprovisioner.AccessorsManifold(nil).Start(context.Background(), getter)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- w.Wait() }()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("worker ended before it was killed: %v", err)
		default:
		}
		w.Kill()
		if err := <-ended; err != nil {
			t.Errorf("worker ended with an error: %v", err)
		}
	})
}
