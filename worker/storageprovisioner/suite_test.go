package storageprovisioner_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	"go.uber.org/goleak"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/clocktest"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/testing/watchertest"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// baseSuite runs one worker per test on fakes. The provider "dynamic" creates storage in
// the worker's scope, "static" never creates any, and "elsewhere" is of the other scope.
//
// The worker's watchers send only the events that the test feeds them: a change of the
// model does not notify the worker.
type baseSuite struct {
	*calls.Journal
	state    *modeltest.Model
	fed      modeltest.Watchers
	rules    *providerfake.Rules
	source   *providerfake.Provider // "dynamic"
	managed  *providerfake.Provider // of filesystems on volumes
	clock    *clocktest.Clock
	log      *fakeLogger
	worker   worker.Worker
	backing  storage.BackingDevices
	machine  bool // the scope is a machine
	barriers int
	others   goleak.Option

	mu              sync.Mutex
	providers       map[storage.ProviderType]storage.Provider
	machineWatchers map[string]*watchertest.Notify
}

func (s *baseSuite) SetUpTest(c *gc.C) {
	*s = baseSuite{others: goleak.IgnoreCurrent(), machineWatchers: make(map[string]*watchertest.Notify)}
	s.Journal = calls.NewJournal()
	s.fed = modeltest.Watchers{
		EnvironConfig:         watchertest.New[struct{}](),
		BlockDevices:          watchertest.New[struct{}](),
		Volumes:               watchertest.New[[]string](),
		Filesystems:           watchertest.New[[]string](),
		VolumeAttachments:     watchertest.New[[]params.MachineStorageId](),
		FilesystemAttachments: watchertest.New[[]params.MachineStorageId](),
		Machine:               s.watchMachine,
	}
	s.state = modeltest.New(modeltest.Options{Journal: s.Journal, ByHand: s.fed})
	s.state.SetEnvironConfig(map[string]any{"name": "site"})
	s.rules = providerfake.NewRules(s.state)
	s.source = s.provider("")
	s.managed = s.provider("managed.")
	s.clock = clocktest.New()
	s.log = &fakeLogger{c: c}
}

// provider returns a provider whose calls have a prefix in the journal.
func (s *baseSuite) provider(prefix string) *providerfake.Provider {
	return providerfake.New(providerfake.Options{Journal: s.Journal, Rules: s.rules, Prefix: prefix})
}

// watchMachine gives the worker a watcher of a machine. Its first event is already
// queued.
func (s *baseSuite) watchMachine(machine names.MachineTag) *watchertest.Notify {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := watchertest.New(struct{}{})
	s.machineWatchers[machine.String()] = w
	return w
}

func (s *baseSuite) TearDownTest(c *gc.C) {
	if s.worker != nil {
		s.worker.Kill()
		s.waited(c)
	}
	c.Check(s.state.Close(), gc.HasLen, 0, gc.Commentf("watchers that were not stopped"))
	c.Check(s.state.Overlapped(), jc.IsFalse, gc.Commentf("accessors were called concurrently"))
	c.Check(s.rules.Breaches(), gc.HasLen, 0)
	c.Check(s.clock.Timers(), gc.HasLen, 0, gc.Commentf("timers that were not stopped"))
	c.Check(leaktest.Find(s.others), jc.ErrorIsNil)
}

// waited waits for the worker to end, and returns its error.
func (s *baseSuite) waited(c *gc.C) error {
	done := make(chan error, 1)
	go func() { done <- s.worker.Wait() }()
	return receive(c, done, "the worker's end")
}

// receive waits for a value, or for the channel to be closed. what names the value for the
// failure message.
func receive[T any](c *gc.C, ch <-chan T, what string) T {
	timeout := time.NewTimer(calls.Patience)
	defer timeout.Stop()
	select {
	case v := <-ch:
		return v
	case <-timeout.C:
		c.Fatalf("timed out waiting for %s", what)
	}
	panic("unreachable")
}

