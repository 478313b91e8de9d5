package plan_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	jujuerrors "github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// world is a minimal environment of a core: the state with its life rules, a provider that
// notices forbidden calls, other workers, and a user who adds and removes storage.
type world struct {
	t      *testing.T
	seed   uint64
	random *rand.Rand
	core   *plan.Core
	now    time.Time
	log    []string
	// calm: nothing fails any more.
	calm bool

	// The state. changed are the keys that its watchers are to report, unseen the
	// keys whose current state the core has not observed.
	entities map[plan.Key]*entity
	changed  []plan.Key
	unseen   map[plan.Key]bool
	next     int
	// dropped are the IDs of storage that was removed from the state by force.
	dropped map[string]bool

	// The provider: what it has, what it is working on, and the operations in the
	// background. stray is what exists without anybody being able to know of it.
	made       map[plan.Key]bool
	stray      map[plan.Key]bool
	running    map[plan.Key]plan.Op
	batches    []plan.Batch
	background map[plan.Key]going
	// doubtful is what an operation of unknown outcome may have made, undone what it may
	// have removed.
	doubtful map[plan.Key]bool
	undone   map[plan.Key]bool
	// sizes are the sizes of volumes and filesystems, as the provider has them.
	sizes map[plan.Key]uint64

	// devices are the volumes whose devices are there, hasUUID those whose devices have a
	// UUID, and knownUUID those whose UUID the core knows. good are the attachments that
	// the core has made with the UUID known.
	devices   map[string]bool
	hasUUID   map[string]bool
	knownUUID map[string]bool
	good      map[plan.Key]bool
	// seen are the device sizes that the core knows.
	seen map[string]uint64
	// tracked are the volumes whose devices the core has asked about and not forgotten.
	tracked     map[string]bool
	provisioned map[string]bool
	asked       map[string]bool
	resynced    bool
	scheduled   map[any]due
	order       int
	maxBatch    int
	limits      map[plan.Source]int
	// attached is what this core has attached and had recorded, and unread what it
	// could not read.
	attached map[plan.Key]bool
	unread   map[plan.Key]bool
	// checkFailed is what the last check found to be different from what was attached.
	checkFailed map[plan.Key]bool
	// mustCheck is what changes of mounts concern, and mayCheck is what there is a reason to
	// check, since its last check or attachment began.
	mustCheck, mayCheck map[plan.Key]bool
	// readings counts the readings of the mounts, and reading says that one is under way. It
	// will show changes at the paths in shown; changes are later ones.
	readings       int
	reading        bool
	shown, changes []string
	// mountedSince are the filesystems that were mounted since the last reading began, and
	// mountedBefore those that were mounted between the beginnings of the last two readings, so
	// that the last need not show that they came and went. attachedIn is the reading before
	// which an attachment was recorded.
	mountedSince, mountedBefore map[plan.Key]bool
	attachedIn                  map[plan.Key]int
	// requested is what a user has retried since its last successful check: it is attached
	// again if the next check fails.
	requested map[plan.Key]bool
	// statuses are those that were set last.
	statuses map[plan.Key]plan.Status
}

// going is an operation that goes on in the background.
type going struct {
	op   plan.Op
	args any
}

// machine is the host that the core works for. Volumes may also be attached to the
// other hosts. The last host is never provisioned.
const machine = "machine-0"

var hosts = []string{machine, machine, machine, "machine-1", "machine-2"}

// entity is an entity as the state has it.
type entity struct {
	life     plan.Life
	recorded bool
	wanted   bool
	class    plan.Class
	backing  string
	version  int
	// size is the recorded size, large the wanted size.
	size, large uint64
}

// args are the arguments of an operation.
type args struct {
	key     plan.Key
	host    string
	backed  bool
	version int
	size    uint64
}

// created and grown are the recorded results of a creation and of a resize: the size.
type (
	created uint64
	grown   uint64
)

type due struct {
	value any
	at    time.Time
	order int
}

// sorted returns the keys of a map in a fixed order, so that a seed is a history.
func sorted[V any](m map[plan.Key]V) []plan.Key {
	return sortedKeys(slices.Collect(maps.Keys(m)))
}

func sortedKeys(keys []plan.Key) []plan.Key {
	return slices.SortedFunc(slices.Values(keys), func(a, b plan.Key) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Host, b.Host))
	})
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t:           t,
		seed:        seed,
		random:      rand.New(rand.NewPCG(seed, 7)),
		now:         time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		entities:    make(map[plan.Key]*entity),
		dropped:     make(map[string]bool),
		made:        make(map[plan.Key]bool),
		stray:       make(map[plan.Key]bool),
		devices:     make(map[string]bool),
		hasUUID:     make(map[string]bool),
		provisioned: make(map[string]bool),
		sizes:       make(map[plan.Key]uint64),
		statuses:    make(map[plan.Key]plan.Status),
	}
	w.restart()
	return w
}

// chance is true once in n times, and never when it is calm.
func (w *world) chance(n int) bool {
	return !w.calm && w.random.IntN(n) == 0
}

func (w *world) logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d: %s\n%s", w.seed, fmt.Sprintf(format, args...), strings.Join(w.log, "\n"))
}

// Add and Remove make the world the core's timetable.
func (w *world) Add(key, value any, at time.Time) {
	w.order++
	w.scheduled[key] = due{value, at, w.order}
}

func (w *world) Remove(key any) { delete(w.scheduled, key) }

// restart starts a new core, which knows nothing and is notified of every entity.
func (w *world) restart() {
	w.scheduled = make(map[any]due)
	w.running = make(map[plan.Key]plan.Op)
	w.background = make(map[plan.Key]going)
	w.asked = make(map[string]bool)
	w.resynced = false
	w.batches = nil
	w.doubtful = make(map[plan.Key]bool)
	w.undone = make(map[plan.Key]bool)
	w.knownUUID = make(map[string]bool)
	w.good = make(map[plan.Key]bool)
	w.seen = make(map[string]uint64)
	w.tracked = make(map[string]bool)
	w.attached = make(map[plan.Key]bool)
	w.checkFailed = make(map[plan.Key]bool)
	w.requested = make(map[plan.Key]bool)
	w.mustCheck, w.mayCheck = make(map[plan.Key]bool), make(map[plan.Key]bool)
	w.readings, w.reading, w.changes = 0, false, nil
	w.mountedSince, w.attachedIn = make(map[plan.Key]bool), make(map[plan.Key]int)
	w.unread = make(map[plan.Key]bool)
	w.limits = make(map[plan.Source]int)
	threshold := w.random.IntN(2) * 8
	w.maxBatch = w.random.IntN(3)
	w.core = plan.New(plan.Options{
		Retry:     plan.Retry{Min: time.Second, Max: time.Minute, Factor: 2, CreateThreshold: threshold},
		MaxBatch:  w.maxBatch,
		Host:      machine,
		Mounts:    true,
		Timetable: w,
	})
	w.core.At(w.now)
	w.core.Listed(plan.Volume)
	w.core.Listed(plan.Filesystem)
	for _, source := range []plan.Source{plan.Managed, provided(plan.Volume), provided(plan.Filesystem)} {
		w.limits[source] = w.random.IntN(4)
		w.core.SetLimit(source, w.limits[source])
	}
	w.changed = sorted(w.entities)
	w.unseen = make(map[plan.Key]bool)
	for _, key := range w.changed {
		w.unseen[key] = true
	}
	for _, key := range sorted(w.made) {
		if e := w.entities[key]; e == nil || !e.recorded {
			w.lose(key)
		}
	}
}

