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
	started := newStarting(l.config.shelter)
	environ := start(started, "environment config", l.config.Environ.WatchForEnvironConfigChanges)
	var devices <-chan struct{}
	var planned <-chan []params.MachineStorageId
	var formats <-chan []string
	var mounts <-chan struct{}
	if machine, ok := l.config.machine(); ok {
		devices = start(started, "block devices", func() (watcher.NotifyWatcher, error) {
			return l.config.Volumes.WatchBlockDevices(machine)
		})
		if l.config.Mounts != nil {
			mounts = start(started, "mounts", l.config.Mounts)
		}
		if accessor, ok := l.config.formats(); ok {
			formats = start(started, "formats", accessor.WatchFormats)
		}
		if accessor, ok := l.config.plans(); ok {
			planned = start(started, "attachment plans", accessor.WatchVolumeAttachmentPlans)
		}
	}
	var retries <-chan []string
	if accessor, ok := l.config.retries(); ok {
		retries = start(started, "retries", accessor.WatchRetries)
	}
	if err := started.result(); err != nil {
		return nil, err
	}
	return func() {
		l.own(started)
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
		started := newStarting(l.config.shelter)
		volumes := start(started, "volumes", l.config.Volumes.WatchVolumes)
		filesystems := start(started, "filesystems", l.config.Filesystems.WatchFilesystems)
		volumeAttachments := start(started, "volume attachments", l.config.Volumes.WatchVolumeAttachments)
		filesystemAttachments := start(started, "filesystem attachments", l.config.Filesystems.WatchFilesystemAttachments)
		if err := started.result(); err != nil {
			return nil, err
		}
		return func() {
			l.environ = environ
			l.own(started)
			l.watches.volumes = volumes
			l.watches.filesystems = filesystems
			l.watches.volumeAttachments = volumeAttachments
			l.watches.filesystemAttachments = filesystemAttachments
			l.scheduleResync(l.config.Clock.Now())
		}, nil
	}
}

// starting is a group of watchers that are started together: all or none.
type starting struct {
	shelter  *shelter
	watchers map[string]worker.Worker
	err      error
}

func newStarting(shelter *shelter) *starting {
	return &starting{shelter: shelter, watchers: make(map[string]worker.Worker)}
}

// watching is a watcher of any kind.
type watching[T any] interface {
	worker.Worker
	Changes() <-chan T
}

// start starts a watcher of the group, unless one before has not started, and returns
// the channel of its changes.
func start[W watching[T], T any](s *starting, what string, watch func() (W, error)) <-chan T {
	if s.err != nil {
		return nil
	}
	var changes <-chan T
	doing := "watching " + what
	err := s.shelter.ask(theState, func() string { return doing }, func() error {
		w, err := watch()
		if err = given(w, err); err != nil {
			return err
		}
		s.watchers[what] = sheltered{w, s.shelter, doing}
		changes = w.Changes()
		return nil
	})
	s.err = errors.Annotate(err, doing)
	return changes
}

// sheltered is a watcher that panics in none of a worker's methods: that is how it
// ends.
type sheltered struct {
	worker.Worker
	shelter *shelter
	doing   string
}

// Kill is part of worker.Worker.
func (w sheltered) Kill() {
	// That it has failed is logged; how it ends, Wait tells.
	_ = w.shelter.apart(theWatcher, w.what, w.Worker.Kill)
}

// Wait is part of worker.Worker.
func (w sheltered) Wait() error {
	var err error
	caught := w.shelter.apart(theWatcher, w.what, func() { err = heard(w.Worker.Wait()) })
	if caught != nil {
		return caught
	}
	return err
}

func (w sheltered) what() string { return w.doing }

// result returns the error of the watcher that could not be started; none of the
// group is left running then.
func (s *starting) result() error {
	if s.err == nil {
		return nil
	}
	for _, w := range s.watchers {
		w.Kill()
	}
	for _, w := range s.watchers {
		// What the watcher ended with adds nothing to why the worker ends.
		_ = w.Wait()
	}
	return s.err
}

// own makes the loop the owner of watchers that have been started.
func (l *loop) own(s *starting) {
	maps.Copy(l.watches.all, s.watchers)
	for what, w := range s.watchers {
		l.others.Go(func() { l.tellEnd(w, endedWatch{what: what}) })
	}
}

// tellEnd waits for a watcher and tells the loop of its end.
func (l *loop) tellEnd(w worker.Worker, end endedWatch) {
	end.err = w.Wait()
	select {
	case l.ended <- end:
	case <-l.ctx.Done():
	}
}

// note tells the state what is about to be made, and hands on what still is to be.
func (l *loop) note(batches []plan.Batch) job {
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
					l.hand(batch)
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
	return tell(config.shelter, "noting attempts", accessor.SetAttempts, attempts)
}

// mostRead is how much is read at once, of a kind. It is more than the calls cost
// beside what they read, and little enough for the loop to be elsewhere soon after.
const mostRead = 1 << 14

// read reads what is to be read, of all kinds.
func (l *loop) read() job {
	t := l.todo
	l.todo = todo{attempts: t.attempts}
	environ := l.environ
	subjects, volumes := l.core.Unread(mostRead), l.core.Devices(mostRead)
	room := l.room
	l.room = nil
	return func() (reply, error) {
		r := newFacts(l.config, environ)
		entities, err := r.read(subjects, room)
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
			l.lookedUp(devices)
			l.machinesRead(machines)
			if l.core.Curious() {
				// There is more: the room that this took is used again.
				clear(entities)
				l.room = entities[:0]
			}
		}, nil
	}
}

// observe takes in entities that have been read: attachments after what they attach, as
// they have been read, so that what is learnt last is what was so last.
func (l *loop) observe(entities []plan.Fact) {
	var unread complaints
	for _, f := range entities {
		if f.Err != nil {
			unread.add(f.Key, f.Err)
		}
	}
	unread.each(func(of, err string) { l.config.Logger.Warningf("reading %s: %s", of, err) })
	l.observeThose(entities, false)
	l.observeThose(entities, true)
}

func (l *loop) observeThose(entities []plan.Fact, attachments bool) {
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
	results, err := call(config.shelter, "reading block devices", config.Volumes.VolumeBlockDevices, ids)
	if err != nil {
		return nil, err
	}
	devices := make([]device, len(volumes))
	for i, volume := range volumes {
		devices[i] = device{volume.Key.ID, results[i]}
	}
	return devices, nil
}

// lookedUp takes in block devices that have been read. One that is not found, or
// has no name, is looked up again when the machine's block devices change.
func (l *loop) lookedUp(devices []device) {
	for _, d := range devices {
		if !l.core.DeviceMatters(d.volume) {
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