// config returns the configuration of a worker on the fakes. The state has the
// given optional capabilities.
func (s *baseSuite) config(c *gc.C, machine bool, with ...modeltest.Capability) storageprovisioner.Config {
	s.machine = machine
	mine, other := storage.ScopeEnviron, storage.ScopeMachine
	var scope names.Tag = names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d")
	if machine {
		mine, other = other, mine
		scope = names.NewMachineTag("0")
	}
	static, elsewhere := s.provider("static."), s.provider("elsewhere.")
	s.source.Options.Scope = mine
	static.Options.Scope, static.Options.Static = mine, true
	elsewhere.Options.Scope = other
	s.providers = map[storage.ProviderType]storage.Provider{
		"dynamic": s.source, "static": static, "elsewhere": elsewhere,
	}
	cfg := s.state.Config(scope, with...)
	cfg.Clock = s.clock
	cfg.Logger = s.log
	cfg.Registry = func(*config.Config) (storage.ProviderRegistry, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return storage.StaticProviderRegistry{Providers: s.providers}, nil
	}
	if machine {
		cfg.StorageDir = c.MkDir()
		cfg.ManagedFilesystems = func(d storage.BackingDevices) storage.FilesystemSource {
			s.backing = d
			return s.managed
		}
	}
	return cfg
}

// startUnconfigured starts a worker that has no event of the environment's config yet.
func (s *baseSuite) startUnconfigured(c *gc.C, cfg storageprovisioner.Config) {
	w, err := storageprovisioner.New(cfg)
	c.Assert(err, jc.ErrorIsNil)
	s.worker = w
}

// start starts a worker and lets it read the environment's config.
func (s *baseSuite) start(c *gc.C, cfg storageprovisioner.Config) {
	s.startUnconfigured(c, cfg)
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	if s.machine {
		s.fed.BlockDevices.Deliver(c, struct{}{})
	}
}

// startEnviron starts a worker for the environment.
func (s *baseSuite) startEnviron(c *gc.C) {
	s.start(c, s.config(c, false))
}

// startMachine starts a worker for machine 0.
func (s *baseSuite) startMachine(c *gc.C) {
	s.start(c, s.config(c, true))
}

// startRemoving starts a worker for the environment on a state that says whether to
// destroy or release dead storage.
func (s *baseSuite) startRemoving(c *gc.C) {
	s.start(c, s.config(c, false, modeltest.Removal))
}

// Changes of the model.

func machineTag(id string) string { return names.NewMachineTag(id).String() }

func volumeTag(id string) string { return names.NewVolumeTag(id).String() }

func filesystemTag(id string) string { return names.NewFilesystemTag(id).String() }

// onMachine0 names the attachment of a volume or filesystem to machine 0.
func onMachine0(tag string) params.MachineStorageId {
	return params.MachineStorageId{MachineTag: "machine-0", AttachmentTag: tag}
}

// addMachine adds a machine, which is provisioned unless instance is empty.
func (s *baseSuite) addMachine(id, instance string) {
	s.state.ProvisionMachine(machineTag(id), instance)
}

// volumeParams are the parameters of a volume of 1000 MiB.
func volumeParams(id, provider string) params.VolumeParams {
	return params.VolumeParams{
		VolumeTag: volumeTag(id), Size: 1000, Provider: provider,
		Attributes: map[string]any{"speed": "high"}, Tags: map[string]string{"owner": "ops"},
	}
}

// addVolume adds a volume that is not provisioned and has no attachment, and returns its
// tag.
func (s *baseSuite) addVolume(id, provider string) string {
	s.state.AddVolume(volumeParams(id, provider))
	return volumeTag(id)
}

// addVolumeOn adds a volume that is not provisioned, and its attachment to a host.
func (s *baseSuite) addVolumeOn(host, id, provider string) (string, params.MachineStorageId) {
	return s.addVolume(id, provider), s.addVolumeAttachment(host, id, provider)
}