// lose makes what the provider has a stray: it is there, and is found by its key, but
// nobody need remove it.
func (w *world) lose(key plan.Key) {
	if w.made[key] {
		delete(w.made, key)
		w.stray[key] = true
	}
}

// loseUnrecorded loses a volume or filesystem and its attachments, as far as the state has
// not recorded them.
func (w *world) loseUnrecorded(storage plan.Key) {
	for _, key := range sorted(w.made) {
		if key.Storage() == storage && !w.recorded(key) {
			w.lose(key)
		}
	}
}

// end ends the core. In a crash, the results of running operations are lost.
// Otherwise they are waited for and recorded, as the worker does.
func (w *world) end() {
	crash := w.random.IntN(2) == 0
	w.logf("end, crash: %v", crash)
	for _, batch := range w.batches {
		var done []plan.Result
		for _, item := range batch.Items {
			if w.random.IntN(2) == 0 {
				done = append(done, w.perform(batch.Op, item))
			}
		}
		if !crash {
			w.core.Finished(batch.Source, done)
		}
	}
	if !crash {
		w.clerk()
	}
	w.restart()
}

// set puts an entity into the state, or removes it, and notifies the watchers.
func (w *world) set(key plan.Key, e *entity) {
	if e == nil {
		delete(w.entities, key)
		delete(w.attached, key)
		delete(w.checkFailed, key)
		delete(w.mustCheck, key)
		delete(w.statuses, key)
	} else {
		w.entities[key] = e
	}
	w.notify(key)
}

func (w *world) notify(key plan.Key) {
	w.changed = append(w.changed, key)
	w.unseen[key] = true
}

// of returns the keys of one storage instance that the state has, those of the
// given kinds or of any.
func (w *world) of(id string, kinds ...plan.Kind) []plan.Key {
	var keys []plan.Key
	for _, key := range sorted(w.entities) {
		if key.ID == id && (len(kinds) == 0 || slices.Contains(kinds, key.Kind)) {
			keys = append(keys, key)
		}
	}
	return keys
}

// pick returns a random storage instance that satisfies the condition.
func (w *world) pick(condition func(id string) bool) (string, bool) {
	var ids []string
	for key := range w.entities {
		if !key.Kind.Attachment() && !slices.Contains(ids, key.ID) && condition(key.ID) {
			ids = append(ids, key.ID)
		}
	}
	if len(ids) == 0 {
		return "", false
	}
	slices.Sort(ids)
	return ids[w.random.IntN(len(ids))], true
}

// wanted reports whether a storage instance is there and to stay.
func (w *world) wanted(id string) bool {
	return slices.ContainsFunc(w.of(id, plan.Volume, plan.Filesystem), func(key plan.Key) bool { return w.entities[key].wanted })
}

// want adds storage: a volume with or without an attachment, often a filesystem on it, or
// a filesystem alone. Sometimes it reuses the ID of storage that was dropped.
func (w *world) want() {
	n := w.next
	if len(w.dropped) > 0 && w.random.IntN(2) == 0 {
		n = w.random.IntN(w.next)
	} else {
		w.next++
	}
	id := fmt.Sprint(n)
	if len(w.of(id)) > 0 || n < w.next-1 && !w.dropped[id] {
		return
	}
	w.logf("want %s", id)
	// The ID decides who provides the storage, and whether it is a volume.
	class := []plan.Class{plan.Ours, plan.Ours, plan.Ours, plan.Static, plan.Foreign}[n%5]
	onVolume := w.random.IntN(2) == 0
	if n%6 == 5 {
		w.set(plan.Key{Kind: plan.Filesystem, ID: id}, &entity{life: plan.Alive, wanted: true, class: class, large: 1})
	} else {
		w.set(plan.Key{Kind: plan.Volume, ID: id}, &entity{life: plan.Alive, wanted: true, class: class, large: 1})
		if onVolume {
			w.set(plan.Key{Kind: plan.Filesystem, ID: id}, &entity{life: plan.Alive, wanted: true, backing: id, large: 1})
		}
	}
	if w.random.IntN(6) > 0 {
		w.attach(id)
	}
}

// attach attaches storage to a host. A volume without a filesystem may be attached to
// several.
func (w *world) attach(id string) {
	host := hosts[w.random.IntN(len(hosts))]
	filesystems := w.of(id, plan.Filesystem)
	if len(filesystems) > 0 {
		host = machine
	}
	attachments := w.of(id, plan.VolumeAttachment, plan.FilesystemAttachment)
	for _, key := range attachments {
		if key.Host == host || w.entities[key].life != plan.Alive || len(filesystems) > 0 {
			return
		}
	}
	w.logf("attach %s to %s", id, host)
	for _, key := range w.of(id, plan.Volume, plan.Filesystem) {
		e := w.entities[key]
		w.set(plan.Key{Kind: key.Kind + 2, ID: id, Host: host}, &entity{life: plan.Alive, wanted: true, class: e.class})
		w.notify(key)
	}
}

// detach gives up the attachments of storage that stays.
func (w *world) detach(id string) {
	w.logf("detach %s", id)
	for _, key := range w.of(id, plan.VolumeAttachment, plan.FilesystemAttachment, plan.Plan) {
		w.entities[key].wanted = false
	}
	w.applyLife(id)
}

// unwant removes storage, as far as the life rules allow at once.
func (w *world) unwant(id string) {
	w.logf("unwant %s", id)
	for _, key := range w.of(id) {
		w.entities[key].wanted = false
	}
	w.applyLife(id)
}

