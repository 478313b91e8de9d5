package plan_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	jujuerrors "github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// world is everything around a core, as small as it can be: the state with its
// life rules, a provider that notices when it is asked for what must never be
// asked, and a user who wants things.
type world struct {
	t      *testing.T
	seed   uint64
	random *rand.Rand
	core   *plan.Core
	now    time.Time
	log    []string

	// The state.
	entities map[plan.Key]*entity
	next     int

	// The provider: what there is, by key, and what is being done.
	made    map[plan.Key]bool
	running map[plan.Key]plan.Op
	batches []plan.Batch

	devices     map[string]bool
	provisioned map[string]bool
	asked       map[string]bool
	changed     []plan.Key
	scheduled   map[any]due
	order       int
	calm        bool
}

// machine is the one that the core works for; volumes may also be attached to
// another.
const machine = "machine-0"

type entity struct {
	life     plan.Life
	recorded bool
	backing  string
	wanted   bool
	machine  string
}

type due struct {
	value any
	at    time.Time
	order int
}

// sorted returns the keys of a map in a fixed order, so that a seed is a history.
func sorted[V any](m map[plan.Key]V) []plan.Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b plan.Key) int {
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
		made:        make(map[plan.Key]bool),
		devices:     make(map[string]bool),
		provisioned: make(map[string]bool),
	}
	w.restart()
	return w
}

// Add and Remove make the world the core's timetable.
func (w *world) Add(key, value any, at time.Time) {
	w.order++
	w.scheduled[key] = due{value, at, w.order}
}

func (w *world) Remove(key any) { delete(w.scheduled, key) }

// restart starts a new core, which knows nothing. What the old one had running
// has been waited for and recorded, as the worker does at its end, or lost in a
// crash.
func (w *world) restart() {
	w.scheduled = make(map[any]due)
	w.running = make(map[plan.Key]plan.Op)
	w.asked = make(map[string]bool)
	w.batches = nil
	w.core = plan.New(plan.Options{
		Retry:     plan.Retry{Min: time.Second, Max: time.Minute, Factor: 2},
		MaxBatch:  w.random.IntN(3),
		Host:      machine,
		Timetable: w,
	})
	w.changed = sorted(w.entities)
}

func (w *world) logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d: %s\n%s", w.seed, fmt.Sprintf(format, args...), strings.Join(w.log, "\n"))
}

// set changes an entity of the state, and has a watcher tell of it.
func (w *world) set(key plan.Key, e *entity) {
	w.entities[key] = e
	w.changed = append(w.changed, key)
}

// want adds a volume with its attachment, and often a filesystem on it.
func (w *world) want() {
	id := fmt.Sprint(w.next)
	host := machine
	if w.random.IntN(3) == 0 {
		host = "machine-1"
	}
	w.next++
	volume := plan.Key{Kind: plan.Volume, ID: id}
	w.set(volume, &entity{life: plan.Alive, wanted: true, machine: host})
	w.set(plan.Key{Kind: plan.VolumeAttachment, ID: id, Host: host}, &entity{life: plan.Alive, wanted: true, machine: host})
	if host == machine && w.random.IntN(2) == 0 {
		w.set(plan.Key{Kind: plan.Filesystem, ID: id}, &entity{life: plan.Alive, wanted: true, backing: id})
		w.set(plan.Key{Kind: plan.FilesystemAttachment, ID: id, Host: host}, &entity{life: plan.Alive, wanted: true, machine: host})
	}
	w.logf("want %s on %s", id, host)
}

// unwant removes storage, as far as the life rules allow at once.
func (w *world) unwant() {
	var alive []plan.Key
	for _, key := range sorted(w.entities) {
		if key.Kind == plan.Volume && w.entities[key].life == plan.Alive {
			alive = append(alive, key)
		}
	}
	if len(alive) == 0 {
		return
	}
	id := alive[w.random.IntN(len(alive))].ID
	w.logf("unwant %s", id)
	for key, e := range w.entities {
		if key.ID == id {
			e.wanted = false
		}
	}
	w.applyLife(id)
}