// addVolumeAttachment adds the attachment of a volume to a host.
func (s *baseSuite) addVolumeAttachment(host, id, provider string) params.MachineStorageId {
	s.state.AttachVolume(params.VolumeAttachmentParams{
		VolumeTag: volumeTag(id), MachineTag: host, Provider: provider, ReadOnly: true,
	})
	return params.MachineStorageId{MachineTag: host, AttachmentTag: volumeTag(id)}
}

// provisionVolume records a volume as already created.
func (s *baseSuite) provisionVolume(tag string) {
	s.state.ProvisionVolume(tag, params.VolumeInfo{VolumeId: "vol-" + idOf(tag), Size: 1000})
}

// provisionVolumeAttachment records an attachment as already made.
func (s *baseSuite) provisionVolumeAttachment(a params.MachineStorageId) {
	s.state.ProvisionVolumeAttachment(a.MachineTag, a.AttachmentTag, params.VolumeAttachmentInfo{DeviceName: "sdz"})
}

// filesystemParams are the parameters of a filesystem.
func filesystemParams(id, provider, volume string) params.FilesystemParams {
	p := params.FilesystemParams{
		FilesystemTag: filesystemTag(id), Size: 1000, Provider: provider,
		Attributes: map[string]any{"speed": "high"}, Tags: map[string]string{"owner": "ops"},
	}
	if volume != "" {
		p.VolumeTag = volumeTag(volume)
	}
	return p
}

// addFilesystem adds a filesystem of 1000 MiB that is not provisioned, and returns
// its tag. volume is the ID of its backing volume, or empty.
func (s *baseSuite) addFilesystem(id, provider, volume string) string {
	p := filesystemParams(id, provider, volume)
	s.state.AddFilesystem(p)
	return p.FilesystemTag
}

// filesystemAttachmentParams are the parameters of an attachment.
func filesystemAttachmentParams(host, id, provider string) params.FilesystemAttachmentParams {
	return params.FilesystemAttachmentParams{
		FilesystemTag: filesystemTag(id), MachineTag: host, Provider: provider, MountPoint: "/srv/" + id, ReadOnly: true,
	}
}

// addFilesystemAttachment adds the attachment of a filesystem to a host.
func (s *baseSuite) addFilesystemAttachment(host, id, provider string) params.MachineStorageId {
	s.state.AttachFilesystem(filesystemAttachmentParams(host, id, provider))
	return params.MachineStorageId{MachineTag: host, AttachmentTag: filesystemTag(id)}
}

// provisionFilesystem records a filesystem as already created.
func (s *baseSuite) provisionFilesystem(tag string) {
	s.state.ProvisionFilesystem(tag, params.FilesystemInfo{FilesystemId: "fs-" + idOf(tag), Size: 1000})
}

// provisionFilesystemAttachment records an attachment as already made.
func (s *baseSuite) provisionFilesystemAttachment(a params.MachineStorageId) {
	s.state.ProvisionFilesystemAttachment(a.MachineTag, a.AttachmentTag,
		params.FilesystemAttachmentInfo{MountPoint: "/srv/" + idOf(a.AttachmentTag)})
}

// idOf returns the id of a volume or filesystem.
func idOf(tag string) string {
	_, id, _ := strings.Cut(tag, "-")
	return id
}

// setLife sets the life of a volume or filesystem, named by its tag, or of an
// attachment.
func (s *baseSuite) setLife(entity any, to life.Value) {
	if a, ok := entity.(params.MachineStorageId); ok {
		s.state.SetAttachmentLife(a.MachineTag, a.AttachmentTag, to)
	} else {
		s.state.SetLife(entity.(string), to)
	}
}