// drop removes storage, or only its attachments, from the state at once. What was recorded
// no longer concerns the core.
func (w *world) drop(id string) {
	kinds := []plan.Kind{plan.VolumeAttachment, plan.FilesystemAttachment, plan.Plan}
	if w.random.IntN(2) == 0 {
		kinds = append(kinds, plan.Volume, plan.Filesystem)
	}
	w.logf("drop %s: %v", id, kinds)
	w.dropped[id] = true
	for _, key := range w.of(id, kinds...) {
		if w.entities[key].recorded || w.doubtful[key] {
			w.lose(key)
		}
		if w.doubtful[key.Storage()] {
			w.loseUnrecorded(key.Storage())
		}
		w.set(key, nil)
	}
	w.applyLife(id)
}

// changeArgs changes the parameters of storage and its attachments.
func (w *world) changeArgs(id string) {
	w.logf("change %s", id)
	for _, key := range w.of(id) {
		w.entities[key].version++
		w.notify(key)
	}
}

// raise raises the wanted size of storage.
func (w *world) raise(id string) {
	w.logf("raise %s", id)
	for _, key := range w.of(id, plan.Volume, plan.Filesystem) {
		w.entities[key].large++
		w.notify(key)
	}
}

// applyLife advances the lives of one storage instance as far as the rules allow.
func (w *world) applyLife(id string) {
	step := func(kind plan.Kind, life plan.Life, before ...plan.Kind) {
		if len(w.of(id, before...)) > 0 && len(before) > 0 {
			return
		}
		for _, key := range w.of(id, kind) {
			if e := w.entities[key]; !e.wanted && e.life < life {
				e.life = life
				w.notify(key)
				if key.Kind.Attachment() && w.entities[key.Storage()] != nil {
					w.notify(key.Storage())
				}
			}
		}
	}
	step(plan.FilesystemAttachment, plan.Dying)
	step(plan.Filesystem, plan.Dying)
	step(plan.Filesystem, plan.Dead, plan.FilesystemAttachment)
	step(plan.Plan, plan.Dying, plan.FilesystemAttachment)
	step(plan.VolumeAttachment, plan.Dying, plan.FilesystemAttachment, plan.Plan)
	step(plan.Volume, plan.Dying, plan.Filesystem)
	step(plan.Volume, plan.Dead, plan.Filesystem, plan.VolumeAttachment)
}

// fact reads an entity of the state, limited to what the worker reads.
func (w *world) fact(key plan.Key) plan.Fact {
	f := plan.Fact{Subject: plan.NewSubject(key)}
	if w.chance(20) {
		f.Err = errors.New("reading")
		return f
	}
	e := w.entities[key]
	if e == nil {
		return f
	}
	f.Life, f.Recorded = e.life, e.recorded
	if e.recorded && !key.Kind.Attachment() {
		f.ID, f.Backing, f.Size = providerID(key), e.backing, e.size
	}
	if e.life == plan.Alive {
		f.Wanted = e.large
	}
	provided := func() {
		f.Class = e.class
		f.Source = provided(key.Kind.Storage())
	}
	a := args{key: key, backed: e.backing != "", version: e.version, size: f.Wanted}
	switch {
	case key.Kind == plan.Plan:
		f.Source = plan.Source{Kind: plan.Plan, Provider: "d"}
		f.ID = providerID(key)
		f.Args = a
	case key.Kind.Attachment():
		provided()
		w.hosted(&f, key.Host)
		if storage := w.entities[key.Storage()]; storage != nil && storage.recorded {
			f.ID = providerID(key)
		}
		if filesystem := w.entities[key.Storage()]; filesystem != nil && key.Kind == plan.FilesystemAttachment && w.random.IntN(2) == 0 {
			f.Backing, f.BackingKnown = filesystem.backing, true
		}
		f.Args = a
	case e.recorded && f.Wanted > f.Size:
		provided()
		f.Args = a
	case e.recorded && e.life == plan.Dead:
		provided()
	case !e.recorded && e.life != plan.Dying:
		provided()
		f.Backing = e.backing
		if key.Kind == plan.Filesystem {
			f.Args = a
		}
		for _, attachment := range w.of(key.ID, plan.VolumeAttachment) {
			if key.Kind == plan.Volume && w.entities[attachment].life == plan.Alive {
				w.hosted(&f, attachment.Host)
				a.host = attachment.Host
				f.Args = a
			}
		}
	}
	return f
}

func provided(kind plan.Kind) plan.Source { return plan.Source{Kind: kind, Provider: "p"} }

// hosted completes a fact with a machine, and often with its instance.
func (w *world) hosted(f *plan.Fact, host string) {
	f.Host, f.Instance = host, ""
	if w.provisioned[host] && w.random.IntN(2) == 0 {
		f.Instance = "instance of " + host
	}
}

func providerID(key plan.Key) string { return fmt.Sprintf("id of %s", key.Storage()) }

// unread returns the keys of all that the core wants read.
func unread(core *plan.Core) []plan.Key {
	var keys []plan.Key
	for _, s := range core.Unread(math.MaxInt) {
		keys = append(keys, s.Key())
	}
	return keys
}

// deliver lets the core read some or all changed entities.
func (w *world) deliver() {
	for len(w.changed) > 0 {
		i := w.random.IntN(len(w.changed))
		key := w.changed[i]
		w.changed = slices.Delete(w.changed, i, i+1)
		if w.chance(5) {
			w.changed = append(w.changed, key)
		}
		fact := w.fact(key)
		w.logf("observe %s: life %d, recorded %v, error %v", key, fact.Life, fact.Recorded, fact.Err)
		w.core.Observe(fact)
		if fact.Err == nil {
			delete(w.unseen, key)
			delete(w.unread, key)
		} else {
			w.unread[key] = true
		}
		if w.chance(4) {
			return
		}
	}
}

// start hands the core's batches to the provider, which checks that each may
// start.
func (w *world) start() {
	for _, batch := range w.core.Batches() {
		w.logf("start %s %s: %v", batch.Op, batch.Source, batch.Items)
		if w.maxBatch > 0 && len(batch.Items) > w.maxBatch {
			w.fatalf("%d items in one call, of at most %d", len(batch.Items), w.maxBatch)
		}
		for _, item := range batch.Items {
			w.mayConcern(batch.Source, item)
		}
		for _, item := range batch.Items {
			w.mayStart(batch.Op, item)
			w.running[item.Key()] = batch.Op
		}
		w.batches = append(w.batches, batch)
		calls := 0
		for _, other := range w.batches {
			if other.Source == batch.Source {
				calls++
			}
		}
		if most := max(w.limits[batch.Source], 1); calls > most {
			w.fatalf("%d calls of %s at once, of at most %d", calls, batch.Source, most)
		}
	}
}

