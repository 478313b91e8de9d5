package storageprovisioner_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/loggo"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	"github.com/juju/worker/v4/dependency"
	dt "github.com/juju/worker/v4/dependency/testing"
	gc "gopkg.in/check.v1"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// A machine agent runs its workers under a dependency engine. One of them holds the
// connection to the state, and provides the accessors. The engine starts the machine's
// storage provisioner when the accessors are available, restarts it when they are
// replaced, and restarts it when it fails.
func ExampleMachineManifold() {
	machine := names.NewMachineTag("0")
	state := modeltest.New(modeltest.Options{})
	defer state.Close()
	state.ProvisionMachine("machine-0", "instance-0")
	state.AddVolume(params.VolumeParams{VolumeTag: "volume-0", Size: 1024, Provider: "pretend"})
	state.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-0", MachineTag: "machine-0", Provider: "pretend"})
	pretend := providerfake.New(providerfake.Options{Scope: storage.ScopeMachine})
	provisioner := storageprovisioner.MachineManifoldConfig{
		ManifoldConfig: storageprovisioner.ManifoldConfig{
			AccessorsName: "state",
			Clock:         clock.WallClock,
			Registry: func(*config.Config) (storage.ProviderRegistry, error) {
				return storage.StaticProviderRegistry{
					Providers: map[storage.ProviderType]storage.Provider{"pretend": pretend},
				}, nil
			},
		},
		Machine:    machine,
		StorageDir: "/var/lib/example/storage",
	}
	if err := provisioner.Validate(); err != nil {
		fmt.Println(err)
		return
	}

	engine, err := dependency.NewEngine(engineConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	err = dependency.Install(engine, dependency.Manifolds{
		"state":               storageprovisioner.AccessorsManifold(state.For(machine)),
		"storage-provisioner": storageprovisioner.MachineManifold(provisioner),
	})
	if err != nil {
		fmt.Println(err)
	} else {
		state.Await(testing.TB(nil), "the attachment", func() bool {
			_, attached := state.VolumeAttachment("machine-0", "volume-0")
			return attached
		})
	}
	engine.Kill()
	fmt.Println("engine:", engine.Wait())
	volume, _ := state.Volume("volume-0")
	fmt.Printf("volume-0 is recorded: ID %s, %d MiB\n", volume.VolumeId, volume.Size)
	// Output:
	// engine: <nil>
	// volume-0 is recorded: ID vol-0, 1024 MiB
}

// engineConfig returns the configuration of an engine that restarts failed workers at once.
func engineConfig() dependency.EngineConfig {
	return dependency.EngineConfig{
		IsFatal:          func(error) bool { return false },
		WorstError:       func(first, _ error) error { return first },
		ErrorDelay:       time.Millisecond,
		BounceDelay:      time.Millisecond,
		BackoffFactor:    1,
		BackoffResetTime: time.Minute,
		MaxDelay:         time.Second,
		Clock:            clock.WallClock,
		Metrics:          dependency.DefaultMetrics(),
		Logger:           loggo.GetLogger("example.engine"),
	}
}

// idle is a worker that does nothing until it is killed.
type idle struct{ tomb tomb.Tomb }

func newIdle() *idle {
	w := &idle{}
	w.tomb.Go(func() error {
		<-w.tomb.Dying()
		return nil
	})
	return w
}

func (w *idle) Kill()       { w.tomb.Kill(nil) }
func (w *idle) Wait() error { return w.tomb.Wait() }

type manifoldSuite struct {
	baseSuite
	engine *dependency.Engine
	// started receives the configuration of each worker that is started.
	started chan storageprovisioner.Config
}

var _ = gc.Suite(&manifoldSuite{})

func (s *manifoldSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.started = make(chan storageprovisioner.Config, 10)
	config := engineConfig()
	config.Logger = engineLogger{s.log}
	engine, err := dependency.NewEngine(config)
	c.Assert(err, jc.ErrorIsNil)
	s.engine = engine
}

func (s *manifoldSuite) TearDownTest(c *gc.C) {
	s.engine.Kill()
	c.Check(s.engine.Wait(), jc.ErrorIsNil)
	s.baseSuite.TearDownTest(c)
}

// engineLogger is a logger for an engine.
type engineLogger struct{ *fakeLogger }

func (l engineLogger) Infof(format string, args ...any) { l.log("INFO", format, args...) }

// machineConfig returns the configuration of the manifold of a machine's worker.
func (s *manifoldSuite) machineConfig(c *gc.C) storageprovisioner.MachineManifoldConfig {
	config := s.config(c, true)
	return storageprovisioner.MachineManifoldConfig{
		ManifoldConfig: storageprovisioner.ManifoldConfig{
			AccessorsName: "accessors",
			NewWorker: func(config storageprovisioner.Config) (worker.Worker, error) {
				s.started <- config
				return storageprovisioner.New(config)
			},
			Clock:    config.Clock,
			Registry: config.Registry,
			Logger:   config.Logger,
		},
		Machine:            names.NewMachineTag("0"),
		StorageDir:         config.StorageDir,
		ManagedFilesystems: config.ManagedFilesystems,
	}
}

// environConfig returns the configuration of the manifold of an environment's worker.
func (s *manifoldSuite) environConfig(c *gc.C) storageprovisioner.EnvironManifoldConfig {
	config := s.machineConfig(c).ManifoldConfig
	config.Registry = s.config(c, false).Registry
	return storageprovisioner.EnvironManifoldConfig{
		ManifoldConfig: config,
		Model:          names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"),
	}
}

func (s *manifoldSuite) install(c *gc.C, name string, manifold dependency.Manifold) {
	c.Assert(s.engine.Install(name, manifold), jc.ErrorIsNil)
}

// awaitEngineReport waits until the engine's report of the worker is as wanted.
func (s *manifoldSuite) awaitEngineReport(c *gc.C, wanted func(report map[string]any) bool) {
	deadline := time.After(calls.Patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		manifolds, _ := s.engine.Report()["manifolds"].(map[string]any)
		report, _ := manifolds["provisioner"].(map[string]any)
		if wanted(report) {
			return
		}
		select {
		case <-tick.C: // an engine has no notification of changes to its report
		case <-deadline:
			c.Fatalf("timed out waiting for the report, which is %v", report)
		}
	}
}

// Behaviour O9.
func (s *manifoldSuite) TestWorkerWaitsForItsAccessors(c *gc.C) {
	s.install(c, "provisioner", storageprovisioner.MachineManifold(s.machineConfig(c)))
	s.awaitEngineReport(c, func(report map[string]any) bool {
		return report["state"] == "stopped" && strings.Contains(fmt.Sprint(report["error"]), dependency.ErrMissing.Error())
	})
	c.Check(s.started, gc.HasLen, 0)

	s.install(c, "accessors", storageprovisioner.AccessorsManifold(s.state.For(names.NewMachineTag("0"))))
	config := receive(c, s.started, "the worker's start")
	c.Check(config.Scope, gc.Equals, names.NewMachineTag("0"))
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.fed.BlockDevices.Deliver(c, struct{}{})
	s.barrier(c)
}

// Behaviour O9.
func (s *manifoldSuite) TestEnvironWorkerRuns(c *gc.C) {
	s.install(c, "accessors", storageprovisioner.AccessorsManifold(s.state.For(names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"))))
	s.install(c, "provisioner", storageprovisioner.EnvironManifold(s.environConfig(c)))
	config := receive(c, s.started, "the worker's start")
	c.Check(config.Scope, gc.Equals, names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"))
	s.machine = false
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.barrier(c)
}

// Behaviour O9.
func (s *manifoldSuite) TestOptionalAccessorsFound(c *gc.C) {
	s.install(c, "accessors", storageprovisioner.AccessorsManifold(s.state.For(names.NewMachineTag("0"), modeltest.Removal)))
	s.install(c, "provisioner", storageprovisioner.MachineManifold(s.machineConfig(c)))
	config := receive(c, s.started, "the worker's start")
	_, ok := config.Volumes.(storageprovisioner.VolumeRemovalAccessor)
	c.Check(ok, jc.IsTrue)
}

// Behaviour O9.
func (s *manifoldSuite) TestFailedWorkerRestarted(c *gc.C) {
	s.state.FailCall("WatchForEnvironConfigChanges", errors.New("the state is away"))
	s.install(c, "accessors", storageprovisioner.AccessorsManifold(s.state.For(names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"))))
	s.install(c, "provisioner", storageprovisioner.EnvironManifold(s.environConfig(c)))
	receive(c, s.started, "the worker's start")
	receive(c, s.started, "the worker's second start")
	s.machine = false
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.barrier(c)
	s.awaitEngineReport(c, func(report map[string]any) bool { return report["start-count"] == 2 })
}

// Behaviour R4.
func (s *manifoldSuite) TestReportInEngineReport(c *gc.C) {
	s.install(c, "accessors", storageprovisioner.AccessorsManifold(s.state.For(names.NewMachineTag("0"))))
	s.install(c, "provisioner", storageprovisioner.MachineManifold(s.machineConfig(c)))
	s.awaitEngineReport(c, func(report map[string]any) bool {
		own, _ := report["report"].(map[string]any)
		return report["state"] == "started" && own["scope"] == "machine-0"
	})
}

func (s *manifoldSuite) TestInvalidConfigStartsNoWorker(c *gc.C) {
	check := func(field string, config interface{ Validate() error }, manifold dependency.Manifold) {
		err := config.Validate()
		c.Check(err, gc.ErrorMatches, ".*\\b"+field+"\\b.*")
		c.Check(errors.Is(err, errors.NotValid), jc.IsTrue, gc.Commentf("%s: %v", field, err))
		getter := dt.NewStubResources(map[string]any{}).Getter()
		_, startErr := manifold.Start(context.Background(), getter)
		c.Check(startErr, gc.ErrorMatches, err.Error())
	}
	for field, spoil := range map[string]func(*storageprovisioner.MachineManifoldConfig){
		"AccessorsName": func(c *storageprovisioner.MachineManifoldConfig) { c.AccessorsName = "" },
		"Machine":       func(c *storageprovisioner.MachineManifoldConfig) { c.Machine = names.MachineTag{} },
		"StorageDir":    func(c *storageprovisioner.MachineManifoldConfig) { c.StorageDir = "" },
		"Clock":         func(c *storageprovisioner.MachineManifoldConfig) { c.Clock = nil },
		"Retry.Jitter":  func(c *storageprovisioner.MachineManifoldConfig) { c.Retry.Jitter = 2 },
	} {
		config := s.machineConfig(c)
		c.Check(config.Validate(), jc.ErrorIsNil)
		spoil(&config)
		check(field, config, storageprovisioner.MachineManifold(config))
	}
	for field, spoil := range map[string]func(*storageprovisioner.EnvironManifoldConfig){
		"AccessorsName": func(c *storageprovisioner.EnvironManifoldConfig) { c.AccessorsName = "" },
		"Model":         func(c *storageprovisioner.EnvironManifoldConfig) { c.Model = names.ModelTag{} },
		"MaxBatch":      func(c *storageprovisioner.EnvironManifoldConfig) { c.MaxBatch = -1 },
	} {
		config := s.environConfig(c)
		c.Check(config.Validate(), jc.ErrorIsNil)
		spoil(&config)
		check(field, config, storageprovisioner.EnvironManifold(config))
	}
	c.Check(s.started, gc.HasLen, 0)
}

func (s *manifoldSuite) TestResourceErrorReturnedUnchanged(c *gc.C) {
	wrong := errors.New("of another kind")
	for _, err := range []error{dependency.ErrMissing, wrong} {
		getter := dt.NewStubResources(map[string]any{"accessors": err}).Getter()
		_, got := storageprovisioner.MachineManifold(s.machineConfig(c)).Start(context.Background(), getter)
		c.Check(got, gc.Equals, err)
	}
}

// A manifold can set every field of a worker's configuration.
func (s *manifoldSuite) TestManifoldSetsEveryConfigField(c *gc.C) {
	manifold := s.machineConfig(c)
	filled := manifold.ManifoldConfig
	filled.CallContext = envcontext.New
	filled.Retry.Min = time.Second
	filled.TimeLimits.Create = time.Hour
	filled.MaxBatch = 1
	filled.MaxConcurrentCalls = map[storage.ProviderType]int{"dynamic": 1}
	filled.RateLimiters = map[storage.ProviderType]storage.RateLimiter{"dynamic": struct{ storage.RateLimiter }{}}
	filled.UnattachedVolumes = true
	filled.ResyncInterval = time.Hour
	filled.ResyncJitter = 0.5
	filled.Observer = struct{ storageprovisioner.Observer }{}
	var got storageprovisioner.Config
	filled.NewWorker = func(config storageprovisioner.Config) (worker.Worker, error) {
		got = config
		return newStopped(), nil
	}
	manifold.ManifoldConfig = filled
	manifold.Plans = plans.PlanByType
	manifold.Mounts = func() (watcher.NotifyWatcher, error) { return nil, nil }
	getter := stubGetter{s.state.For(names.NewMachineTag("0"))}
	_, err := storageprovisioner.MachineManifold(manifold).Start(context.Background(), getter)
	c.Assert(err, jc.ErrorIsNil)
	var empty []string
	value := reflect.ValueOf(got)
	for i := range value.NumField() {
		if value.Field(i).IsZero() {
			empty = append(empty, value.Type().Field(i).Name)
		}
	}
	c.Check(strings.Join(empty, " "), gc.Equals, "")
}

// newStopped returns a worker that has already stopped.
func newStopped() worker.Worker {
	w := newIdle()
	w.Kill()
	_ = w.Wait()
	return w
}

// stubGetter returns the accessors under any name.
type stubGetter struct{ accessors storageprovisioner.Accessors }

func (g stubGetter) Get(_ string, out any) error {
	*out.(*storageprovisioner.Accessors) = g.accessors
	return nil
}