// setDead makes a volume or filesystem without attachments dead, to be released or
// destroyed.
func (s *baseSuite) setDead(tag string, release bool) {
	if release {
		s.state.Release(tag)
	} else {
		s.state.Destroy(tag)
	}
}

// addDevice sets the block device of a volume on machine 0.
func (s *baseSuite) addDevice(volume string, device storage.BlockDevice) {
	s.state.SetBlockDevice("machine-0", volumeTag(volume), device)
}

// Events for the worker.

func (s *baseSuite) volumesChanged(c *gc.C, ids ...string) {
	s.fed.Volumes.Send(ids)
}

func (s *baseSuite) filesystemsChanged(c *gc.C, ids ...string) {
	s.fed.Filesystems.Send(ids)
}

func (s *baseSuite) volumeAttachmentsChanged(c *gc.C, host string, volumes ...string) {
	var ids []params.MachineStorageId
	for _, v := range volumes {
		ids = append(ids, params.MachineStorageId{MachineTag: host, AttachmentTag: volumeTag(v)})
	}
	s.fed.VolumeAttachments.Send(ids)
}

func (s *baseSuite) filesystemAttachmentsChanged(c *gc.C, host string, filesystems ...string) {
	var ids []params.MachineStorageId
	for _, f := range filesystems {
		ids = append(ids, params.MachineStorageId{MachineTag: host, AttachmentTag: filesystemTag(f)})
	}
	s.fed.FilesystemAttachments.Send(ids)
}

func (s *baseSuite) devicesChanged(c *gc.C) {
	s.fed.BlockDevices.Deliver(c, struct{}{})
}

// machineWatcher waits until a machine is watched, and returns its latest watcher.
func (s *baseSuite) machineWatcher(c *gc.C, id string) *watchertest.Notify {
	var w *watchertest.Notify
	s.Await(c, "a watcher of machine "+id, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		w = s.machineWatchers[machineTag(id)]
		return w != nil
	})
	return w
}

// Calls of the worker.

// statuses waits for the next call of SetStatus, and returns what it sets:
// "volume-0 attached" or "volume-0 pending: message".
func (s *baseSuite) statuses(c *gc.C) []string {
	var statuses []string
	for _, args := range calls.NextArgs[[]params.EntityStatusArgs](c, s.Journal, "SetStatus") {
		status := args.Tag + " " + args.Status
		if args.Info != "" {
			status += ": " + args.Info
		}
		statuses = append(statuses, status)
	}
	slices.Sort(statuses)
	return statuses
}

// barrier has the worker create and attach a volume and a filesystem, and waits until
// both are recorded. The worker has then done everything that was due before, except for
// provider calls that still run and for what waits for the clock. The journal hides calls
// that are only about the barrier's own entities.
func (s *baseSuite) barrier(c *gc.C) {
	s.barriers++
	id := strconv.Itoa(9000 + s.barriers)
	const host = "machine-9000"
	backed := strconv.Itoa(9500 + s.barriers)
	volume, filesystem, onVolume := volumeTag(id), filesystemTag(id), filesystemTag(backed)
	s.Hide(host, volume, filesystem, onVolume, volume+" "+host, filesystem+" "+host, onVolume+" "+host)

	s.addMachine("9000", "instance-9000")
	s.addVolumeOn(host, id, "dynamic")
	s.addFilesystem(id, "dynamic", "")
	s.addFilesystemAttachment(host, id, "dynamic")
	filesystems := []string{id}
	if s.machine {
		s.addFilesystem(backed, "dynamic", id)
		s.addFilesystemAttachment(host, backed, "dynamic")
		for _, machine := range []string{host, "machine-0"} {
			s.state.SetBlockDevice(machine, volume, storage.BlockDevice{DeviceName: "barrier"})
		}
		filesystems = append(filesystems, backed)
	}
	s.volumesChanged(c, id)
	s.filesystemsChanged(c, filesystems...)
	s.volumeAttachmentsChanged(c, host, id)
	s.filesystemAttachmentsChanged(c, host, filesystems...)

	s.AwaitCall(c, "SetVolumeAttachmentInfo", volume+" "+host)
	for _, f := range filesystems {
		s.AwaitCall(c, "SetFilesystemAttachmentInfo", filesystemTag(f)+" "+host)
	}
}

