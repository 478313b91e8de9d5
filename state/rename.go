package state

import (
	"fmt"
	"slices"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state/kv"
)

// Rename is a request to give an instance another name. Its UUIDs, its data, its events and its snapshots
// stay as they are. The names in resource tags become pending, see [State.PendingStamps].
type Rename struct{ Name, To string }

// renaming is a rename, with what was found out before the transaction.
type renaming struct {
	Rename
	// lastEvent is the number of the instance's last event: each new snapshot of it has one.
	lastEvent uint64
	// snapshots are the names of the instance's snapshots.
	snapshots []string
}

// prepareRename returns the renaming. The error satisfies errors.IsNotValid if the new name is not valid,
// and errors.IsAlreadyExists if there is storage which that name refers to, or would be mistaken for.
func (st *State) prepareRename(rename Rename) (renaming, error) {
	prepared := renaming{Rename: rename}
	fail := func(err error) (renaming, error) {
		return renaming{}, errors.Annotatef(err, "renaming storage %q", rename.Name)
	}
	if err := checkName(rename.To); err != nil {
		return fail(err)
	}
	taken, err := st.StorageNames(rename.To)
	if err != nil {
		return fail(err)
	}
	if base, _, isOne := strings.Cut(rename.To, "/"); isOne {
		of, err := st.StorageNames(base)
		if err != nil {
			return fail(err)
		}
		if slices.Contains(of, base) {
			taken = append(taken, base)
		}
	}
	taken = slices.DeleteFunc(taken, func(name string) bool { return name == rename.Name && name != rename.To })
	if len(taken) > 0 {
		return fail(errors.NewAlreadyExists(nil, fmt.Sprintf("there is storage %q: choose another name than %s", taken[0], rename.To)))
	}
	err = st.view(func(r *reader, snapshot kv.Snapshot) error {
		events, _ := read[eventsRecord](r, eventsKey(rename.Name))
		prepared.lastEvent = events.Last
		return snapshot.Scan(snapshotPrefix, func(key string, data []byte) error {
			record, err := decodeAt[snapshotRecord](key, data)
			if err == nil && record.Storage == rename.Name {
				prepared.snapshots = append(prepared.snapshots, key[len(snapshotPrefix):])
			}
			return errors.Trace(err)
		})
	})
	return prepared, errors.Trace(err)
}

func (tx *txn) renameEach(all []renaming) error {
	for _, r := range all {
		if err := tx.rename(r); err != nil {
			return errors.Annotatef(err, "renaming storage %q", r.Name)
		}
	}
	return nil
}

func (tx *txn) rename(r renaming) error {
	i, ok := read[instance](&tx.reader, storageKey(r.Name))
	if !ok {
		return errors.NotFoundf("storage %q", r.Name)
	}
	if err := i.checkRenamable(); err != nil {
		return err
	}
	events, _ := read[eventsRecord](&tx.reader, eventsKey(r.Name))
	if tx.has(storageKey(r.To)) || events.Last != r.lastEvent {
		return errors.WithType(errors.New("it has changed since the request was planned"), ErrChanged)
	}
	tx.moveIndex(&i, r.Name, r.To)
	tx.remove(storageKey(r.Name))
	tx.write(storageKey(r.To), &i)
	tx.moveEvents(&events, r.Name, r.To)
	for _, name := range r.snapshots {
		record, _ := read[snapshotRecord](&tx.reader, snapshotKey(name))
		if contents := i.contents(); record.Storage == r.Name && contents != nil && record.StorageUUID == contents.UUID {
			record.Storage = r.To
			tx.write(snapshotKey(name), &record)
		}
	}
	tx.addPendingStamps(&i)
	return nil
}

// checkRenamable returns an error unless the instance can be renamed. The worker that makes a part of it
// has read its name.
func (i *instance) checkRenamable() error {
	if i.Life != life.Alive {
		return errors.NewNotValid(nil, "it is being removed")
	}
	if i.Asker != nil {
		return errors.NewNotValid(nil, fmt.Sprintf("%s asked for it, as %s, and decides how it is called", i.Asker.Way, i.Asker.Name))
	}
	if err := i.checkUnclaimed(); err != nil {
		return err
	}
	for _, e := range i.entities() {
		if e.Info == nil && (e.Attempted || e.Attachment != nil || i.Volume == nil || e == i.Volume) {
			return errors.NewNotYetAvailable(nil, "it is not made yet: try again when it is")
		}
	}
	return nil
}

// moveIndex writes the index entries of an instance for another name.
func (tx *txn) moveIndex(i *instance, from, to string) {
	kept := make(map[string]bool, maxIndexEntries)
	for _, e := range i.index(nil, to) {
		tx.write(e.key(), &e.entry)
		kept[e.key()] = true
	}
	for _, e := range i.index(nil, from) {
		if !kept[e.key()] {
			tx.remove(e.key())
		}
	}
}

// moveEvents moves the events of an instance to another name, after those of former storage of that name.
// The former name keeps one that says so.
func (tx *txn) moveEvents(events *eventsRecord, from, to string) {
	before, _ := read[eventsRecord](&tx.reader, eventsKey(to))
	moved := eventsRecord{Last: before.Last + events.Last, Events: slices.Concat(before.Events, events.Events)}
	slices.SortStableFunc(moved.Events, func(a, b eventRecord) int { return int(a.Time - b.Time) })
	tx.write(eventsKey(to), &moved)
	if tx.has(goneKey(to)) {
		tx.remove(goneKey(to))
	}
	tx.recordEvents(to, []eventRecord{EventRenamed.record(eventRecord{Text: from, By: tx.by})})
	tx.write(eventsKey(from), &eventsRecord{Last: events.Last})
	tx.recordEvents(from, []eventRecord{EventRenamedTo.record(eventRecord{Text: to, By: tx.by})})
	tx.write(goneKey(from), &tx.now)
}