// mayConcern checks that a source has one call at a time for a volume or filesystem.
func (w *world) mayConcern(source plan.Source, item plan.Item) {
	for _, other := range w.batches {
		if other.Source != source {
			continue
		}
		for _, o := range other.Items {
			if o.Key().Storage() == item.Key().Storage() {
				w.fatalf("a call about %s during another about %s", item.Key(), o.Key())
			}
		}
	}
}

// mayStart checks that an operation may start now.
func (w *world) mayStart(op plan.Op, item plan.Item) {
	key := item.Key()
	e := w.entities[key]
	if other, ok := w.running[key]; ok {
		w.fatalf("%s of %s during its %s", op, key, other)
	}
	if e != nil && e.class != plan.Ours {
		w.fatalf("%s of %s, which is not ours", op, key)
	}
	if op == plan.Check {
		if e != nil && !w.attached[key] && !w.dropped[key.ID] {
			w.fatalf("look at %s, which this worker has not attached", key)
		}
		if e != nil && !w.mayCheck[key] && !w.dropped[key.ID] {
			w.fatalf("look at %s, although nothing calls for that", key)
		}
		delete(w.mayCheck, key)
		delete(w.mustCheck, key)
		return
	}
	if op == plan.Attach {
		delete(w.mustCheck, key)
	}
	a, background := w.background[key]
	doubted := op == plan.Create && w.doubtful[key] && item.Repeat
	switch {
	case background && (a.op != op || a.args != item.Args):
		w.fatalf("%s of %s with %v during what goes on in the background: %s with %v", op, key, item.Args, a.op, a.args)
	case background && !item.Repeat:
		w.fatalf("%s of %s, which goes on in the background, does not say so", op, key)
	case background, doubted:
	default:
		w.isCalledFor(op, item, e)
	}
	if op == plan.Attach && key.Kind == plan.FilesystemAttachment && !item.Repeat {
		w.good[key] = w.knownUUID[key.ID]
	}
	delete(w.attached, key)
	attached := func(kind plan.Kind) bool {
		for other := range w.made {
			if other.Kind == kind && other.ID == key.ID {
				return true
			}
		}
		for other, op := range w.running {
			if other.Kind == kind && other.ID == key.ID && op == plan.Attach {
				return true
			}
		}
		return false
	}
	var host string
	switch op {
	case plan.Create:
		host = item.Args.(args).host
		// Another worker may detach its volume at any time, and a dropped volume may
		// still be attached.
		volume := w.entities[plan.Key{Kind: plan.Volume, ID: key.ID}]
		ours := volume != nil && volume.class == plan.Ours && !w.dropped[key.ID]
		along := plan.Key{Kind: plan.VolumeAttachment, ID: key.ID, Host: host}
		if w.running[along] == plan.Detach || w.background[along].op == plan.Detach {
			w.fatalf("creation of %s while %s is detached", key, along)
		}
		if item.Args.(args).backed && ours && !attached(plan.VolumeAttachment) {
			w.fatalf("creation of %s before its volume is attached", key)
		}
	case plan.Destroy:
		if attached(key.Kind + 2) {
			w.fatalf("destruction of %s while it is attached", key)
		}
		if key.Kind == plan.Volume && attached(plan.Plan) {
			w.fatalf("destruction of %s while its plan is carried out", key)
		}
	case plan.Attach:
		if key.Kind != plan.Plan {
			host = key.Host
		}
	case plan.Resize:
		w.mayGrow(item)
	case plan.Detach:
		// A detachment in the background is repeated even during a resize, except of a mounted
		// filesystem.
		goesOn := background && key.Kind != plan.FilesystemAttachment
		if op := w.running[key.Storage()]; !goesOn && (op == plan.Resize || w.background[key.Storage()].op == plan.Resize) {
			w.fatalf("detachment of %s while it grows", key)
		}
		if key.Kind == plan.VolumeAttachment && key.Host == machine && attached(plan.FilesystemAttachment) {
			w.fatalf("detachment of %s under a mounted filesystem", key)
		}
		if key.Kind == plan.Plan && attached(plan.FilesystemAttachment) {
			w.fatalf("undoing of %s under a mounted filesystem", key)
		}
		if key.Kind == plan.VolumeAttachment && key.Host == machine && attached(plan.Plan) {
			w.fatalf("detachment of %s before its plan is undone", key)
		}
	}
	if host != "" && item.Instance != "instance of "+host {
		w.fatalf("%s of %s lacks the instance of %s: %+v", op, key, host, item)
	}
	// An entity that was dropped and recreated may be recorded with the result of
	// the old one before the new one has an id.
	storage := w.entities[key.Storage()]
	mixed := e != nil && e.recorded && storage != nil && !storage.recorded && w.dropped[key.ID]
	if op != plan.Create && !mixed && item.ID != providerID(key) {
		w.fatalf("%s of %s lacks the provider's id: %+v", op, key, item)
	}
}

// mayGrow checks that a filesystem grows while it is attached, on a volume that is large
// enough.
func (w *world) mayGrow(item plan.Item) {
	key, size := item.Key(), item.Args.(args).size
	if key.Kind != plan.Filesystem {
		return
	}
	mount := plan.Key{Kind: plan.FilesystemAttachment, ID: key.ID, Host: machine}
	if w.running[mount] == plan.Detach || w.background[mount].op == plan.Detach {
		w.fatalf("growth of %s while it is detached", key)
	}
	if !w.made[mount] && !w.dropped[key.ID] {
		w.fatalf("growth of %s, which is not attached", key)
	}
	if item.Args.(args).backed && w.seen[key.ID] < size {
		w.fatalf("growth of %s to %d on a device of %d", key, size, w.seen[key.ID])
	}
}

