package storageprovisioner_test

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/juju/clock/testclock"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	"go.uber.org/goleak"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// baseSuite runs one worker per test on fakes. The provider "dynamic" makes
// storage in the worker's scope; "static" does not make it at any time, and
// "elsewhere" is of the other scope.
type baseSuite struct {
	*journal
	state    *fakeState
	rules    *rules
	source   *fakeSource // of provider "dynamic"
	managed  *fakeSource // of filesystems on volumes
	clock    *testclock.Clock
	log      *fakeLogger
	worker   worker.Worker
	backing  storage.BackingDevices
	machine  bool // the scope is a machine
	barriers int
	others   goleak.Option

	mu        sync.Mutex
	providers map[storage.ProviderType]storage.Provider
}

func (s *baseSuite) SetUpTest(c *gc.C) {
	*s = baseSuite{others: goleak.IgnoreCurrent()}
	s.journal = newJournal()
	s.state = newState(s.journal)
	s.rules = newRules(s.state)
	s.source = newSource(s.journal, s.rules, "")
	s.managed = newSource(s.journal, s.rules, "managed.")
	s.clock = testclock.NewClock(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
	s.log = &fakeLogger{c: c}
}

func (s *baseSuite) TearDownTest(c *gc.C) {
	if s.worker != nil {
		s.worker.Kill()
		s.waited(c)
	}
	c.Check(s.state.living(), gc.HasLen, 0, gc.Commentf("watchers are left"))
	c.Check(s.state.concurrent.Load(), jc.IsFalse, gc.Commentf("accessors were called at the same time"))
	c.Check(s.rules.breaches(), gc.HasLen, 0)
	c.Check(s.clock.WaitAdvance(0, time.Millisecond, 0), jc.ErrorIsNil, gc.Commentf("timers are left"))
	c.Check(goleak.Find(s.others), jc.ErrorIsNil)
}

// waited waits for the worker to end, and returns its error.
func (s *baseSuite) waited(c *gc.C) error {
	done := make(chan error, 1)
	go func() { done <- s.worker.Wait() }()
	return receive(c, done, "the worker's end")
}

// config returns the configuration of a worker on the fakes.
func (s *baseSuite) config(c *gc.C, machine bool) storageprovisioner.Config {
	s.machine = machine
	mine, other := storage.ScopeEnviron, storage.ScopeMachine
	if machine {
		mine, other = other, mine
	}
	s.providers = map[storage.ProviderType]storage.Provider{
		"dynamic":   &fakeProvider{scope: mine, dynamic: true, source: s.source},
		"static":    &fakeProvider{scope: mine, dynamic: false, source: newSource(s.journal, s.rules, "static.")},
		"elsewhere": &fakeProvider{scope: other, dynamic: true, source: newSource(s.journal, s.rules, "elsewhere.")},
	}
	cfg := storageprovisioner.Config{
		Scope:       names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"),
		Volumes:     s.state,
		Filesystems: s.state,
		Life:        s.state,
		Environ:     s.state,
		Machines:    s.state,
		Status:      s.state,
		Clock:       s.clock,
		Logger:      s.log,
		Registry: func(*config.Config) (storage.ProviderRegistry, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return storage.StaticProviderRegistry{Providers: s.providers}, nil
		},
	}
	if machine {
		cfg.Scope = names.NewMachineTag("0")
		cfg.StorageDir = c.MkDir()
		cfg.ManagedFilesystems = func(d storage.BackingDevices) storage.FilesystemSource {
			s.backing = d
			return s.managed
		}
	}
	return cfg
}

// startUnconfigured starts a worker that has not heard of the environment's
// config.
func (s *baseSuite) startUnconfigured(c *gc.C, cfg storageprovisioner.Config) {
	w, err := storageprovisioner.New(cfg)
	c.Assert(err, jc.ErrorIsNil)
	s.worker = w
}

// start starts a worker and lets it read the environment's config.
func (s *baseSuite) start(c *gc.C, cfg storageprovisioner.Config) {
	s.startUnconfigured(c, cfg)
	s.state.environWatcher.send(c, struct{}{})
	if s.machine {
		s.state.deviceWatcher.send(c, struct{}{})
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

// startRemoving starts a worker for the environment on a state that says how to
// remove volumes and filesystems.
func (s *baseSuite) startRemoving(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Volumes, cfg.Filesystems = removing{s.state}, removing{s.state}
	s.start(c, cfg)
}

// Putting things into the model.

func machineTag(id string) string { return names.NewMachineTag(id).String() }

func volumeTag(id string) string { return names.NewVolumeTag(id).String() }

func filesystemTag(id string) string { return names.NewFilesystemTag(id).String() }

// onMachine0 names the attachment of a volume or filesystem to machine 0.
func onMachine0(tag string) params.MachineStorageId {
	return params.MachineStorageId{MachineTag: "machine-0", AttachmentTag: tag}
}

// addMachine adds a machine, which is provisioned unless instance is empty.
func (s *baseSuite) addMachine(id, instance string) {
	s.state.update(func() { s.state.machines[machineTag(id)] = instance })
}

// addVolume adds a volume of 1000 MiB that is not provisioned nor wanted
// anywhere.
func (s *baseSuite) addVolume(id, provider string) *volume {
	v := &volume{
		life: life.Alive,
		params: params.VolumeParams{
			VolumeTag: volumeTag(id), Size: 1000, Provider: provider,
			Attributes: map[string]any{"speed": "high"}, Tags: map[string]string{"owner": "ops"},
		},
	}
	s.state.update(func() { s.state.volumes[v.params.VolumeTag] = v })
	return v
}

// addVolumeOn adds a volume that is not provisioned, and is wanted on a host.
func (s *baseSuite) addVolumeOn(host, id, provider string) (*volume, *volumeAttachment) {
	return s.addVolume(id, provider), s.addVolumeAttachment(host, id, provider)
}

// addVolumeAttachment adds the attachment of a volume to a host.
func (s *baseSuite) addVolumeAttachment(host, id, provider string) *volumeAttachment {
	a := &volumeAttachment{
		life:   life.Alive,
		params: params.VolumeAttachmentParams{VolumeTag: volumeTag(id), MachineTag: host, Provider: provider, ReadOnly: true},
	}
	s.state.update(func() {
		s.state.volumeAttachments[params.MachineStorageId{MachineTag: host, AttachmentTag: volumeTag(id)}] = a
	})
	return a
}

// provisionVolume records a volume as if it had been made long ago.
func (s *baseSuite) provisionVolume(v *volume) {
	s.state.update(func() {
		tag, _ := names.ParseVolumeTag(v.params.VolumeTag)
		v.info = &params.VolumeInfo{VolumeId: "vol-" + tag.Id(), Size: v.params.Size}
	})
}

// provisionVolumeAttachment records an attachment as if it had been made long
// ago.
func (s *baseSuite) provisionVolumeAttachment(a *volumeAttachment) {
	s.state.update(func() { a.info = &params.VolumeAttachmentInfo{DeviceName: "sdz"} })
}

// addFilesystem adds a filesystem of 1000 MiB that is not provisioned. volume is
// the id of the volume beneath it, or empty.
func (s *baseSuite) addFilesystem(id, provider, volume string) *filesystem {
	f := &filesystem{
		life: life.Alive,
		params: params.FilesystemParams{
			FilesystemTag: filesystemTag(id), Size: 1000, Provider: provider,
			Attributes: map[string]any{"speed": "high"}, Tags: map[string]string{"owner": "ops"},
		},
	}
	if volume != "" {
		f.params.VolumeTag = volumeTag(volume)
	}
	s.state.update(func() { s.state.filesystems[f.params.FilesystemTag] = f })
	return f
}

// addFilesystemAttachment adds the attachment of a filesystem to a host.
func (s *baseSuite) addFilesystemAttachment(host, id, provider string) *filesystemAttachment {
	a := &filesystemAttachment{
		life: life.Alive,
		params: params.FilesystemAttachmentParams{
			FilesystemTag: filesystemTag(id), MachineTag: host, Provider: provider, MountPoint: "/srv/" + id, ReadOnly: true,
		},
	}
	s.state.update(func() {
		s.state.filesystemAttachments[params.MachineStorageId{MachineTag: host, AttachmentTag: filesystemTag(id)}] = a
	})
	return a
}

// provisionFilesystem records a filesystem as if it had been made long ago.
func (s *baseSuite) provisionFilesystem(f *filesystem) {
	s.state.update(func() {
		tag, _ := names.ParseFilesystemTag(f.params.FilesystemTag)
		f.info = &params.FilesystemInfo{FilesystemId: "fs-" + tag.Id(), Size: f.params.Size}
	})
}

// provisionFilesystemAttachment records an attachment as if it had been made long
// ago.
func (s *baseSuite) provisionFilesystemAttachment(a *filesystemAttachment) {
	s.state.update(func() { a.info = &params.FilesystemAttachmentInfo{MountPoint: a.params.MountPoint} })
}

// setLife sets the life of anything in the model.
func (s *baseSuite) setLife(l *life.Value, to life.Value) {
	s.state.update(func() { *l = to })
}

// addDevice gives a volume on machine 0 a block device.
func (s *baseSuite) addDevice(volume string, device storage.BlockDevice) {
	s.state.update(func() { s.state.devices[onMachine0(volumeTag(volume))] = device })
}

// Telling the worker of changes.

func (s *baseSuite) volumesChanged(c *gc.C, ids ...string) {
	s.state.volumeWatcher.send(c, ids)
}

func (s *baseSuite) filesystemsChanged(c *gc.C, ids ...string) {
	s.state.filesystemWatcher.send(c, ids)
}

func (s *baseSuite) volumeAttachmentsChanged(c *gc.C, host string, volumes ...string) {
	var ids []params.MachineStorageId
	for _, v := range volumes {
		ids = append(ids, params.MachineStorageId{MachineTag: host, AttachmentTag: volumeTag(v)})
	}
	s.state.volumeAttachmentWatcher.send(c, ids)
}

func (s *baseSuite) filesystemAttachmentsChanged(c *gc.C, host string, filesystems ...string) {
	var ids []params.MachineStorageId
	for _, f := range filesystems {
		ids = append(ids, params.MachineStorageId{MachineTag: host, AttachmentTag: filesystemTag(f)})
	}
	s.state.filesystemAttachmentWatcher.send(c, ids)
}

func (s *baseSuite) devicesChanged(c *gc.C) {
	s.state.deviceWatcher.send(c, struct{}{})
}

// machineWatcher waits for a machine to be watched, and returns its watcher.
func (s *baseSuite) machineWatcher(c *gc.C, id string) *fakeWatcher[struct{}] {
	s.nextAbout(c, "WatchMachine", machineTag(id))
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return s.state.machineWatchers[machineTag(id)]
}

// Seeing what the worker does.

// statuses waits for the next call of SetStatus, and returns what it sets:
// "volume-0 attached" or "volume-0 pending: message".
func (s *baseSuite) statuses(c *gc.C) []string {
	var statuses []string
	for _, args := range next[[]params.EntityStatusArgs](c, s.journal, "SetStatus") {
		status := args.Tag + " " + args.Status
		if args.Info != "" {
			status += ": " + args.Info
		}
		statuses = append(statuses, status)
	}
	slices.Sort(statuses)
	return statuses
}

// barrier has a volume and a filesystem made and attached, from the events to the
// last record. All that the worker was going to do before is done then, unless it
// is in a provider's hands or waits for the clock. Calls about the barrier's
// entities alone are not seen by tests.
func (s *baseSuite) barrier(c *gc.C) {
	s.barriers++
	id := strconv.Itoa(9000 + s.barriers)
	const host = "machine-9000"
	backed := strconv.Itoa(9500 + s.barriers)
	volume, filesystem, onVolume := volumeTag(id), filesystemTag(id), filesystemTag(backed)
	s.hide(host, volume, filesystem, onVolume, volume+" "+host, filesystem+" "+host, onVolume+" "+host)

	s.addMachine("9000", "instance-9000")
	s.addVolumeOn(host, id, "dynamic")
	s.addFilesystem(id, "dynamic", "")
	s.addFilesystemAttachment(host, id, "dynamic")
	filesystems := []string{id}
	if s.machine {
		s.addFilesystem(backed, "dynamic", id)
		s.addFilesystemAttachment(host, backed, "dynamic")
		s.state.update(func() {
			for _, machine := range []string{host, "machine-0"} {
				s.state.devices[params.MachineStorageId{MachineTag: machine, AttachmentTag: volume}] = storage.BlockDevice{DeviceName: "barrier"}
			}
		})
		filesystems = append(filesystems, backed)
	}
	s.volumesChanged(c, id)
	s.filesystemsChanged(c, filesystems...)
	s.volumeAttachmentsChanged(c, host, id)
	s.filesystemAttachmentsChanged(c, host, filesystems...)

	s.nextAbout(c, "SetVolumeAttachmentInfo", volume+" "+host)
	for _, f := range filesystems {
		s.nextAbout(c, "SetFilesystemAttachmentInfo", filesystemTag(f)+" "+host)
	}
}

// advance advances the clock when there is one timer, and no more.
func (s *baseSuite) advance(c *gc.C, d time.Duration) {
	c.Assert(s.clock.WaitAdvance(d, longWait, 1), jc.ErrorIsNil)
}

// noTimer waits until there is no timer.
func (s *baseSuite) noTimer(c *gc.C) {
	c.Assert(s.clock.WaitAdvance(0, longWait, 0), jc.ErrorIsNil)
}

// providerCalls are the calls of sources that do something.
var providerCalls = []string{
	"CreateVolumes", "DestroyVolumes", "ReleaseVolumes", "AttachVolumes", "DetachVolumes",
	"CreateFilesystems", "DestroyFilesystems", "ReleaseFilesystems", "AttachFilesystems", "DetachFilesystems",
	"static.CreateVolumes", "static.DestroyVolumes", "static.ReleaseVolumes", "static.AttachVolumes", "static.DetachVolumes",
	"static.CreateFilesystems", "static.DestroyFilesystems", "static.ReleaseFilesystems", "static.AttachFilesystems", "static.DetachFilesystems",
	"elsewhere.CreateVolumes", "elsewhere.DestroyVolumes", "elsewhere.ReleaseVolumes", "elsewhere.AttachVolumes", "elsewhere.DetachVolumes",
	"elsewhere.CreateFilesystems", "elsewhere.DestroyFilesystems", "elsewhere.ReleaseFilesystems", "elsewhere.AttachFilesystems", "elsewhere.DetachFilesystems",
	"managed.CreateFilesystems", "managed.DestroyFilesystems", "managed.ReleaseFilesystems", "managed.AttachFilesystems", "managed.DetachFilesystems",
}

// stateCalls are the accessor calls that change the state.
var stateCalls = []string{
	"SetVolumeInfo", "SetVolumeAttachmentInfo", "SetFilesystemInfo", "SetFilesystemAttachmentInfo",
	"Remove", "RemoveAttachments", "SetStatus",
}

// deeds returns the calls so far that did something, in order.
func (s *baseSuite) deeds() []string {
	return s.order(slices.Concat(providerCalls, stateCalls)...)
}

// deedsAbout returns the calls so far that did something about an entity, in
// order.
func (s *baseSuite) deedsAbout(subject string) []string {
	return s.about(subject, slices.Concat(providerCalls, stateCalls)...)
}

// fakeLogger keeps warnings, and hands all to the test's log.
type fakeLogger struct {
	c  *gc.C
	mu sync.Mutex
	// warnings are those of Warningf and Errorf.
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