// applyLife moves the lives of one storage instance on as far as they go.
func (w *world) applyLife(id string) {
	volume, filesystem := plan.Key{Kind: plan.Volume, ID: id}, plan.Key{Kind: plan.Filesystem, ID: id}
	var volumeAttachment, filesystemAttachment plan.Key
	for key := range w.entities {
		if key.ID == id && key.Kind == plan.VolumeAttachment {
			volumeAttachment = key
		}
		if key.ID == id && key.Kind == plan.FilesystemAttachment {
			filesystemAttachment = key
		}
	}
	if e := w.entities[volume]; e == nil || e.wanted {
		return
	}
	step := func(key plan.Key, life plan.Life, beneath ...plan.Key) {
		e := w.entities[key]
		if e == nil || e.life >= life {
			return
		}
		for _, other := range beneath {
			if w.entities[other] != nil {
				return
			}
		}
		e.life = life
		w.changed = append(w.changed, key)
	}
	step(filesystemAttachment, plan.Dying)
	step(filesystem, plan.Dying)
	step(filesystem, plan.Dead, filesystemAttachment)
	step(volumeAttachment, plan.Dying, filesystemAttachment)
	step(volume, plan.Dying, filesystem)
	step(volume, plan.Dead, filesystem, volumeAttachment)
}

// fact reads an entity of the state.
func (w *world) fact(key plan.Key) plan.Fact {
	f := plan.Fact{Key: key}
	if !w.calm && w.random.IntN(20) == 0 {
		f.Err = errors.New("reading")
		return f
	}
	e := w.entities[key]
	if e == nil {
		return f
	}
	f.Life, f.Recorded, f.Backing, f.Host = e.life, e.recorded, e.backing, e.machine
	f.Source = plan.Source{Kind: key.Kind.Storage(), Provider: "p"}
	if e.recorded {
		f.ID = "id-" + key.ID
	}
	if key.Kind.Attachment() {
		f.ID = ""
	}
	f.Args = "args of " + key.String()
	return f
}

// deliver lets the core read some or all of what has changed.
func (w *world) deliver() {
	for len(w.changed) > 0 {
		i := w.random.IntN(len(w.changed))
		key := w.changed[i]
		w.changed = slices.Delete(w.changed, i, i+1)
		if w.random.IntN(5) == 0 {
			w.changed = append(w.changed, key)
		}
		w.logf("observe %s", key)
		w.core.Observe(w.fact(key), w.now)
		if !w.calm && w.random.IntN(4) == 0 {
			return
		}
	}
}

// start hands the core's batches to the provider, which checks that each may
// start.
func (w *world) start() {
	for _, batch := range w.core.Batches() {
		w.logf("start %s %s: %v", batch.Op, batch.Source, batch.Items)
		for _, item := range batch.Items {
			w.mayStart(batch.Op, item)
			w.running[item.Key] = batch.Op
		}
		w.batches = append(w.batches, batch)
	}
}

// mayStart holds the rules of what never happens.
func (w *world) mayStart(op plan.Op, item plan.Item) {
	key := item.Key
	if other, ok := w.running[key]; ok {
		w.fatalf("%s of %s during its %s", op, key, other)
	}
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
	switch op {
	case plan.Create:
		if e := w.entities[key]; e != nil && e.recorded {
			w.fatalf("second creation of %s", key)
		}
		if key.Kind == plan.Filesystem && !attached(plan.VolumeAttachment) {
			w.fatalf("creation of %s before its volume is attached", key)
		}
	case plan.Destroy:
		if kind := key.Kind + 2; attached(kind) {
			w.fatalf("destruction of %s while it is attached", key)
		}
		if item.ID == "" {
			w.fatalf("destruction of %s without an id", key)
		}
	case plan.Attach:
		if e := w.entities[key.Storage()]; e == nil || !e.recorded {
			w.fatalf("attachment of %s, which is not recorded", key)
		}
		if item.Instance == "" || item.ID == "" {
			w.fatalf("attachment %+v lacks an id", item)
		}
	case plan.Detach:
		if key.Kind == plan.VolumeAttachment && attached(plan.FilesystemAttachment) {
			w.fatalf("detachment of %s beneath a mounted filesystem", key)
		}
	}
}

var faults = []error{
	errors.New("transient"),
	storage.InProgress(errors.New("later")),
	storage.InProgress(errors.New("later still")),
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
	for _, item := range batch.Items {
		r := plan.Result{Key: item.Key}
		delete(w.running, item.Key)
		if !w.calm && w.random.IntN(3) == 0 {
			r.Err = faults[w.random.IntN(len(faults))]
			results = append(results, r)
			w.logf("%s %s: %v", batch.Op, item.Key, r.Err)
			continue
		}
		w.logf("%s %s: done", batch.Op, item.Key)
		switch batch.Op {
		case plan.Create:
			w.made[item.Key] = true
			r.ID, r.Info = "id-"+item.Key.ID, "info"
			va := w.attachmentOf(item.Key)
			if item.Key.Kind == plan.Volume && va != (plan.Key{}) && w.random.IntN(3) == 0 {
				w.made[va] = true
				r.Attached, r.AttachedInfo = va, "attached"
			}
		case plan.Attach:
			w.made[item.Key] = true
			r.Info = "info"
		default:
			delete(w.made, item.Key)
			if batch.Op == plan.Detach && item.Key.Kind == plan.VolumeAttachment {
				w.devices[item.Key.ID] = false
			}
		}
		results = append(results, r)
	}
	w.core.Finished(batch.Source, results, w.now)
}