// isCalledFor checks that an operation is what the state wants, as far as the
// core has observed the state.
func (w *world) isCalledFor(op plan.Op, item plan.Item, e *entity) {
	key := item.Key()
	if w.unseen[key] || w.dropped[key.ID] {
		return
	}
	storage := w.entities[key.Storage()]
	switch {
	case e == nil && !w.made[key] && !w.undone[key]:
		w.fatalf("%s of %s, which nobody has", op, key)
	case e == nil:
		// It is undone.
	case op == plan.Create && e.recorded:
		w.fatalf("second creation of %s", key)
	case (op == plan.Create || op == plan.Attach) && e.life != plan.Alive:
		w.fatalf("%s of %s, whose life is %d", op, key, e.life)
	case (op == plan.Create || op == plan.Attach) && item.Args.(args).version != e.version:
		w.fatalf("%s of %s with old arguments", op, key)
	case op == plan.Create && item.Args.(args).size != e.large:
		w.fatalf("creation of %s with %d, wanted with %d", key, item.Args.(args).size, e.large)
	case op == plan.Resize && (e.life != plan.Alive || !e.recorded):
		w.fatalf("growth of %s: %+v", key, *e)
	case op == plan.Resize && (item.Args.(args).size != e.large || e.size >= e.large):
		w.fatalf("growth of %s to %d: %+v", key, item.Args.(args).size, *e)
	case (op == plan.Detach || op == plan.Destroy) && e.life == plan.Alive && !w.undone[key]:
		// What may have been removed is removed for certain before it is made again.
		w.fatalf("%s of %s, which is alive", op, key)
	case op == plan.Attach && w.attached[key] && e.recorded && !(w.requested[key] && w.checkFailed[key]) && (key.Kind != plan.FilesystemAttachment || w.good[key] || !w.knownUUID[key.ID]):
		w.fatalf("second attachment of %s", key)
	case op == plan.Attach && key.Kind != plan.Plan && !w.unseen[key.Storage()] && (storage == nil || !storage.recorded):
		w.fatalf("attachment of %s, which is not recorded", key)
	}
}

var faults = []error{
	errors.New("transient"),
	storage.InProgress(errors.New("later")),
	storage.InProgress(errors.New("later still")),
	storage.Permanent(errors.New("impossible")),
	storage.Ignored(errors.New("not mine")),
}

// finish ends one of the running batches.
func (w *world) finish() {
	if len(w.batches) == 0 {
		return
	}
	i := w.random.IntN(len(w.batches))
	batch := w.batches[i]
	w.batches = slices.Delete(w.batches, i, i+1)
	var results []plan.Result
	broken := w.chance(8)
	for _, item := range batch.Items {
		if batch.Op == plan.Check {
			results = append(results, w.look(item, broken))
			continue
		}
		if broken {
			results = append(results, w.doubt(batch.Op, item))
			continue
		}
		if !w.chance(3) {
			results = append(results, w.perform(batch.Op, item))
			continue
		}
		if makes := batch.Op == plan.Create || batch.Op == plan.Destroy; makes && !item.Repeat && w.chance(5) {
			w.logf("%s %s: deferred", batch.Op, item.Key())
			results = append(results, plan.Result{Subject: item.Subject, Deferred: true})
			delete(w.running, item.Key())
			continue
		}
		err := faults[w.random.IntN(len(faults))]
		w.logf("%s %s: %v", batch.Op, item.Key(), err)
		results = append(results, plan.Result{Subject: item.Subject, Err: err})
		delete(w.running, item.Key())
		final := storage.IsPermanent(err) || errors.Is(err, storage.ErrIgnored)
		switch {
		case batch.Op == plan.Create && final:
			w.settled(item.Key())
		case final && w.background[item.Key()].op == batch.Op && w.doubtful[item.Key()] && w.dropped[item.Key().ID]:
			// What an earlier attempt made has no owner: the state has dropped it.
			w.lose(item.Key())
		}
		switch {
		case errors.Is(err, storage.ErrInProgress):
			w.background[item.Key()] = going{batch.Op, item.Args}
		case final || batch.Op == plan.Resize || w.core.LostDevice(item.Key()):
			delete(w.background, item.Key())
		}
	}
	w.core.Finished(batch.Source, results)
}

// look has the provider check an attachment: it succeeds, finds a difference, or fails.
func (w *world) look(item plan.Item, broken bool) plan.Result {
	delete(w.running, item.Key())
	r := plan.Result{Subject: item.Subject, Unknown: broken}
	switch {
	case broken:
		r.Err = errors.New("unknown")
	case w.chance(3):
		r.Err = storage.Permanent(errors.New("it was unmounted"))
		w.checkFailed[item.Key()] = true
	case w.chance(3):
		r.Err = errors.New("it cannot be looked at")
	default:
		delete(w.checkFailed, item.Key())
		delete(w.requested, item.Key())
	}
	w.mayCheck[item.Key()] = w.mayCheck[item.Key()] || r.Err != nil && !storage.IsPermanent(r.Err)
	w.logf("look at %s: %v", item.Key(), r.Err)
	return r
}

// retry has a user retry a volume or filesystem: an attachment whose last or next check
// fails is attached again.
func (w *world) retry() {
	keys := sorted(w.entities)
	if len(keys) == 0 {
		return
	}
	key := keys[w.random.IntN(len(keys))].Storage()
	w.logf("retry %s", key)
	for _, a := range w.of(key.ID, plan.VolumeAttachment, plan.FilesystemAttachment) {
		if a.Storage() == key && w.checkFailed[a] {
			delete(w.attached, a)
		}
		w.requested[a], w.mayCheck[a] = true, true
	}
	w.core.Retry(key)
}

// doubt has an operation fail without saying whether it was done.
func (w *world) doubt(op plan.Op, item plan.Item) plan.Result {
	goesOn, background := w.background[item.Key()]
	if w.random.IntN(2) == 0 {
		w.perform(op, item)
	}
	w.logf("%s %s: nobody knows", op, item.Key())
	delete(w.running, item.Key())
	background = background && op != plan.Resize && !w.core.LostDevice(item.Key())
	if background {
		w.background[item.Key()] = goesOn
	} else {
		delete(w.background, item.Key())
	}
	switch op {
	case plan.Resize:
	case plan.Detach, plan.Destroy:
		w.undone[item.Key()] = true
	default:
		w.doubtful[item.Key()] = true
		onVolume := op == plan.Create && item.Args.(args).backed
		if (w.dropped[item.Key().ID] || onVolume) && !background {
			w.lose(item.Key())
			w.loseUnrecorded(item.Key().Storage())
		}
	}
	return plan.Result{Subject: item.Subject, Err: errors.New("unknown"), Unknown: true}
}

// settled notes that the outcome of a creation is known. A provider refuses for good only
// what it has not made.
func (w *world) settled(key plan.Key) {
	if w.doubtful[key] {
		for _, made := range sorted(w.made) {
			along := key.Kind == plan.Volume && made.Kind == plan.VolumeAttachment && made.ID == key.ID
			if (made == key || along) && !w.recorded(made) {
				w.unmake(made)
			}
		}
	}
	delete(w.doubtful, key)
}

func (w *world) recorded(key plan.Key) bool {
	e := w.entities[key]
	return e != nil && e.recorded
}

