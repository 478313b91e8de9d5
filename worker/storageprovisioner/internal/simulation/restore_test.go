package simulation

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/juju/clock"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
)

// marks keeps the mark of the state, which is not restored with it.
type marks struct {
	mu      sync.Mutex
	mark    state.Mark
	written bool
}

func (m *marks) Read() (state.Mark, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mark, m.written, nil
}

func (m *marks) Write(mark state.Mark) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mark, m.written = mark, true
	return nil
}

// backup is a copy of the state, and of what the world knew of it then.
type backup struct {
	store     *kvtest.Memory
	recorded  map[string]string
	attempted map[string]bool
	on        map[string]names.MachineTag
}

// copyStore returns a copy of a store.
func (w *world) copyStore(from *kvtest.Memory) *kvtest.Memory {
	values := make(map[string][]byte)
	w.must(from.View(context.Background(), func(s kv.Snapshot) error {
		return s.Scan("", func(key string, value []byte) error {
			values[key] = append([]byte(nil), value...)
			return nil
		})
	}))
	to := kvtest.NewMemory()
	w.must(to.Update(context.Background(), func(tx kv.Tx) error {
		for _, key := range sortedKeys(values) {
			tx.Put(key, values[key])
		}
		return nil
	}))
	return to
}

// older backs up the state, restores the backup, or makes the state a copy.
func (w *world) older(s step) bool {
	switch {
	case !w.restored:
		return false
	case s.which%8 == 7 && w.hosted:
		return false // a copy gets no volumes of a driver: they are the original's
	case s.which%8 == 7:
		w.becomeCopy(s.dice)
		return true
	case w.backup == nil || s.which%2 == 0:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.logf("the state is backed up")
		w.backup = &backup{w.copyStore(w.store), maps.Clone(w.recorded), maps.Clone(w.attempted), maps.Clone(w.on)}
		return true
	}
	w.restore(luck{dice: s.dice})
	return true
}

// restoring names the operation that restores a state.
const restoring = "restore"

// restore restores the backup of the state, with all workers stopped, no operation running,
// and everything detached except what was attached to its machine since the backup. What was
// made since is an orphan, what was destroyed since is missing, and some things have another
// owner.
func (w *world) restore(l luck) {
	w.crashAll(l.dice)
	w.must(w.state.Close())
	w.logf("the state is restored")
	w.mu.Lock()
	w.finishAll()
	clear(w.going)
	w.mu.Unlock()
	w.store = w.copyStore(w.backup.store)
	w.recorded, w.attempted, w.on = maps.Clone(w.backup.recorded), maps.Clone(w.backup.attempted), maps.Clone(w.backup.on)
	var since []*thing
	if l.once(3) {
		since = w.detachBefore()
	}
	w.open()
	if !w.state.Restored() {
		w.must(w.state.RaiseGeneration())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.restores++
	clear(w.untold)
	clear(w.lostStatus)
	all, err := w.state.AllStorage()
	w.must(err)
	known := make(map[string]bool)
	for _, s := range all {
		for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
			if e != nil {
				known[e.Tag.String()] = true
			}
		}
	}
	clear(w.unsure)
	for tag := range known {
		w.unsure[tag] = w.recorded[tag] == ""
		if w.recorded[tag] != "" && w.things[tag] == nil {
			w.failed[restoring+" misses a thing"]++
		}
	}
	for tag, r := range w.requests {
		if !known[tag] {
			delete(w.requests, tag)
		}
		r.stray = w.recorded[tag] == "" && !w.attempted[tag]
	}
	for _, tag := range sortedKeys(w.things) {
		t := w.things[tag]
		clear(t.at)
		t.inUse = false
		switch {
		case !known[tag]:
			delete(w.things, tag)
			w.orphans[tag] = t
			w.failed[restoring+" leaves an orphan"]++
		case w.recorded[tag] == t.id && t.provider != tree && l.once(6):
			w.logf("%s has another owner", t.id)
			w.failed[restoring+" finds a thing of another owner"]++
			t.foreign, t.owner = true, storage.Owner{ModelUUID: "another", EntityUUID: "another"}
		case w.recorded[tag] == "" && !w.attempted[tag]:
			t.stray = true
			w.failed[restoring+" finds an unrecorded thing"]++
		}
	}
	for _, t := range since {
		if t.foreign || t.on != nil && t.on.foreign || t.holds != nil && t.holds.foreign {
			continue
		}
		t.inUse, t.at[t.machine()] = true, &place{}
		if t.kind() == names.VolumeTagKind {
			w.show(t.at[t.machine()], t.machine())
		}
		w.failed[restoring+" finds a thing in use"]++
	}
}

// noteUnwanted notes that the user has detached, removed or released storage. A restored state
// then assumes that an entity that it has not recorded may have been made since the backup.
func (w *world) noteUnwanted(s state.Storage, err error) {
	if err != nil || s.Life != life.Alive {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
		if e == nil || !w.unsure[e.Tag.String()] || w.recorded[e.Tag.String()] != "" {
			continue
		}
		w.attempted[e.Tag.String()] = true
		if t := w.things[e.Tag.String()]; t != nil {
			t.stray = false
		}
	}
}

// detachBefore detaches storage of machines in the restored state, as if it had been attached
// after the backup. All of it exists and belongs to the state. It returns the things, volumes
// first.
func (w *world) detachBefore() (since []*thing) {
	st, err := state.Open(state.Config{Store: w.store, Clock: clock.WallClock, Registry: registry(nil)})
	w.must(err)
	all, err := st.AllStorage()
	w.must(err)
	for _, s := range all {
		things := w.there(s)
		if s.Life != life.Alive || len(things) == 0 {
			continue
		}
		w.must(st.DetachStorage([]string{s.Name}))
		delete(w.on, s.Name)
		for _, t := range slices.Backward(things) {
			machine, err := names.ParseMachineTag(t.machine())
			w.must(err)
			id := params.MachineStorageId{MachineTag: t.machine(), AttachmentTag: t.tag}
			_, err = st.ForMachine(machine).RemoveAttachments([]params.MachineStorageId{id})
			w.must(err)
			delete(w.attempted, t.tag+"@"+t.machine())
		}
		since = append(since, things...)
	}
	w.must(st.Close())
	return since
}

// there returns the things of a storage instance of a machine, if all of them exist and are
// recorded.
func (w *world) there(s state.Storage) (things []*thing) {
	for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
		if e == nil {
			continue
		}
		t := w.things[e.Tag.String()]
		if t == nil || t.foreign || t.ofEnviron() || w.recorded[t.tag] != t.id {
			return nil
		}
		things = append(things, t)
	}
	return things
}

// machine returns the tag of the machine that a thing cannot leave.
func (t *thing) machine() string {
	number, _, _ := strings.Cut(strings.TrimPrefix(t.tag, t.kind()+"-"), "-")
	return names.NewMachineTag(number).String()
}

// lost reports whether a restored state records a thing that is missing or has another owner.
func (w *world) lost(e *state.Entity) bool {
	if e == nil || w.restores == 0 || e.ProviderID == "" {
		return false
	}
	t := w.things[e.Tag.String()]
	return t == nil || t.foreign
}
