package storageprovisioner

import (
	"maps"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// todo is what the clerk is to be asked next, beside what the core wants to know. What
// changes while the clerk is busy comes together, so that a burst of changes costs few
// calls.
type todo struct {
	// config says whether the environment's configuration is to be read.
	config configState
	// attempts are the batches that the state is to note before they run.
	attempts []plan.Batch
	// hosts are the machines to watch unless they are provisioned.
	hosts set[string]
	// instances are the watched machines whose instance ids to read.
	instances set[string]
}

// configState says what is thought of the environment's configuration as it was
// last read.
type configState int

const (
	configKnown configState = iota
	// configDoubted may have changed: it is read, and acted on if it has.
	configDoubted
	// configChanged was reported by its watcher: it is acted on in any case.
	configChanged
)

func (t *todo) empty() bool {
	return len(t.hosts.list) == 0 && len(t.instances.list) == 0
}

// set is a set in order of addition.
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

// watchEnviron starts what is watched from the beginning.
func (l *loop) watchEnviron() (reply, error) {
	group := newWatcherGroup(l.config.shelter)
	environ := startWatcher(group, "environment config", l.config.Environ.WatchForEnvironConfigChanges)
	var devices <-chan struct{}
	var planned <-chan []params.MachineStorageId
	var formats <-chan []string
	var mounts <-chan struct{}
	if machine, ok := l.config.machine(); ok {
		devices = startWatcher(group, "block devices", func() (watcher.NotifyWatcher, error) {
			return l.config.Volumes.WatchBlockDevices(machine)
		})
		if l.config.Mounts != nil {
			mounts = startWatcher(group, "mounts", l.config.Mounts)
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
		l.watches.mounts = mounts
		l.watches.plans = planned
	}, nil
}

// readEnviron reads the environment's configuration, and, the first time, starts
// to watch the storage.
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
		group := newWatcherGroup(l.config.shelter)
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

// watcherGroup is a group of watchers that are started together: all or none.
type watcherGroup struct {
	shelter  *shelter
	watchers map[string]worker.Worker
	err      error
}

func newWatcherGroup(shelter *shelter) *watcherGroup {
	return &watcherGroup{shelter: shelter, watchers: make(map[string]worker.Worker)}
}

// changeWatcher is a watcher of any kind.
type changeWatcher[T any] interface {
	worker.Worker
	Changes() <-chan T
}

// startWatcher starts a watcher of the group, unless one before has not started, and returns
// the channel of its changes.
func startWatcher[W changeWatcher[T], T any](group *watcherGroup, what string, watch func() (W, error)) <-chan T {
	if group.err != nil {
		return nil
	}
	var changes <-chan T
	doing := "watching " + what
	err := group.shelter.runError(theState, func() string { return doing }, func() error {
		w, err := watch()
		if err = requireValue(w, err); err != nil {
			return err
		}
		group.watchers[what] = shelteredWatcher{w, group.shelter, doing}
		changes = w.Changes()
		return nil
	})
	group.err = errors.Annotate(err, doing)
	return changes
}

// shelteredWatcher is a watcher that panics in none of a worker's methods: that is how it
// ends.
type shelteredWatcher struct {
	worker.Worker
	shelter *shelter
	doing   string
}

// Kill is part of worker.Worker.
func (w shelteredWatcher) Kill() {
	// That it has failed is logged; how it ends, Wait tells.
	_ = w.shelter.runInGoroutine(theWatcher, w.what, w.Worker.Kill)
}

// Wait is part of worker.Worker.
func (w shelteredWatcher) Wait() error {
	var err error
	caught := w.shelter.runInGoroutine(theWatcher, w.what, func() { err = sanitizeError(w.Worker.Wait()) })
	if caught != nil {
		return caught
	}
	return err
}

func (w shelteredWatcher) what() string { return w.doing }

// result returns the error of the watcher that could not be started; none of the
// group is left running then.
func (g *watcherGroup) result() error {
	if g.err == nil {
		return nil
	}
	for _, w := range g.watchers {
		w.Kill()
	}
	for _, w := range g.watchers {
		// What the watcher ended with adds nothing to why the worker ends.
		_ = w.Wait()
	}
	return g.err
}

// own makes the loop the owner of watchers that have been started.
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

// noteAttempts notes in the state what is about to be made, and dispatches what still is to
// be made then.
func (l *loop) noteAttempts(batches []plan.Batch) job {
	config := l.config
	return func() (reply, error) {
		var all []plan.Subject
		for _, batch := range batches {
			all = append(all, batch.Unnoted()...)
		}
		errs, err := setAttempts(config, attemptArgs(all, params.Attempt{Attempted: true}))
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

// attemptArgs returns what to tell the state of attempts to make entities: the same of each.
func attemptArgs(subjects []plan.Subject, what params.Attempt) []params.Attempt {
	args := make([]params.Attempt, len(subjects))
	for i, s := range subjects {
		args[i] = what
		args[i].Id = attachmentId(s)
	}
	return args
}

// setAttempts tells the state of attempts, where it remembers them.
func setAttempts(config setup, attempts []params.Attempt) ([]error, error) {
	accessor, ok := config.attempts()
	if !ok {
		return nil, nil
	}
	return callWriter(config.shelter, "noting attempts", accessor.SetAttempts, attempts)
}

// maxRead is how much is read at once, of a kind. It is more than the calls cost
// beside what they read, and little enough for the loop to be elsewhere soon after.
const maxRead = 1 << 14

// read reads what is to be read, of all kinds.
func (l *loop) read() job {
	t := l.todo
	l.todo = todo{attempts: t.attempts}
	environ := l.environ
	subjects, volumes := l.core.Unread(maxRead), l.core.Devices(maxRead)
	buffer := l.factBuffer
	l.factBuffer = nil
	return func() (reply, error) {
		r := newFactReader(l.config, environ)
		entities, err := r.read(subjects, buffer)
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
			for _, fs := range r.filesystems {
				l.backing.setFilesystem(fs)
			}
			for _, volume := range r.newVolumes {
				l.backing.setNew(volume)
			}
			l.observe(entities)
			l.devicesRead(devices)
			l.machinesRead(machines)
			if l.core.HasUnread() {
				// There is more to read: the next job reuses this slice.
				clear(entities)
				l.factBuffer = entities[:0]
			}
		}, nil
	}
}

// observe takes in entities that have been read: attachments after what they attach, as
// they have been read, so that what is learnt last is what was so last.
func (l *loop) observe(entities []plan.Fact) {
	var unread errorGroups
	for _, f := range entities {
		if f.Err != nil {
			unread.add(f.Key, f.Err)
		}
	}
	unread.each(func(of, err string) { l.config.Logger.Warningf("reading %s: %s", of, err) })
	l.observeKinds(entities, false)
	l.observeKinds(entities, true)
}

func (l *loop) observeKinds(entities []plan.Fact, attachments bool) {
	for _, f := range entities {
		if f.Key.Kind.Attachment() != attachments {
			continue
		}
		if f.Err == nil && f.Life == plan.Gone {
			if f.Key.Kind == plan.Filesystem {
				l.backing.forgetFilesystem(f.Key.ID)
			}
			if !attachments {
				l.unset.drop(f.Tag.String())
			}
		}
		l.core.Observe(f)
	}
}

// device is what has been read of a volume's block device.
type device struct {
	volume string
	result params.BlockDeviceResult
}

// lookUp reads the block devices of volumes on the worker's machine.
func lookUp(config setup, volumes []plan.Subject) ([]device, error) {
	machine, _ := config.machine()
	ids := make([]params.MachineStorageId, len(volumes))
	for i, volume := range volumes {
		ids[i] = params.MachineStorageId{
			MachineTag:    machine.String(),
			AttachmentTag: volume.Tag.String(),
		}
	}
	results, err := callAccessor(config.shelter, "reading block devices", config.Volumes.VolumeBlockDevices, ids)
	if err != nil {
		return nil, err
	}
	devices := make([]device, len(volumes))
	for i, volume := range volumes {
		devices[i] = device{volume.Key.ID, results[i]}
	}
	return devices, nil
}

// devicesRead takes in block devices that have been read. One that is not found, or
// has no name, is looked up again when the machine's block devices change.
func (l *loop) devicesRead(devices []device) {
	for _, d := range devices {
		if !l.core.DeviceWatched(d.volume) {
			continue
		}
		err := d.result.Error
		if err != nil && !params.IsCodeNotFound(err) && !params.IsCodeNotProvisioned(err) {
			l.config.Logger.Warningf("reading the block device of volume %s: %v; it is looked up again later", d.volume, err)
			l.backing.forgetDevice(d.volume)
			l.core.DeviceUnreadable(d.volume)
			continue
		}
		known := err == nil && d.result.Result.DeviceName != ""
		if known {
			l.backing.setDevice(d.volume, d.result.Result)
		} else {
			l.backing.forgetDevice(d.volume)
		}
		l.core.DeviceKnown(d.volume, known, d.result.Result.UUID != "", d.result.Result.Size)
	}
}