// perform has the provider carry out an operation.
func (w *world) perform(op plan.Op, item plan.Item) plan.Result {
	key := item.Key()
	w.logf("%s %s: done", op, key)
	delete(w.running, key)
	delete(w.background, key)
	delete(w.doubtful, key)
	delete(w.undone, key)
	r := plan.Result{Subject: item.Subject}
	switch op {
	case plan.Create:
		if !w.made[key] && !w.stray[key] {
			w.sizes[key] = w.capacity(item)
		}
		w.make(key)
		r.ID, r.Size, r.Info = providerID(key), w.sizes[key], created(w.sizes[key])
		host := item.Args.(args).host
		attached := plan.Key{Kind: plan.VolumeAttachment, ID: key.ID, Host: host}
		for _, other := range sorted(w.made) {
			// A creation leaves the volume attached only where it was last wanted.
			if other.Kind == plan.VolumeAttachment && other.ID == key.ID && other != attached && !w.recorded(other) {
				w.unmake(other)
			}
		}
		if host != "" && (w.made[attached] || w.random.IntN(3) == 0) {
			r.Attached = &plan.Attached{Key: attached, Info: "attached along"}
			w.make(attached)
		}
	case plan.Attach:
		w.make(key)
		r.Info, r.MountPoint = "info", mountPoint(key)
		w.mountedSince[key] = true
	case plan.Resize:
		w.sizes[key] = max(w.sizes[key], w.capacity(item))
		r.Size, r.Info = w.sizes[key], grown(w.sizes[key])
	default:
		w.unmake(key)
	}
	return r
}

// capacity returns the size that a creation or resize results in: on a volume, all of it.
func (w *world) capacity(item plan.Item) uint64 {
	a := item.Args.(args)
	if a.backed {
		return w.sizes[plan.Key{Kind: plan.Volume, ID: item.Key().ID}]
	}
	return a.size
}

func (w *world) make(key plan.Key) {
	w.made[key] = true
	delete(w.stray, key)
}

func (w *world) unmake(key plan.Key) {
	delete(w.made, key)
	delete(w.stray, key)
	if key.Kind == plan.VolumeAttachment && key.Host == machine {
		w.devices[key.ID] = false
	}
	if key.Kind == plan.Volume {
		delete(w.hasUUID, key.ID)
	}
}

// clerk does what the core asks for apart from the batches: it publishes, and looks up
// machines and devices.
func (w *world) clerk() {
	out := w.core.Take()
	for _, s := range out.Publish.Statuses {
		w.logf("status of %s: %s: %s", s.Key(), s.Status, s.Message)
		w.statuses[s.Key()] = s
	}
	for _, r := range out.Publish.Records {
		w.published(r.Key(), func(e *entity) error {
			switch size := r.Info.(type) {
			case created:
				e.size = max(e.size, uint64(size))
			case grown:
				if !e.recorded && !w.dropped[r.Key().ID] {
					w.fatalf("%s has grown, and is not made", r.Key())
				}
				e.size = max(e.size, uint64(size))
			}
			e.recorded = true
			w.attached[r.Key()] = r.Key().Kind.Attachment()
			w.attachedIn[r.Key()] = w.readings
			delete(w.checkFailed, r.Key())
			delete(w.requested, r.Key())
			w.plan(r.Key())
			return nil
		})
	}
	for _, removal := range out.Publish.Removals {
		key := removal.Key()
		w.published(key, func(e *entity) error {
			if e.life == plan.Alive {
				if !w.dropped[key.ID] {
					w.fatalf("removal of %s, which is alive", key)
				}
				return errors.New("it is alive")
			}
			if e.life == plan.Dying && !key.Kind.Attachment() {
				if !w.dropped[key.ID] {
					w.fatalf("removal of %s, which is attached", key)
				}
				return errors.New("it is attached")
			}
			if e.class != plan.Ours {
				w.unmake(key)
			}
			// A volume attached by its creation is detached after the removal.
			if w.made[key] && !w.dropped[key.ID] && key.Kind != plan.VolumeAttachment {
				w.fatalf("removal of %s, which the provider still has", key)
			}
			w.set(key, nil)
			w.applyLife(key.ID)
			return nil
		})
	}
	for _, host := range slices.Compact(slices.Sorted(slices.Values(out.Machines))) {
		if w.asked[host] && !w.provisioned[host] && !w.resynced {
			w.fatalf("%s asked about twice", host)
		}
		w.asked[host] = true
	}
	for _, host := range slices.Sorted(maps.Keys(w.asked)) {
		if w.provisioned[host] {
			w.core.Provisioned(host, "instance of "+host)
		}
	}
	atOnce := 1 + w.random.IntN(3)
	if w.calm {
		atOnce = math.MaxInt
	}
	for _, device := range w.core.Devices(atOnce) {
		volume := device.Volume
		w.tracked[volume] = true
		if !w.core.DeviceWatched(volume) {
			continue
		}
		attachment := w.entities[plan.Key{Kind: plan.VolumeAttachment, ID: volume, Host: machine}]
		known := w.devices[volume] && attachment != nil && attachment.recorded
		w.knownUUID[volume] = known && w.hasUUID[volume]
		w.seen[volume] = w.sizes[plan.Key{Kind: plan.Volume, ID: volume}]
		w.logf("device of %s: known %v, UUID known %v, size %d", volume, known, w.knownUUID[volume], w.seen[volume])
		w.core.DeviceKnown(volume, known, w.knownUUID[volume], w.seen[volume])
	}
	for _, volume := range out.Forgotten {
		delete(w.tracked, volume)
	}
	w.changed = append(w.changed, unread(w.core)...)
}

func (w *world) published(key plan.Key, take func(*entity) error) {
	var err error
	if e := w.entities[key]; w.chance(5) {
		err = errors.New("publishing")
	} else if e == nil {
		err = jujuerrors.NotFoundf("%s", key)
	} else {
		err = take(e)
	}
	w.logf("publish %s: %v", key, err)
	w.core.Published(plan.NewSubject(key), err)
}

// others acts for the other workers, which manage what is not ours.
func (w *world) others() {
	for _, key := range sorted(w.entities) {
		e := w.entities[key]
		storage := w.entities[key.Storage()]
		switch {
		case e.class == plan.Ours:
		case e.life == plan.Alive && !e.recorded && (!key.Kind.Attachment() || storage != nil && storage.recorded):
			w.logf("others make %s", key)
			w.make(key)
			e.recorded = true
			e.size, w.sizes[key] = e.large, e.large
			w.notify(key)
			w.plan(key)
		case e.life == plan.Alive && e.size < e.large:
			// The state does not report this: the worker sees the device grow.
			w.logf("others grow %s", key)
			e.size, w.sizes[key] = e.large, e.large
			w.core.DevicesChanged()
		case e.class == plan.Foreign && (e.life == plan.Dead || e.life == plan.Dying && key.Kind.Attachment()):
			w.logf("others remove %s", key)
			w.unmake(key)
			w.core.DevicesChanged()
			w.set(key, nil)
			w.applyLife(key.ID)
		}
	}
}

