package simulation

import (
	"fmt"
	"hash"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// world is what a history acts on: workers, their state, the providers' things, and a user.
type world struct {
	// free: several steps run at a time.
	free bool
	// calm: nothing fails any more.
	calm bool
	// hasty: the state marks all entities of an instance as dying or dead at once
	// (hasty_test.go).
	hasty bool
	// driver: the environment's volumes need their contexts (driver_test.go).
	driver bool
	// restored: older states are restored (restore_test.go), and the state is copied
	// (copy_test.go).
	restored bool
	// hosted: a CSI driver makes the volumes of machines (hosted_test.go).
	hosted bool
	mood   mood

	state *state.State
	store *kvtest.Memory
	marks *marks
	// backup is what may be restored, or nil. restores counts the restores.
	backup   *backup
	restores int
	workers  []*incarnation // of the environment, and of each machine; nil where none runs
	storage  int            // how many storage instances there have been
	configs  int            // how many configurations of the environment there have been
	// on has the machines that the user has storage attached to, by name.
	on map[string]names.MachineTag

	// mu guards what the workers' goroutines access.
	mu    sync.Mutex
	gates []*gate
	// things are what really exists, by tag, and going the operations in the background.
	things map[string]*thing
	// orphans are things that a restored state or a copy does not know. owners are the owners
	// that creations have named, by tag.
	orphans map[string]*thing
	owners  map[string]storage.Owner
	going   map[string]*going
	made    int
	// requests are the records that the provider of a CSI driver has of volumes, by tag.
	requests map[string]*request
	// snapshots are all snapshots that there have been, by ID. origins says whose contents volumes
	// are wanted with, by tag, and writes counts what the user has written.
	snapshots map[string]*snapshot
	origins   map[string]storage.Origin
	writes    int
	// failed counts the failures of providers, by kind.
	failed map[string]int
	// deeds counts the operations and writes of workers, not their reads.
	deeds atomic.Int64
	// recorded are the IDs that the state has recorded, by tag.
	recorded map[string]string
	// attempted are the entities that may have been made, as far as the state remembers.
	attempted map[string]bool
	// unsure are the entities that a restored state has not recorded as made.
	unsure map[string]bool
	// untold are the entities whose last status the state refused. A running worker sets the
	// status again. lostStatus are the entities whose worker crashed before that.
	untold, lostStatus map[string]bool
	// wrong is the first violation.
	wrong   error
	keepLog bool
	logging sync.Mutex
	log     []string
	// sum is a checksum of the log without the messages of workers, whose order is up to
	// the scheduler.
	sum hash.Hash64
}

var scopes = []names.Tag{
	names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"), names.NewMachineTag("0"), names.NewMachineTag("1"),
}

// incarnation is one life of a worker.
type incarnation struct {
	world   *world
	scope   names.Tag
	name    string
	worker  worker.Worker
	ended   chan struct{}
	err     error
	taps    []named
	crashed bool
	killed  bool
	// excused: it may end with an error.
	excused bool

	// heard are the lives that it knows, and hearing those that it is about to know.
	heard, hearing map[string]life.Value
	// asking counts the running calls for the owners of what is to be attached, detached or
	// removed next. news are the entities whose life it learns too late for that.
	asking int
	news   map[string]bool
	// known are the IDs that it knows, by tag, and learning those that it is about to know.
	known, learning map[string]string
	running         map[string]string
	doubts          map[string]doubt
	attached        map[string]bool
	// growing are the tags of what it knows to grow. called has the running calls, by tag,
	// and calls counts them by source.
	growing map[string]bool
	called  map[string]string
	calls   map[string]int
	// doomed are the tags of what it has begun to destroy.
	doomed map[string]bool
	// hurried are the volumes whose attachments a hasty state has marked as dying.
	hurried map[string]bool
	// making has the volumes on which it is making filesystems.
	making map[string]string
}

func newWorld(free, keepLog bool) *world {
	w := &world{
		free:      free,
		keepLog:   keepLog,
		store:     kvtest.NewMemory(),
		workers:   make([]*incarnation, len(scopes)),
		marks:     &marks{},
		things:    make(map[string]*thing),
		orphans:   make(map[string]*thing),
		owners:    make(map[string]storage.Owner),
		going:     make(map[string]*going),
		requests:  make(map[string]*request),
		failed:    make(map[string]int),
		on:        make(map[string]names.MachineTag),
		recorded:  make(map[string]string),
		attempted: make(map[string]bool),
		unsure:    make(map[string]bool),
		untold:    make(map[string]bool),
		snapshots: make(map[string]*snapshot),
		origins:   make(map[string]storage.Origin),
		sum:       fnv.New64a(),

		lostStatus: make(map[string]bool),
	}
	w.open()
	w.configure()
	for _, scope := range scopes[1:] {
		w.must(w.state.EnsureMachine(scope.(names.MachineTag)))
	}
	return w
}

func (w *world) open() {
	st, err := state.Open(state.Config{Store: w.store, Marks: w.marks, Clock: clock.WallClock, Registry: registry(nil)})
	w.must(err)
	w.state = st
}

func registry(in *incarnation) storage.ProviderRegistry {
	providers := make(map[storage.ProviderType]storage.Provider)
	for _, name := range providerTypes {
		providers[storage.ProviderType(name)] = provider{in, name}
	}
	return storage.StaticProviderRegistry{Providers: providers}
}

// must panics on an error that cannot happen.
func (w *world) must(err error) {
	if err != nil {
		panic(err)
	}
}

// fail notes a violation. The lock is held.
func (w *world) fail(format string, args ...any) {
	if w.wrong == nil {
		w.wrong = fmt.Errorf(format, args...)
		w.logf("WRONG: %v", w.wrong)
	}
}

func (w *world) logf(format string, args ...any) {
	line := withoutUUIDs(fmt.Sprintf(format, args...))
	w.logging.Lock()
	defer w.logging.Unlock()
	fmt.Fprintln(w.sum, line)
	if w.keepLog {
		w.log = append(w.log, line)
	}
}

var someUUID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// withoutUUIDs returns a text without the UUIDs that the state has made: they differ each time.
func withoutUUIDs(text string) string {
	if strings.Count(text, "-") < 4 {
		return text
	}
	return someUUID.ReplaceAllString(text, "UUID")
}

// said is the prefix of the log lines that are messages of workers.
const said = "    "

// Loggers of workers.
func (in *incarnation) say(level, format string, args ...any) {
	w := in.world
	if w.keepLog {
		w.logging.Lock()
		defer w.logging.Unlock()
		w.log = append(w.log, fmt.Sprintf("%s%s %s: %s", said, in.name, level, fmt.Sprintf(format, args...)))
	}
}
func (in *incarnation) Tracef(format string, args ...any)   {}
func (in *incarnation) Debugf(format string, args ...any)   {}
func (in *incarnation) Warningf(format string, args ...any) { in.say("warns", format, args...) }
func (in *incarnation) Errorf(format string, args ...any)   { in.say("has an error", format, args...) }

// host returns the worker's machine, or any machine for the environment's worker.
func (in *incarnation) host() names.MachineTag {
	if machine, ok := in.scope.(names.MachineTag); ok {
		return machine
	}
	return scopes[1].(names.MachineTag)
}

// excuse allows the worker to end with an error.
func (in *incarnation) excuse() {
	in.world.mu.Lock()
	defer in.world.mu.Unlock()
	in.excused = true
}

// start starts the worker of a scope.
func (w *world) start(i int, l luck) {
	in := &incarnation{
		world:    w,
		scope:    scopes[i],
		name:     []string{"E", "M0", "M1"}[i],
		ended:    make(chan struct{}),
		heard:    make(map[string]life.Value),
		hearing:  make(map[string]life.Value),
		news:     make(map[string]bool),
		known:    make(map[string]string),
		learning: make(map[string]string),
		running:  make(map[string]string),
		doubts:   make(map[string]doubt),
		attached: make(map[string]bool),
		growing:  make(map[string]bool),
		called:   make(map[string]string),
		calls:    make(map[string]int),
		doomed:   make(map[string]bool),
		hurried:  make(map[string]bool),
		making:   make(map[string]string),
	}
	c := storageprovisioner.Config{
		Scope:    in.scope,
		Clock:    clock.WallClock,
		Registry: func(*config.Config) (storage.ProviderRegistry, error) { return registry(in), nil },
		Retry: storageprovisioner.RetryPolicy{
			CreateThreshold: []int{0, 0, 3}[l.roll(3)], RemoveThreshold: []int{0, 0, 3}[l.roll(3)],
		},
		MaxBatch:       l.roll(3),
		ResyncInterval: []time.Duration{0, time.Hour}[l.roll(2)],
		Logger:         in,
	}
	if w.hasty {
		// Destroying too soon is in vain until the attachment is gone: it is not to be
		// given up before that.
		c.Retry.RemoveThreshold = 0
	}
	accessor := w.state.ForEnviron()
	if machine, ok := in.scope.(names.MachineTag); ok {
		accessor = w.state.ForMachine(machine)
		c.StorageDir = "/nowhere"
		c.ManagedFilesystems = func(devices storage.BackingDevices) storage.FilesystemSource {
			return source{in, "managed", devices}
		}
		c.Plans = func(storage.DeviceType) (plans.Plan, error) { return carrier{in}, nil }
	}
	var err error
	in.worker, err = storageprovisioner.New(c.WithAccessors(accessors{accessor, in}))
	w.must(err)
	go func() {
		in.err = in.worker.Wait()
		close(in.ended)
	}()
	w.put(i, in)
	w.logf("%s starts, threshold %d, batches of %d, resync %v", in.name, c.Retry.CreateThreshold, c.MaxBatch, c.ResyncInterval)
}

// crash crashes a worker at any moment. Its running calls end without its learning how, and
// its later calls do nothing. It is killed first, because the time of a later kill would be
// up to the scheduler. Its calls end one after another, because their order would be too.
func (w *world) crash(i int, dice uint32) {
	in := w.workers[i]
	w.mu.Lock()
	w.logf("%s crashes", in.name)
	in.crashed = true
	w.mu.Unlock()
	in.worker.Kill()
	for more := true; more; {
		if !w.free {
			synctest.Wait()
		}
		more = w.openLost(in, dice)
	}
	<-in.ended
	w.put(i, nil)
}

// crashAll crashes all workers.
func (w *world) crashAll(dice uint32) {
	for i, in := range w.workers {
		if in != nil {
			w.crash(i, dice)
		}
	}
}

// put notes the worker of a scope, or nil.
func (w *world) put(i int, in *incarnation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.workers[i] = in
	for tag, untold := range w.untold {
		w.lostStatus[tag] = w.lostStatus[tag] || untold
	}
}

// settle waits until all goroutines are idle, and notes what the workers know then.
func (w *world) settle() {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, in := range w.workers {
		if in == nil {
			continue
		}
		if !slices.ContainsFunc(w.gates, func(g *gate) bool { return g.of == in && !g.slow }) {
			for key, l := range in.hearing {
				if in.asking > 0 && in.heard[key] != l {
					in.news[key] = true
				}
				in.heard[key] = l
			}
			clear(in.hearing)
			maps.Copy(in.known, in.learning)
			clear(in.learning)
		}
		select {
		case <-in.ended:
			if in.err != nil && !in.excused {
				w.fail("%s ends: %v", in.name, in.err)
			}
			if in.err == nil && !in.killed {
				w.fail("%s ends by itself", in.name)
			}
			if len(in.running) > 0 {
				w.fail("%s ends during %v", in.name, in.running)
			}
			w.logf("%s ends: %v", in.name, in.err)
			w.workers[i] = nil
		default:
		}
	}
}

// configure changes the environment's configuration.
func (w *world) configure() bool {
	w.configs++
	w.logf("the environment's configuration changes")
	w.must(w.state.SetEnvironConfig(map[string]any{
		"name": "simulated", "type": "simulation", "uuid": scopes[0].Id(), "generation": fmt.Sprint(w.configs),
	}))
	return true
}

// scan has a machine publish its block devices.
func (w *world) scan(machine names.MachineTag) {
	w.mu.Lock()
	var devices []storage.BlockDevice
	for _, tag := range sortedKeys(w.things) {
		t := w.things[tag]
		if p := t.at[machine.String()]; p != nil && p.device != "" {
			d := storage.BlockDevice{DeviceName: p.device, HardwareId: t.id, Size: t.sizeAt(machine.String())}
			if t.holds != nil {
				d.UUID, d.FilesystemType = "uuid-of-"+t.holds.id, "simfs"
			}
			devices = append(devices, d)
		}
	}
	w.mu.Unlock()
	w.logf("%s has devices %v", machine, devices)
	w.must(w.state.SetMachineBlockDevices(machine, devices))
}

// provision gives a machine an instance.
func (w *world) provision(machine names.MachineTag) {
	if _, err := w.state.InstanceId(machine); err != nil {
		w.logf("%s is provisioned", machine)
		w.must(w.state.SetInstanceId(machine, instance.Id("i-"+machine.Id())))
	}
}

// reboot makes a machine lose what does not survive a reboot.
func (w *world) reboot(i int, dice uint32) {
	machine := scopes[i].String()
	if w.workers[i] != nil {
		w.crash(i, dice)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logf("%s reboots", machine)
	for key, g := range w.going {
		if g.by.scope == scopes[i] {
			delete(w.going, key)
		}
	}
	var shown []*place
	for _, tag := range sortedKeys(w.things) {
		t := w.things[tag]
		p := t.at[machine]
		switch {
		case p == nil || t.provider == share:
		case t.provider == cloud && t.kind() == names.VolumeTagKind:
			if p.device != "" && !p.plan {
				shown = append(shown, p)
			}
			p.device = ""
		default:
			delete(t.at, machine)
		}
	}
	for _, p := range slices.Backward(shown) {
		w.show(p, machine)
	}
}

// user adds, attaches, detaches, removes, releases or resizes storage. The state may refuse.
func (w *world) user(s step) bool {
	l := luck{dice: s.dice | 1}
	all, err := w.state.AllStorage()
	w.must(err)
	action := l.roll(12)
	if len(all) == 0 || action < 3 && len(all) < 8 {
		w.want(&l)
		return true
	}
	one := all[int(s.which)%len(all)]
	machine := scopes[1+l.roll(2)].(names.MachineTag)
	switch action {
	case 0, 1, 2, 3:
		err = w.state.AttachStorage([]string{one.Name}, machine)
		w.logf("user attaches %s to %s: %v", one.Name, machine, err)
		if err == nil {
			w.on[one.Name] = machine
		}
	case 4, 5:
		err = w.state.DetachStorage([]string{one.Name})
		w.logf("user detaches %s: %v", one.Name, err)
		w.noteUnwanted(one, err)
		delete(w.on, one.Name)
	case 6, 7:
		err = w.state.RemoveStorage([]string{one.Name})
		w.logf("user removes %s: %v", one.Name, err)
		w.noteUnwanted(one, err)
		w.hurry(one)
	case 8, 10:
		err = w.state.ReleaseStorage([]string{one.Name})
		w.logf("user releases %s: %v", one.Name, err)
		w.noteUnwanted(one, err)
	case 9, 11:
		size := one.RequestedMiB + 1
		err = w.state.ResizeStorage(one.Name, size)
		w.logf("user wants %s to have %d MiB: %v", one.Name, size, err)
	}
	return true
}

// want adds storage.
func (w *world) want(l *luck) {
	p := state.StorageParams{
		Name: fmt.Sprintf("storage/%d", w.storage),
		Kind: []storage.StorageKind{storage.StorageKindBlock, storage.StorageKindFilesystem}[l.roll(2)],
		Pool: providerTypes[l.roll(4)],
		Size: 10,
	}
	if w.hosted && (p.Pool == disk || p.Pool == tree) {
		p.Pool = hosted
	}
	if p.Pool == share || p.Pool == tree {
		p.Kind = storage.StorageKindFilesystem
	}
	if l.roll(4) > 0 {
		p.Machine = scopes[1+l.roll(2)].(names.MachineTag)
	}
	err := w.state.AddStorage(p)
	w.logf("user wants %s, %s of %s on %q: %v", p.Name, p.Kind, p.Pool, p.Machine.Id(), err)
	if err == nil {
		w.storage++
		if p.Machine != (names.MachineTag{}) {
			w.on[p.Name] = p.Machine
		}
	}
}

// elapse lets simulated time pass.
func elapse(d time.Duration) { time.Sleep(d) }

// action is what a step may do. do reports whether there was anything to do.
type action struct {
	name   string
	weight int
	do     func(w *world, s step) bool
}

var actions = []action{
	{"open", 40, (*world).openGate},
	{"deliver", 22, (*world).deliver},
	{"user", 8, (*world).user},
	{"elapse", 6, func(w *world, s step) bool {
		d := []time.Duration{time.Second, 30 * time.Second, 10 * time.Minute, time.Hour}[s.which%4]
		w.logf("%v pass", d)
		elapse(d)
		return true
	}},
	{"scan", 6, func(w *world, s step) bool { w.scan(scopes[1+int(s.which)%2].(names.MachineTag)); return true }},
	{"progress", 4, (*world).progress},
	{"older", 1, (*world).older},
	{"provision", 1, func(w *world, s step) bool { w.provision(scopes[1+int(s.which)%2].(names.MachineTag)); return true }},
	{"start", 4, func(w *world, s step) bool {
		for i, in := range w.workers {
			if in == nil {
				w.start(i, luck{dice: s.dice})
				return true
			}
		}
		return false
	}},
	{"disrupt", 1, func(w *world, s step) bool {
		i := int(s.which) % len(scopes)
		switch {
		case s.dice%5 == 0:
			return w.configure()
		case s.dice%5 == 1 && i > 0:
			w.reboot(i, s.dice)
			return true
		case w.workers[i] == nil:
			return false
		case s.dice%5 == 2:
			w.logf("%s is killed", w.workers[i].name)
			w.workers[i].killed = true
			w.workers[i].worker.Kill()
			return true
		}
		w.crash(i, s.dice)
		return true
	}},
	// The last one, so that the histories of the corpus stay the same.
	{"copy", 5, (*world).copies},
}

// follow takes one step, and reports whether there was anything to do for it.
func (w *world) follow(s step) bool { return actionOf(s).do(w, s) }

// actionOf returns the action that the number of a step stands for.
func actionOf(s step) action {
	total := 0
	for _, a := range actions {
		total += a.weight
	}
	n := int(s.do) % total
	for _, a := range actions {
		if n < a.weight {
			return a
		}
		n -= a.weight
	}
	panic("unreachable")
}

// patience is how long, in simulated time, everything may take to come to rest.
const patience = 24 * time.Hour

// rest runs until nothing happens any more. Nothing fails, and the operations in the background
// end.
func (w *world) rest() error {
	w.logf("calm")
	w.calm = true
	w.mu.Lock()
	w.finishAll()
	w.mu.Unlock()
	w.configure()
	w.settle()
	for i := range scopes {
		if i > 0 {
			w.provision(scopes[i].(names.MachineTag))
			w.settle()
		}
		if w.workers[i] == nil {
			w.start(i, luck{})
		}
	}
	for began, quiet := time.Now(), 0; quiet < 3; quiet++ {
		if time.Since(began) > patience {
			return errors.Errorf("not at rest after %v", patience)
		}
		before := w.deeds.Load()
		for moved := true; moved; {
			for i := 1; i < len(scopes); i++ {
				w.scan(scopes[i].(names.MachineTag))
				w.settle()
			}
			for i, in := range w.workers {
				if in == nil {
					w.start(i, luck{})
				}
			}
			w.settle()
			for moved = false; w.openGate(step{}) || w.deliver(step{}); moved = true {
				w.settle()
				if w.wrong != nil {
					return w.wrong
				}
			}
		}
		if w.deeds.Load() != before {
			quiet = 0
		}
		elapse(time.Hour)
		w.settle()
	}
	return w.wrong
}

// tellsOfLoss reports whether the status of a missing entity says so. A source without tags
// does not list what it has: its attachment reports the loss. A filesystem whose volume is
// refused cannot be checked: the status of the volume gives the reason, and that of the
// filesystem is attaching.
func tellsOfLoss(s state.Storage, e *state.Entity) bool {
	if s.Pool == tree {
		return e.Status == status.Attaching && strings.HasSuffix(e.Message, " not found")
	}
	if e == s.Filesystem && s.Volume != nil && s.Volume.Status == status.Error && e.Status == status.Attaching {
		return true
	}
	return e.Status == status.Error && strings.HasPrefix(e.Message, "missing: ")
}

// check checks that at rest the state and the providers agree, and no worker has unfinished
// operations.
func (w *world) check() error {
	all, err := w.state.AllStorage()
	w.must(err)
	wanted := make(map[string]bool)
	for _, s := range all {
		if w.lost(s.Volume) || w.lost(s.Filesystem) {
			for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
				if e == nil {
					continue
				}
				wanted[e.Tag.String()] = true
				known := w.things[e.Tag.String()]
				if w.lost(e) && s.Life == life.Alive && len(s.Attachments) > 0 && known == nil &&
					!tellsOfLoss(s, e) && !w.lostStatus[e.Tag.String()] {
					return errors.Errorf("%s is missing, and its status is %s %s", e.Tag, e.Status, e.Message)
				}
			}
			continue
		}
		if s.Life != life.Alive {
			return errors.Errorf("%s is still there, %s", s.Name, s.Life)
		}
		if machine, ok := w.on[s.Name]; ok != (len(s.Attachments) == 1) || ok && s.Attachments[0].Machine != machine {
			return errors.Errorf("%s is attached to %v, and the user has it on %q", s.Name, s.Attachments, machine.Id())
		}
		if w.unclonable(s) {
			if err := w.checkUnclonable(s); err != nil {
				return err
			}
			continue
		}
		for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
			if e == nil {
				continue
			}
			t := w.things[e.Tag.String()]
			wanted[e.Tag.String()] = true
			if t != nil {
				if err := w.checkContents(t); err != nil {
					return err
				}
			}
			switch {
			case t == nil && e.ProviderID != "":
				return errors.Errorf("%s is recorded as %s and does not exist", e.Tag, e.ProviderID)
			case t == nil && len(s.Attachments) > 0:
				return errors.Errorf("%s was never made: %s %s", e.Tag, e.Status, e.Message)
			case t == nil:
				continue
			case e.ProviderID == "" && t.on != nil && len(s.Attachments) == 0:
				continue // it is on its volume, and the next attachment of the volume finds it
			case e.ProviderID == "" && t.stray && len(s.Attachments) == 0:
				continue // the next attachment finds it
			case t.id != e.ProviderID:
				return errors.Errorf("%s is %q in the state and is %q", e.Tag, e.ProviderID, t.id)
			}
			at := sortedKeys(t.at)
			var want []string
			for _, a := range s.Attachments {
				want = append(want, a.Machine.String())
			}
			if t.inUse && len(want) == 0 {
				continue // the next attachment, detachment or removal finds it
			}
			if !slices.Equal(at, want) {
				return errors.Errorf("%s is on %v, and wanted on %v: %s %s", e.Tag, at, want, e.Status, e.Message)
			}
			if len(want) > 0 && e.Status != status.Attached && !w.lostStatus[e.Tag.String()] {
				return errors.Errorf("%s is attached, and its status is %s %s", e.Tag, e.Status, e.Message)
			}
			if len(want) > 0 && t.sizeAt(want[0]) < s.RequestedMiB {
				return errors.Errorf("%s has %d MiB, and %s sees %d; it is wanted with %d", e.Tag, t.size, want[0], t.sizeAt(want[0]), s.RequestedMiB)
			}
		}
		if len(s.Attachments) > 0 && s.Location == "" {
			return errors.Errorf("%s is attached nowhere", s.Name)
		}
	}
	for _, tag := range sortedKeys(w.things) {
		if !wanted[tag] && !w.things[tag].stray {
			return errors.Errorf("%s is left, which nobody wants", w.things[tag].id)
		}
	}
	for _, tag := range sortedKeys(w.requests) {
		if !wanted[tag] && !w.requests[tag].stray {
			return errors.Errorf("the record of %s is left, which nobody wants", w.requests[tag].id)
		}
	}
	for _, in := range w.workers {
		report := in.worker.(interface{ Report() map[string]any }).Report()
		if unfinished := report["unfinished"]; unfinished != nil {
			for what, of := range unfinished.(map[string]any) {
				if detail := fmt.Sprint(of); w.stuck(what, all) {
					return errors.Errorf("%s has not finished %s: %s", in.name, what, detail)
				}
			}
		}
	}
	return nil
}

