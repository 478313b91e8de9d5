package simulation

import (
	"strings"

	"github.com/stowage-io/stowage/storage"
)

// copying names the operation by which a state becomes a copy.
const copying = "copy"

// becomeCopy makes the state a copy, as if its directory had been copied together with the
// storage of the machines, while no operation runs. The storage of the environment stays with
// the original, and no worker may call a provider for it. The storage of a machine exists
// twice, and is attached only for the original.
func (w *world) becomeCopy(dice uint32) {
	w.crashAll(dice)
	w.logf("the state becomes a copy")
	copied, err := w.state.BecomeCopy()
	w.must(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.backup = nil // it belongs to the original
	w.finishAll()
	clear(w.going)
	clear(w.untold)
	clear(w.lostStatus)
	own := make(map[string]bool)
	for _, e := range copied.Entities {
		tag := e.Tag.String()
		own[tag] = true
		former := storage.Owner{ModelUUID: copied.FormerUUID, EntityUUID: e.FormerUUID}
		now := storage.Owner{ModelUUID: w.state.UUID(), EntityUUID: e.UUID}
		if _, asked := w.owners[tag]; asked {
			w.owners[tag] = now
		}
		if t := w.things[tag]; t != nil && t.owner == former && !t.ofEnviron() {
			t.owner = now
			w.failed[copying+" keeps storage of machines"]++
		}
	}
	w.must(w.state.StampsDone())
	for _, tag := range sortedKeys(w.things) {
		t := w.things[tag]
		switch {
		case t.ofEnviron():
			delete(w.things, tag)
			w.orphans[tag] = t
			w.failed[copying+" leaves storage of the environment"]++
		case !own[tag] && t.stray:
			// The restored state did not know of it.
			delete(w.things, tag)
			w.orphans[tag] = t
		case !own[tag]:
			w.fail("the copy does not know %s", t.id)
		default:
			clear(t.at)
		}
	}
	for tag := range w.recorded {
		if !own[tag] {
			delete(w.recorded, tag)
		}
	}
	for key := range w.attempted {
		if !own[storageOf(key)] || strings.Contains(key, "@") {
			delete(w.attempted, key)
		}
	}
	all, err := w.state.AllStorage()
	w.must(err)
	known := make(map[string]bool)
	for _, s := range all {
		known[s.Name] = true
	}
	for name := range w.on {
		if !known[name] {
			delete(w.on, name)
		}
	}
}

// ofEnviron reports whether a thing belongs to the environment, or is on one that does.
func (t *thing) ofEnviron() bool {
	return t.provider == cloud || t.provider == share || t.on != nil && t.on.ofEnviron()
}