// plan gives some of the volumes that are attached to the machine a plan.
func (w *world) plan(key plan.Key) {
	if key.Kind != plan.VolumeAttachment || key.Host != machine || len(key.ID)%2 == 0 {
		return
	}
	e := w.entities[key]
	key.Kind = plan.Plan
	if w.entities[key] == nil && e.life == plan.Alive {
		w.set(key, &entity{life: plan.Alive, recorded: true, wanted: e.wanted})
		w.applyLife(key.ID)
	}
}

// surroundings changes something outside the core: machines come up, devices appear and
// vanish, time passes, the environment's configuration changes, other workers work, a
// resync begins.
func (w *world) surroundings() {
	switch w.random.IntN(10) {
	case 9:
		w.readMounts()
	case 8:
		w.changeMounts()
	case 7:
		w.retry()
	case 6:
		w.resynced = true
		w.reasonToCheck(func(key plan.Key) bool { return w.attached[key] && key.Kind != plan.Plan }, func(plan.Key) bool { return true })
		w.core.Resync()
	case 0:
		w.provisioned[fmt.Sprintf("machine-%d", w.random.IntN(2))] = true
	case 1:
		w.appear()
	case 2:
		for _, id := range slices.Sorted(maps.Keys(w.devices)) {
			if w.random.IntN(2) == 0 {
				w.devices[id] = false
			}
		}
		w.core.DevicesChanged()
	case 3:
		w.pass(time.Duration(w.random.IntN(10)) * time.Second)
	case 4:
		w.core.Refresh()
	case 5:
		w.others()
	}
}

// mountPoint returns where the provider mounts filesystems; for some it does not say.
func mountPoint(key plan.Key) string {
	var n int
	if _, err := fmt.Sscan(key.ID, &n); err != nil {
		panic(err)
	}
	if key.Kind != plan.FilesystemAttachment || n%7 == 6 {
		return ""
	}
	return fmt.Sprintf("/mnt/%d/%d", n%2, n)
}

// changeMounts changes mounts at a few paths.
func (w *world) changeMounts() {
	var paths []string
	if w.random.IntN(4) == 0 {
		all := []string{"/", "/mnt", "/mnt/1", "/mn"}
		paths = append(paths, all[w.random.IntN(len(all))])
	}
	for range 1 + w.random.IntN(2) {
		paths = append(paths, fmt.Sprintf("/mnt/%d/%d", w.random.IntN(2), w.random.IntN(w.next+1)))
	}
	w.logf("mounts at %q change", paths)
	w.changes = append(w.changes, paths...)
	w.reasonToCheck(func(key plan.Key) bool { return concerns(paths, key) }, func(plan.Key) bool { return false })
}

// concerns reports whether changes of mounts at some paths concern a filesystem.
func concerns(paths []string, key plan.Key) bool {
	at := mountPoint(key)
	return key.Kind == plan.FilesystemAttachment && (at == "" || slices.ContainsFunc(paths, func(path string) bool {
		return path == "/" || at == path || strings.HasPrefix(at, path+"/")
	}))
}

// readMounts begins a reading of the mounts if any have changed, or ends the one under way.
func (w *world) readMounts() {
	if !w.reading {
		if len(w.changes) > 0 {
			w.logf("reading the mounts")
			w.readings, w.reading = w.readings+1, true
			w.shown, w.changes = w.changes, nil
			w.mountedBefore, w.mountedSince = w.mountedSince, make(map[plan.Key]bool)
			w.core.ReadingMounts()
		}
		return
	}
	w.reading = false
	w.now = w.now.Add(1) // two events have different times
	w.core.At(w.now)
	all := w.random.IntN(4) == 0
	shown := slices.DeleteFunc(w.shown, func(path string) bool {
		for key := range w.mountedBefore {
			if mountPoint(key) == path {
				return true
			}
		}
		return false
	})
	w.logf("mounts at %q have changed, or any: %v", shown, all)
	w.reasonToCheck(func(plan.Key) bool { return false }, func(key plan.Key) bool {
		// New attachments and those under way are checked, whatever has changed.
		return key.Kind == plan.FilesystemAttachment &&
			(all || concerns(shown, key) || w.checkFailed[key] || !w.attached[key] || w.attachedIn[key]+1 >= w.readings)
	})
	if all {
		w.core.CheckAllMounts()
	} else {
		w.core.CheckMounts(shown)
	}
}

// reasonToCheck notes what must be checked, if this worker has attached it, and what else may be.
func (w *world) reasonToCheck(must, may func(plan.Key) bool) {
	for _, key := range sorted(w.entities) {
		if must(key) {
			w.mustCheck[key], w.mayCheck[key] = true, true
		} else if may(key) {
			w.mayCheck[key] = true
		}
	}
}

// appear makes the devices of attached volumes appear.
func (w *world) appear() {
	for _, key := range append(sorted(w.made), sorted(w.stray)...) {
		if key.Kind == plan.VolumeAttachment && key.Host == machine && (w.calm || w.random.IntN(2) == 0) {
			w.devices[key.ID] = true
			w.hasUUID[key.ID] = w.hasUUID[key.ID] || w.calm || w.random.IntN(2) == 0
		}
	}
	w.core.DevicesChanged()
}

func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.core.At(w.now)
	var ready []due
	for key, d := range w.scheduled {
		if !d.at.After(w.now) {
			ready = append(ready, d)
			delete(w.scheduled, key)
		}
	}
	slices.SortFunc(ready, func(a, b due) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.order, b.order))
	})
	var values []any
	for _, d := range ready {
		values = append(values, d.value)
	}
	w.core.Due(values)
}

// user adds, changes or removes storage.
func (w *world) user() {
	anyone := func(string) bool { return true }
	actions := []struct {
		do    func(id string)
		whose func(id string) bool
	}{
		{w.unwant, w.wanted}, {w.unwant, w.wanted}, {w.detach, w.wanted}, {w.attach, w.wanted}, {w.changeArgs, anyone}, {w.drop, anyone},
		{w.raise, w.wanted}, {w.raise, w.wanted},
	}
	if w.random.IntN(2) == 0 {
		w.want()
		return
	}
	action := actions[w.random.IntN(len(actions))]
	if id, ok := w.pick(action.whose); ok {
		action.do(id)
	}
}

