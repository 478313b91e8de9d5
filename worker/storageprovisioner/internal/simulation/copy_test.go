package simulation

import (
	"strings"

	"github.com/stowage-io/stowage/storage"
)

// copying is what is done when a state becomes a copy.
const copying = "copy"

// becomeCopy makes the state a copy, as when its directory has been copied with what is of
// the machines in it, while nothing is going on. What is of the environment is the
// original's from then on, and no worker may call a provider for it. What is of a machine
// is there twice, and attached only where the original is.
func (w *world) becomeCopy(dice uint32) {
	w.crashAll(dice)
	w.logf("the state becomes a copy")
	copied, err := w.state.BecomeCopy()
	w.must(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.backup = nil // it is the original's
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
			w.failed[copying+" has what the original has"]++
		}
	}
	w.must(w.state.StampsDone())
	for _, tag := range sortedKeys(w.things) {
		t := w.things[tag]
		switch {
		case t.ofEnviron():
			delete(w.things, tag)
			w.orphans[tag] = t
			w.failed[copying+" leaves the original what is its"]++
		case !own[tag] && t.stray:
			// The state had been restored, and did not know that it was made.
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

// ofEnviron reports whether a thing is of the environment, or on what is.
func (t *thing) ofEnviron() bool {
	return t.provider == cloud || t.provider == share || t.on != nil && t.on.ofEnviron()
}