func (w *world) attachmentOf(volume plan.Key) plan.Key {
	for key := range w.entities {
		if key.Kind == plan.VolumeAttachment && key.ID == volume.ID {
			return key
		}
	}
	return plan.Key{}
}

// clerk does what the core asks beside the batches.
func (w *world) clerk() {
	out := w.core.Take()
	for _, r := range out.Publish.Records {
		w.published(r.Key, func(e *entity) { e.recorded = true })
	}
	for _, key := range out.Publish.Removals {
		w.published(key, func(e *entity) {
			if e.life == plan.Alive {
				w.fatalf("removal of %s, which is alive", key)
			}
			delete(w.entities, key)
			w.changed = append(w.changed, key)
			w.applyLife(key.ID)
		})
	}
	for _, host := range out.Machines {
		if w.asked[host] {
			w.fatalf("%s asked about twice", host)
		}
		w.asked[host] = true
	}
	for _, host := range slices.Sorted(maps.Keys(w.asked)) {
		if w.provisioned[host] {
			w.core.Provisioned(host, "instance of "+host)
		}
	}
	for _, volume := range out.Devices {
		w.core.DeviceKnown(volume, w.devices[volume])
	}
	w.changed = append(w.changed, out.Unread...)
}

func (w *world) published(key plan.Key, take func(*entity)) {
	if !w.calm && w.random.IntN(5) == 0 {
		w.logf("publish %s: fails", key)
		w.core.Published(key, errors.New("publishing"), w.now)
		return
	}
	w.logf("publish %s", key)
	e := w.entities[key]
	if e == nil {
		w.core.Published(key, jujuerrors.NotFoundf("%s", key), w.now)
		return
	}
	take(e)
	w.core.Published(key, nil, w.now)
}

// surroundings change: machines come up, devices appear, time passes.
func (w *world) surroundings() {
	switch w.random.IntN(3) {
	case 0:
		w.provisioned[fmt.Sprintf("machine-%d", w.random.IntN(2))] = true
	case 1:
		w.appear()
	case 2:
		w.pass(time.Duration(w.random.IntN(10)) * time.Second)
	}
}

// appear has the devices of attached volumes known.
func (w *world) appear() {
	for _, key := range sorted(w.made) {
		if key.Kind == plan.VolumeAttachment && (w.calm || w.random.IntN(2) == 0) {
			w.devices[key.ID] = true
		}
	}
	w.core.DevicesChanged()
}

func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
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

// settle lets everything come to rest with nothing failing any more, and checks
// that the provider has exactly what the state wants.
func (w *world) settle() {
	w.calm = true
	for i := range 2 {
		w.provisioned[fmt.Sprintf("machine-%d", i)] = true
	}
	for range 500 {
		w.deliver()
		w.start()
		w.finish()
		w.appear()
		w.clerk()
		w.pass(time.Minute)
	}
	_, pending := w.core.Report(100)
	w.logf("at rest: %+v", pending)
	for key, e := range w.entities {
		switch {
		case !e.wanted:
			w.fatalf("%s is still there: %+v", key, *e)
		case !e.recorded:
			w.fatalf("%s was never provisioned", key)
		case !w.made[key]:
			w.fatalf("%s is recorded, but the provider does not have it", key)
		}
	}
	for key := range w.made {
		if w.entities[key] == nil {
			w.fatalf("the provider has %s, which nobody wants", key)
		}
	}
	if len(pending) > 0 {
		w.fatalf("unfinished at rest: %+v", pending)
	}
	if len(w.scheduled) > 0 {
		w.fatalf("scheduled at rest: %+v", w.scheduled)
	}
}

// Whatever happens in whatever order, nothing forbidden is started, and in the
// end the provider has what the state wants and nothing else.
func TestRandomHistories(t *testing.T) {
	seeds, steps := uint64(500), 200
	if testing.Short() {
		seeds = 100
	}
	for seed := range seeds {
		w := newWorld(t, seed)
		for range steps {
			switch w.random.IntN(8) {
			case 0:
				w.want()
			case 1:
				w.unwant()
			case 2, 3:
				w.deliver()
			case 4:
				w.finish()
			case 5:
				w.surroundings()
			default:
				w.clerk()
			}
			w.start()
		}
		w.settle()
	}
}
