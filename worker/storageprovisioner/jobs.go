package storageprovisioner

import (
	"maps"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/translate"
)

// todo is what the loop will ask of the clerk next, besides what the core wants to read. It
// collects the changes that occur while the clerk is busy, so that a burst of changes costs
// few calls.
type todo struct {
	// config says whether to read the environment's configuration.
	config configState
	// mounts says to read which mounts have changed.
	mounts bool
	// attempts are the batches whose attempts the state must note before they run.
	attempts []plan.Batch
	// hosts are the machines to watch unless they are provisioned.
	hosts set[string]
	// instances are the watched machines whose instance IDs must be read.
	instances set[string]
}

// configState says whether the environment's configuration may have changed since it was last
// read.
type configState int

const (
	configKnown configState = iota
	// configDoubted: it may have changed. It is read, and acted on only if it has changed.
	configDoubted
	// configChanged: its watcher has reported a change. It is read and acted on in any case.
	configChanged
)

func (t *todo) empty() bool {
	return len(t.hosts.list) == 0 && len(t.instances.list) == 0
}

// set is a set that keeps the order of addition.
type set[T comparable] struct {
	list []T
	seen map[T]struct{}
}

func (s *set[T]) add(values ...T) {
	for _, value := range values {
		if _, ok := s.seen[value]; ok {
			continue
		}
		if s.seen == nil {
			s.seen = make(map[T]struct{})
		}
		s.seen[value] = struct{}{}
		s.list = append(s.list, value)
	}
}

// watchEnviron starts the watchers that run from the beginning: all but those of volumes,
// filesystems, their attachments and machines.
func (l *loop) watchEnviron() (reply, error) {
	group := newWatcherGroup(l.config.guard)
	environ := startWatcher(group, "environment config", l.config.Environ.WatchForEnvironConfigChanges)
	var devices <-chan struct{}
	var planned <-chan []params.MachineStorageId
	var formats <-chan []string
	var mounts <-chan struct{}
	var changed changedMounts
	if machine, ok := l.config.machine(); ok {
		devices = startWatcher(group, "block devices", func() (watcher.NotifyWatcher, error) {
			return l.config.Volumes.WatchBlockDevices(machine)
		})
		if l.config.Mounts != nil {
			mounts = startWatcher(group, "mounts", func() (watcher.NotifyWatcher, error) {
				w, err := l.config.Mounts()
				changed, _ = w.(changedMounts)
				return w, err
			})
		}
		if accessor, ok := l.config.formats(); ok {
			formats = startWatcher(group, "formats", accessor.WatchFormats)
		}
		if accessor, ok := l.config.plans(); ok {
			planned = startWatcher(group, "attachment plans", accessor.WatchVolumeAttachmentPlans)
		}
	}
	var retries <-chan []string
	if accessor, ok := l.config.retries(); ok {
		retries = startWatcher(group, "retries", accessor.WatchRetries)
	}
	if err := group.result(); err != nil {
		return nil, err
	}
	return func() {
		l.own(group)
		l.watches.environ = environ
		l.watches.retries = retries
		l.watches.formats = formats
		l.watches.blockDevices = devices
		l.watches.mounts, l.watches.changedMounts = mounts, changed
		l.watches.plans = planned
	}, nil
}

// readEnviron reads the environment's configuration. The first time, it also starts to watch
// the storage.
func (l *loop) readEnviron() job {
	known := l.environ
	keep := known
	if l.todo.config == configChanged {
		keep = nil
	}
	l.todo.config = configKnown
	return func() (reply, error) {
		environ, err := readEnviron(l.config, l.backing, keep)
		if err != nil {
			return nil, err
		}
		if environ == known {
			return func() {}, nil
		}
		if known != nil {
			return func() {
				l.environ = environ
				l.core.Refresh()
			}, nil
		}
		group := newWatcherGroup(l.config.guard)
		volumes := startWatcher(group, "volumes", l.config.Volumes.WatchVolumes)
		filesystems := startWatcher(group, "filesystems", l.config.Filesystems.WatchFilesystems)
		volumeAttachments := startWatcher(group, "volume attachments", l.config.Volumes.WatchVolumeAttachments)
		filesystemAttachments := startWatcher(group, "filesystem attachments", l.config.Filesystems.WatchFilesystemAttachments)
		if err := group.result(); err != nil {
			return nil, err
		}
		return func() {
			l.environ = environ
			l.own(group)
			l.watches.volumes = volumes
			l.watches.filesystems = filesystems
			l.watches.volumeAttachments = volumeAttachments
			l.watches.filesystemAttachments = filesystemAttachments
			l.scheduleResync(l.config.Clock.Now())
		}, nil
	}
}