// stuck reports whether something unfinished should have been finished. Storage without an
// attachment is neither made nor grown.
func (w *world) stuck(what string, all []state.Storage) bool {
	return slices.ContainsFunc(all, func(s state.Storage) bool {
		if len(s.Attachments) == 0 || w.unclonable(s) {
			return false
		}
		for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
			if e != nil && strings.Contains(what, e.Tag.String()) {
				return true
			}
		}
		return false
	})
}

// prepare begins a history with storage that exists and is attached, or was until its machine
// rebooted. Without this, a history would reach many of its failures too late.
func (w *world) prepare(l luck) error {
	for range 4 {
		w.want(&l)
	}
	err := w.rest()
	w.calm = false
	if machine := l.roll(len(scopes)); err == nil && machine > 0 {
		w.reboot(machine, l.dice)
	}
	return err
}

// run runs a history, and returns what is wrong.
func (w *world) run(dice uint32, history []step, together int) error {
	w.hasty, w.mood = dice%4 == 3, moods[dice/4%8]
	w.driver = dice/32%8 == 5
	w.hosted = isHosted(dice)
	// A hasty state cannot be restored: it does not take back what it has reported.
	w.restored = dice%3 == 0 && !w.hasty && !w.free
	for i := range scopes {
		w.start(i, luck{dice: dice})
	}
	w.settle()
	if dice%2 == 1 {
		if err := w.prepare(luck{dice: dice}); err != nil {
			return err
		}
	}
	for i, s := range history {
		done := w.follow(s)
		if !w.free || i%together == 0 || !done {
			w.settle()
		}
		if w.wrong != nil {
			return w.wrong
		}
	}
	w.settle()
	if err := w.rest(); err != nil {
		return err
	}
	if err := w.check(); err != nil {
		return err
	}
	all, err := w.state.AllStorage()
	w.must(err)
	for _, s := range all {
		w.must(w.state.RemoveStorage([]string{s.Name}))
		w.noteUnwanted(s, nil)
		w.hurry(s)
		w.settle() // or the scheduler decides which events are merged
	}
	if err := w.rest(); err != nil {
		return err
	}
	if err := w.check(); err != nil {
		return errors.Annotate(err, "with nothing wanted")
	}
	return nil
}

// end stops everything, so that no goroutine is left.
func (w *world) end() {
	w.crashAll(0)
	w.must(w.state.Close())
	synctest.Wait()
}