// advance waits until there is exactly one timer, and advances the clock.
func (s *baseSuite) advance(c *gc.C, d time.Duration) {
	s.clock.Step(c, d, 1)
}

// noTimer waits until there is no timer.
func (s *baseSuite) noTimer(c *gc.C) {
	s.clock.Step(c, 0, 0)
}

// providerCalls are the calls of sources that change storage.
var providerCalls = []string{
	"CreateVolumes", "DestroyVolumes", "ReleaseVolumes", "AttachVolumes", "DetachVolumes",
	"CreateFilesystems", "DestroyFilesystems", "ReleaseFilesystems", "AttachFilesystems", "DetachFilesystems",
	"static.CreateVolumes", "static.DestroyVolumes", "static.ReleaseVolumes", "static.AttachVolumes", "static.DetachVolumes",
	"static.CreateFilesystems", "static.DestroyFilesystems", "static.ReleaseFilesystems", "static.AttachFilesystems", "static.DetachFilesystems",
	"elsewhere.CreateVolumes", "elsewhere.DestroyVolumes", "elsewhere.ReleaseVolumes", "elsewhere.AttachVolumes", "elsewhere.DetachVolumes",
	"elsewhere.CreateFilesystems", "elsewhere.DestroyFilesystems", "elsewhere.ReleaseFilesystems", "elsewhere.AttachFilesystems", "elsewhere.DetachFilesystems",
	"ResizeVolumes", "ResizeFilesystems", "static.ResizeVolumes", "static.ResizeFilesystems",
	"elsewhere.ResizeVolumes", "elsewhere.ResizeFilesystems", "managed.ResizeFilesystems",
	"managed.CreateFilesystems", "managed.DestroyFilesystems", "managed.ReleaseFilesystems", "managed.AttachFilesystems", "managed.DetachFilesystems",
}

// stateCalls are the accessor calls that change the state.
var stateCalls = []string{
	"SetVolumeInfo", "SetVolumeAttachmentInfo", "SetFilesystemInfo", "SetFilesystemAttachmentInfo",
	"Remove", "RemoveAttachments", "SetStatus",
}

// deeds returns the calls so far that changed storage or the state, in order.
func (s *baseSuite) deeds() []string {
	return s.Names(slices.Concat(providerCalls, stateCalls)...)
}

// deedsAbout returns the calls so far that changed an entity or its storage, in order.
func (s *baseSuite) deedsAbout(subject string) []string {
	return s.About(subject, slices.Concat(providerCalls, stateCalls)...)
}

// fakeLogger keeps warnings, and writes everything to the log of the test.
type fakeLogger struct {
	c  *gc.C
	mu sync.Mutex
	// warnings are the messages of Warningf and Errorf.
	warnings []string
}

func (l *fakeLogger) log(level, format string, args ...any) string {
	message := fmt.Sprintf(format, args...)
	l.c.Logf("%s %s", level, message)
	return message
}

func (l *fakeLogger) warn(level, format string, args ...any) {
	message := l.log(level, format, args...)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.warnings = append(l.warnings, message)
}

func (l *fakeLogger) Tracef(format string, args ...any)   { l.log("TRACE", format, args...) }
func (l *fakeLogger) Debugf(format string, args ...any)   { l.log("DEBUG", format, args...) }
func (l *fakeLogger) Warningf(format string, args ...any) { l.warn("WARNING", format, args...) }
func (l *fakeLogger) Errorf(format string, args ...any)   { l.warn("ERROR", format, args...) }

func (l *fakeLogger) warned() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.warnings)
}