// watcherGroup is a group of watchers that start together: all of them or no watcher.
type watcherGroup struct {
	guard    *guard.Guard
	watchers map[string]worker.Worker
	err      error
}

func newWatcherGroup(g *guard.Guard) *watcherGroup {
	return &watcherGroup{guard: g, watchers: make(map[string]worker.Worker)}
}

// changeWatcher is a watcher of any kind.
type changeWatcher[T any] interface {
	worker.Worker
	Changes() <-chan T
}

// startWatcher starts a watcher of the group and returns the channel of its changes. It does
// nothing if an earlier watcher of the group could not be started.
func startWatcher[W changeWatcher[T], T any](group *watcherGroup, what string, watch func() (W, error)) <-chan T {
	if group.err != nil {
		return nil
	}
	var changes <-chan T
	doing := "watching " + what
	err := group.guard.CallErr(guard.Accessor, func() string { return doing }, func() error {
		w, err := watch()
		if err = requireValue(w, err); err != nil {
			return err
		}
		group.watchers[what] = guardedWatcher{w, group.guard, doing}
		changes = w.Changes()
		return nil
	})
	group.err = errors.Annotate(err, doing)
	return changes
}

// guardedWatcher wraps a watcher so that its methods do not panic: Wait returns a panic as an
// error, and a panic in Kill is only logged.
type guardedWatcher struct {
	worker.Worker
	guard *guard.Guard
	doing string
}

// Kill implements worker.Worker.
func (w guardedWatcher) Kill() {
	// The guard logs a panic. Wait returns how the watcher ended.
	_ = w.guard.CallInGoroutine(guard.Watcher, w.what, w.Worker.Kill)
}

// Wait implements worker.Worker.
func (w guardedWatcher) Wait() error {
	var err error
	caught := w.guard.CallInGoroutine(guard.Watcher, w.what, func() { err = guard.SanitizeError(w.Worker.Wait()) })
	if caught != nil {
		return caught
	}
	return err
}

func (w guardedWatcher) what() string { return w.doing }

// result returns the error of the watcher that could not be started, after stopping the rest
// of the group, or nil.
func (g *watcherGroup) result() error {
	if g.err == nil {
		return nil
	}
	for _, w := range g.watchers {
		w.Kill()
	}
	for _, w := range g.watchers {
		// The error of a stopped watcher adds nothing to why the worker ends.
		_ = w.Wait()
	}
	return g.err
}

// own makes the loop the owner of the watchers of a group.
func (l *loop) own(group *watcherGroup) {
	maps.Copy(l.watches.all, group.watchers)
	for what, w := range group.watchers {
		l.others.Go(func() { l.reportEnd(w, endedWatch{what: what}) })
	}
}

// reportEnd waits for a watcher to end and reports that to the loop.
func (l *loop) reportEnd(w worker.Worker, end endedWatch) {
	end.err = w.Wait()
	select {
	case l.ended <- end:
	case <-l.ctx.Done():
	}
}

// noteAttempts notes in the state what the batches are about to make, then dispatches the
// operations that are still wanted.
func (l *loop) noteAttempts(batches []plan.Batch) job {
	state := l.config.state()
	return func() (reply, error) {
		var all []plan.Subject
		for _, batch := range batches {
			all = append(all, batch.Unnoted()...)
		}
		errs, err := state.NoteAttempts(all)
		if err != nil {
			return nil, err
		}
		return func() {
			if l.ctx.Err() != nil {
				return // the next start of the worker finds out that nothing was made
			}
			for _, batch := range batches {
				n := len(batch.Unnoted())
				batch = l.core.Noted(batch, errs[:n])
				errs = errs[n:]
				if len(batch.Items) > 0 {
					l.dispatch(batch)
				}
			}
		}, nil
	}
}

// readMounts reads which mounts have changed, and checks the filesystems that this concerns.
func (l *loop) readMounts() job {
	l.todo.mounts = false
	l.core.ReadingMounts()
	w, begun := l.watches.changedMounts, l.config.Clock.Now()
	return func() (reply, error) {
		var paths []string
		var all bool
		err := l.config.guard.Call(guard.Watcher, func() string { return "reading the changes of mounts" }, func() {
			paths, all = w.ChangedMounts()
		})
		return func() {
			now := l.config.Clock.Now()
			l.pauseMountChecks(now, now.Sub(begun))
			if all || err != nil {
				l.core.CheckAllMounts()
			} else {
				l.core.CheckMounts(paths)
			}
		}, nil
	}
}