// rest runs until nothing happens any more. Nothing fails.
func (w *world) rest() {
	w.calm = true
	w.provisioned["machine-0"], w.provisioned["machine-1"] = true, true
	w.core.Refresh()
	for rounds, quiet := 0, 0; quiet < 5; rounds++ {
		if rounds == 500 {
			w.fatalf("no rest: %+v", w.scheduled)
		}
		quiet++
		w.others()
		w.readMounts()
		w.deliver()
		w.start()
		w.checkReport()
		if len(w.batches)+len(w.scheduled)+len(w.changes) > 0 || w.reading {
			quiet = 0
		}
		w.finish()
		w.appear()
		w.clerk()
		w.pass(time.Minute)
	}
}

// checkReport checks the core's report against the world.
func (w *world) checkReport() {
	w.t.Helper()
	pending := w.core.Report(1000).Pending
	queued := make(map[plan.Kind]map[plan.Op]int)
	var reported, scheduled []time.Time
	unreadable := make(map[plan.Key]time.Time)
	running := 0
	for _, p := range pending {
		switch p.Phase {
		case "queued":
			if queued[p.Key.Kind] == nil {
				queued[p.Key.Kind] = make(map[plan.Op]int)
			}
			queued[p.Key.Kind][p.Op]++
		case "running":
			running++
			if w.running[p.Key] != p.Op {
				w.fatalf("%s of %s is reported to run", p.Op, p.Key)
			}
		case "unreadable":
			unreadable[p.Key] = p.Due
			continue
		}
		if (p.Phase == "waiting") != (p.WaitsFor != "") && p.Phase != "stalled" {
			w.fatalf("the phase does not match WaitsFor: %+v", p)
		}
		if (p.Failures > 0) != (p.Failure != "") {
			w.fatalf("Failures does not match Failure: %+v", p)
		}
		if !p.Due.IsZero() && p.Phase != "waiting" {
			reported = append(reported, p.Due)
		}
	}
	if running != len(w.running) {
		w.fatalf("%d operations are reported to run: %v", running, w.running)
	}
	for kind := plan.Volume; kind <= plan.Plan; kind++ {
		for op := plan.Destroy; op <= plan.Resize; op++ {
			if n := w.core.Queued(kind, op); n != queued[kind][op] {
				w.fatalf("%d of kind %s are queued to %s, and %d are reported: %+v", n, kind, op, queued[kind][op], pending)
			}
		}
	}
	for _, d := range w.scheduled {
		if key, ok := d.value.(plan.Key); !ok {
			scheduled = append(scheduled, d.at)
		} else if !w.unread[key] {
			w.fatalf("%s is to be read again, though it could be read", key)
		} else if due, ok := unreadable[key]; ok && due != d.at {
			w.fatalf("%s is to be read again at %v, and %v is reported", key, d.at, due)
		}
	}
	slices.SortFunc(reported, time.Time.Compare)
	slices.SortFunc(scheduled, time.Time.Compare)
	if !slices.Equal(reported, scheduled) {
		w.fatalf("due are %v, and reported %v: %+v", scheduled, reported, pending)
	}
}

// check checks that the provider has exactly what the state wants.
func (w *world) check() {
	w.t.Helper()
	pending := w.core.Report(1000).Pending
	w.logf("at rest: %+v", pending)
	impossible := func(id string) bool {
		attachments := w.of(id, plan.VolumeAttachment, plan.FilesystemAttachment)
		return len(attachments) == 0 || slices.ContainsFunc(attachments, func(key plan.Key) bool { return key.Host == "machine-2" })
	}
	unattached := func(storage plan.Key) bool {
		return storage.Kind == plan.Filesystem && w.entities[plan.Key{Kind: plan.FilesystemAttachment, ID: storage.ID, Host: machine}] == nil
	}
	for _, key := range sorted(w.entities) {
		e := w.entities[key]
		switch {
		case !e.wanted:
			w.fatalf("%s is still there: %+v", key, *e)
		case impossible(key.ID):
		case !e.recorded:
			w.fatalf("%s was never provisioned", key)
		case w.mustCheck[key] && w.attached[key] && e.class == plan.Ours:
			w.fatalf("%s has not been checked", key)
		case e.size < e.large && !unattached(key):
			w.fatalf("%s has not grown: %+v", key, *e)
		case e.size >= e.large && strings.Contains(w.statuses[key].Message, "grow"):
			w.fatalf("%s has grown, and its status is %v", key, w.statuses[key])
		case !w.made[key] && !w.stray[key]:
			w.fatalf("%s is recorded, but the provider does not have it", key)
		case key.Kind == plan.FilesystemAttachment && w.knownUUID[key.ID] && !w.good[key]:
			w.fatalf("%s has not been attached again although its device has a UUID", key)
		}
	}
	for _, key := range sorted(w.made) {
		if w.entities[key] == nil {
			w.fatalf("the provider has %s, which nobody wants", key)
		}
	}
	for _, p := range pending {
		if !impossible(p.Key.ID) && !(p.Op == plan.Resize && unattached(p.Key)) {
			w.fatalf("unfinished at rest: %+v", p)
		}
	}
}

// seeds is raised for a longer search.
var seeds = flag.Uint64("seeds", 500, "how many random histories to run; with -short a fifth of them")

// In any order of events, no forbidden operation starts, the provider ends with exactly
// what the state wants, and once nothing is wanted the core remembers nothing.
// Behaviour 35.
func TestRandomHistories(t *testing.T) {
	seeds := *seeds
	if testing.Short() {
		seeds /= 5
	}
	for seed := range seeds {
		w := newWorld(t, seed)
		for range 200 {
			switch w.random.IntN(16) {
			case 0, 1, 2:
				w.user()
			case 3, 4, 5:
				w.deliver()
			case 6, 7, 8:
				w.finish()
			case 9, 10, 11:
				w.surroundings()
			case 12:
				if w.chance(10) {
					w.end()
				}
			default:
				w.clerk()
			}
			w.start()
			w.checkReport()
		}
		w.rest()
		w.check()
		for _, key := range sorted(w.entities) {
			w.unwant(key.ID)
		}
		w.rest()
		w.check()
		if left := w.core.Leftovers(); len(left) > 0 {
			w.fatalf("the core remembers:\n%s", strings.Join(left, "\n"))
		}
		if len(w.tracked) > 0 {
			w.fatalf("the devices of volumes are still looked up: %v", w.tracked)
		}
	}
}