// maxRead caps how many entities, and how many block devices, are read at once. It is large
// enough for the overhead of the calls not to matter, and small enough for the loop to handle
// other events soon.
const maxRead = 1 << 14

// read reads the entities, block devices and machines that must be read.
func (l *loop) read() job {
	t := l.todo
	l.todo = todo{attempts: t.attempts, mounts: t.mounts}
	environ := l.environ
	subjects, volumes := l.core.Unread(maxRead), l.core.Devices(maxRead)
	buffer := l.factBuffer
	l.factBuffer = nil
	return func() (reply, error) {
		r := environ.newReader()
		entities, err := r.Read(subjects, buffer)
		if err != nil {
			return nil, err
		}
		devices, err := lookUp(l.config, volumes)
		if err != nil {
			return nil, err
		}
		machines, err := readMachines(l.config, t.hosts.list, t.instances.list)
		if err != nil {
			return nil, err
		}
		return func() {
			for _, fs := range r.Filesystems {
				l.backing.setFilesystem(fs)
			}
			for _, volume := range r.NewVolumes {
				l.backing.setNew(volume)
			}
			l.observe(entities)
			l.devicesRead(volumes, devices)
			l.machinesRead(machines)
			if l.core.HasUnread() {
				// There is more to read: the next job reuses this slice.
				clear(entities)
				l.factBuffer = entities[:0]
			}
		}, nil
	}
}

// observe passes facts to the core: first those of volumes and filesystems, then those of
// attachments. That is the order in which they were read, so the core learns the latest facts
// last.
func (l *loop) observe(entities []plan.Fact) {
	var unread errorGroups
	for i := range entities {
		if f := &entities[i]; f.Err != nil {
			unread.add(f.Key(), f.Err)
		}
	}
	unread.each(func(of, err string) { l.config.Logger.Warningf("reading %s: %s", of, err) })
	l.observeKinds(entities, false)
	l.observeKinds(entities, true)
}

func (l *loop) observeKinds(entities []plan.Fact, attachments bool) {
	for i := range entities {
		f := &entities[i]
		if f.Kind().Attachment() != attachments {
			continue
		}
		if f.Err == nil && f.Life == plan.Gone {
			if f.Kind() == plan.Filesystem {
				l.backing.forgetFilesystem(f.Key().ID)
			}
			if !attachments {
				l.unset.drop(f.TagText())
			}
		}
		l.core.Observe(*f)
	}
}

// lookUp reads the block devices of volumes on the worker's machine.
func lookUp(config setup, volumes []plan.Lookup) ([]params.BlockDeviceResult, error) {
	if len(volumes) == 0 {
		return nil, nil
	}
	machine, _ := config.machine()
	machineTag := machine.String()
	ids := make([]params.MachineStorageId, len(volumes))
	for i, volume := range volumes {
		ids[i] = params.MachineStorageId{MachineTag: machineTag, AttachmentTag: volume.TagText}
	}
	return translate.CallAccessor(config.guard, "reading block devices", config.Volumes.VolumeBlockDevices, ids)
}

// devicesRead handles the block devices that have been read. A device that is not found, or
// has neither a name nor a mount point, is looked up again when the machine's block devices change.
func (l *loop) devicesRead(lookups []plan.Lookup, results []params.BlockDeviceResult) {
	for i := range results {
		volume, device, err := lookups[i].Volume, &results[i].Result, results[i].Error
		if !l.core.DeviceWatched(volume) {
			continue
		}
		if err != nil && !params.IsCodeNotFound(err) && !params.IsCodeNotProvisioned(err) {
			l.config.Logger.Warningf("reading the block device of volume %s: %v; will be retried", volume, err)
			l.backing.forgetDevice(volume)
			l.core.DeviceUnreadable(volume)
			continue
		}
		known := err == nil && (device.DeviceName != "" || device.IsMountedVolume())
		if known {
			l.backing.setDevice(volume, *device)
		} else {
			l.backing.forgetDevice(volume)
		}
		l.core.DeviceKnown(volume, known, device.UUID != "", device.Size)
	}
}
