package state

import (
	"slices"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

const (
	// maxEvents is how many events are kept for a name.
	maxEvents = 50
	// maxEventText is the longest text of an event, in bytes.
	maxEventText = 1024
	// eventRetention is how long the events of storage are kept after it was removed, and
	// maxRemovedNames of how many names at most.
	eventRetention  = 24 * time.Hour
	maxRemovedNames = 10_000
)

// EventType says what an event is about.
type EventType string

// The types of events. Those of the first group are about what users want; Event.By says who.
const (
	// EventAdded: the storage was added, with the size and the mount point in Text, for Machine.
	EventAdded EventType = "added"
	// EventAttachWanted: the storage is to be attached to Machine. EventMoveWanted: it is to be
	// detached first.
	EventAttachWanted EventType = "attach-wanted"
	EventMoveWanted   EventType = "move-wanted"
	// EventDetachWanted: the storage is to be detached.
	EventDetachWanted EventType = "detach-wanted"
	// EventResizeWanted: the storage is to have SizeMiB instead of FormerMiB.
	EventResizeWanted EventType = "resize-wanted"
	// EventRemoveWanted: the storage is to be destroyed. EventReleaseWanted: it is to be given up,
	// with its data left in place.
	EventRemoveWanted  EventType = "remove-wanted"
	EventReleaseWanted EventType = "release-wanted"

	// EventMade: the volume or filesystem exists, with the ID in Text.
	EventMade EventType = "made"
	// EventImported: as EventMade, for one that existed before, also as that of another machine.
	EventImported EventType = "imported"
	// EventGrown: it has SizeMiB instead of FormerMiB.
	EventGrown EventType = "grown"
	// EventAttached: it is attached to Machine, with the device or the mount point in Text.
	EventAttached EventType = "attached"
	// EventDetached: it is not attached to Machine any more.
	EventDetached EventType = "detached"
	// EventDestroyed: it does not exist any more. EventReleased: the state has given it up.
	EventDestroyed EventType = "destroyed"
	EventReleased  EventType = "released"
	// EventRemoved: nothing of the storage is left in the state.
	EventRemoved EventType = "removed"

	// EventError: an operation failed, with the error in Text.
	EventError EventType = "error"
	// EventRecovered: the last error is over.
	EventRecovered EventType = "recovered"
	// EventStatus: Text says why it is as it is.
	EventStatus EventType = "status"

	// EventClaimed: the storage belongs to the claim whose name is in Text. EventUnclaimed: that claim
	// was deleted. EventOffered: other claims may have the storage. EventLabelled: it has the labels in
	// Text. Like those of the first group, these are about what users want.
	EventClaimed   EventType = "claimed"
	EventUnclaimed EventType = "unclaimed"
	EventOffered   EventType = "offered"
	EventLabelled  EventType = "labelled"

	// EventRetryWanted: what has failed is to be tried again at once. EventFormatWanted: a filesystem is to
	// be made, whatever the volume contains. Like those of the first group, these are about what users want.
	EventRetryWanted  EventType = "retry-wanted"
	EventFormatWanted EventType = "format-wanted"
	// EventMountWanted: the filesystem is to be mounted at the path in Text from now on. Like those of the
	// first group, this is about what users want.
	EventMountWanted EventType = "mount-wanted"
	// EventMountOptionsWanted: the filesystem is to be mounted with the options in Text from now on.
	EventMountOptionsWanted EventType = "mount-options-wanted"

	// EventRenamed: the storage had the name in Text until now. EventRenamedTo: what had this name has that
	// in Text now. Like those of the first group, these are about what users want.
	EventRenamed   EventType = "renamed"
	EventRenamedTo EventType = "renamed-to"

	// EventFrom: the storage gets the contents of the snapshot or of the storage in Text when it is made.
	// EventSnapshotWanted and EventSnapshotDeleteWanted: the snapshot in Text is to be made or deleted.
	// Like those of the first group, these are about what users want.
	EventFrom                 EventType = "from"
	EventSnapshotWanted       EventType = "snapshot-wanted"
	EventSnapshotDeleteWanted EventType = "snapshot-delete-wanted"
	// EventSnapshotMade: the snapshot in Text is made, with SizeMiB. EventSnapshotDeleted: nothing is left
	// of it. EventSnapshotError: making or deleting it failed; Text also has the error.
	EventSnapshotMade    EventType = "snapshot-made"
	EventSnapshotDeleted EventType = "snapshot-deleted"
	EventSnapshotError   EventType = "snapshot-error"
)

// eventTypes are the types as records have them: a type never gets another number.
var eventTypes = []EventType{
	EventAdded, EventAttachWanted, EventMoveWanted, EventDetachWanted, EventResizeWanted, EventRemoveWanted, EventReleaseWanted,
	EventMade, EventImported, EventGrown, EventAttached, EventDetached, EventDestroyed, EventReleased, EventRemoved,
	EventError, EventRecovered, EventStatus,
	EventClaimed, EventUnclaimed, EventOffered, EventLabelled,
	EventFrom, EventSnapshotWanted, EventSnapshotDeleteWanted, EventSnapshotMade, EventSnapshotDeleted, EventSnapshotError,
	EventRetryWanted, EventFormatWanted,
	EventMountWanted,
	EventRenamed, EventRenamedTo,
	EventMountOptionsWanted,
}

// Event is something that happened to storage.
type Event struct {
	// Name is that of the storage.
	Name string
	// Number orders the events of a name. No two of them have the same.
	Number uint64
	Time   time.Time
	Type   EventType
	// Tag is the names.VolumeTag or names.FilesystemTag that it happened to, or nil.
	Tag names.Tag
	// Machine is the zero tag unless the type says so.
	Machine            names.MachineTag
	SizeMiB, FormerMiB uint64
	Text               string
	// By says who asked for it; it is empty if nobody did, or if that is not known.
	By string
}

// eventRecord is an event. Many are kept, so times are in milliseconds.
type eventRecord struct {
	Time    int64      `cbor:"1,keyasint"`
	Type    uint8      `cbor:"2,keyasint,omitempty"`
	Tag     entityTag  `cbor:"3,keyasint,omitempty"`
	Machine machineTag `cbor:"4,keyasint,omitempty"`
	Size    uint64     `cbor:"5,keyasint,omitempty"`
	Former  uint64     `cbor:"6,keyasint,omitempty"`
	Text    string     `cbor:"7,keyasint,omitempty"`
	By      string     `cbor:"8,keyasint,omitempty"`
}

// eventsRecord are the last events of a name.
type eventsRecord struct {
	// Last is the number of the last one.
	Last   uint64        `cbor:"1,keyasint"`
	Events []eventRecord `cbor:"2,keyasint"`
}

// recordEvents appends events to those of a name.
func (tx *txn) recordEvents(name string, events []eventRecord) {
	if len(events) == 0 {
		return
	}
	record, _ := read[eventsRecord](&tx.reader, eventsKey(name))
	for _, e := range events {
		e.Time = tx.now.UnixMilli()
		if len(e.Text) > maxEventText {
			e.Text = strings.ToValidUTF8(e.Text[:maxEventText], "") + "…"
		}
		record.Events = append(record.Events, e)
	}
	record.Last += uint64(len(events))
	record.Events = record.Events[max(0, len(record.Events)-maxEvents):]
	tx.write(eventsKey(name), &record)

	if !tx.logged {
		return
	}
	latest := record
	latest.Events = record.Events[max(0, len(record.Events)-len(events)):]
	var err error
	if tx.events, err = latest.appendTo(tx.events, name); err != nil && tx.err == nil {
		tx.err = errors.Annotatef(err, "key %q", eventsKey(name))
	}
}

// LogEvents makes the state call log after each of its changes that is made durable, with what happened, in
// order. Calls for changes that are made at the same time may overlap. Call it before other methods.
func (st *State) LogEvents(log func([]Event)) { st.eventLog = log }

// record returns the record of an event of the type.
func (e EventType) record(of eventRecord) eventRecord {
	of.Type = uint8(slices.Index(eventTypes, e))
	return of
}

// recordSnapshotEvent appends what happened to a snapshot to the events of its storage. If those are not
// kept any more, nobody looks for it there.
func (tx *txn) recordSnapshotEvent(e EventType, s *snapshotRecord, record eventRecord) {
	if tx.has(eventsKey(s.Storage)) {
		tx.recordEvents(s.Storage, []eventRecord{e.record(record)})
	}
}

// shape is what events say about an instance: its events are the differences between two shapes.
type shape struct {
	exists  bool
	life    life.Value
	release bool
	size    uint64
	wanted  machineTag
	moveTo  machineTag
	labels  string
	mount   string // the mount point that is wanted
	// mountOptions are those that are wanted.
	mountOptions string
	claim        string       // that has the instance, or had it
	claimed      bool         // by a claim that there is
	parts        [2]partShape // the volume and the filesystem
}

// partShape is a volume or filesystem in a shape.
type partShape struct {
	tag     entityTag // empty: the instance has no such part
	made    bool
	id      string
	size    uint64
	machine machineTag // that it is attached to
	where   string     // its device or mount point there
	status  StatusInfo
}

func (i *instance) shape() (s shape) {
	for n, e := range [...]*entity{i.Volume, i.Filesystem} {
		if e != nil {
			s.exists = true
			s.parts[n] = e.shape()
		}
	}
	if s.exists {
		s.life, s.release, s.size, s.wanted, s.moveTo = i.Life, i.Release, i.Size, i.wantedMachine(), i.MoveTo
		s.mount = i.MountPoint
		s.mountOptions, _ = i.Attributes[storage.MountOptionsAttribute].(string)
		s.labels, s.claim, s.claimed = label.FormatSelector(i.Labels), i.Claim, i.Claim != "" && !i.Retained
	}
	return s
}

func (e *entity) shape() partShape {
	p := partShape{tag: e.Tag, status: e.displayStatus()}
	if e.Info != nil {
		p.made, p.id, p.size = true, e.Info.ID, e.Info.Size
	}
	if a := e.Attachment; a != nil && a.Info != nil {
		p.machine, p.where = a.Machine, a.Info.MountPoint
		if p.where == "" {
			p.where = a.Info.DeviceName
		}
	}
	return p
}

// eventsSince returns what has happened to an instance since it had another shape.
func (i *instance) eventsSince(before shape, by string) (events []eventRecord) {
	now := i.shape()
	add := func(e EventType, record eventRecord) { events = append(events, e.record(record)) }
	wish := func(e EventType, record eventRecord) {
		record.By = by
		add(e, record)
	}
	switch {
	case !before.exists:
		wish(EventAdded, eventRecord{Size: now.size, Machine: now.wanted, Text: i.MountPoint})
		if i.Origin != nil {
			wish(EventFrom, eventRecord{Text: i.Origin.view().String()})
		}
	case now.exists && now.life != life.Alive && (before.life == life.Alive || now.release != before.release):
		if now.release {
			wish(EventReleaseWanted, eventRecord{})
		} else {
			wish(EventRemoveWanted, eventRecord{})
		}
	case now.exists && now.wanted != before.wanted && now.life == life.Alive:
		switch {
		case now.moveTo != "":
			wish(EventMoveWanted, eventRecord{Machine: now.moveTo})
		case now.wanted != "":
			wish(EventAttachWanted, eventRecord{Machine: now.wanted})
		default:
			wish(EventDetachWanted, eventRecord{})
		}
	}
	if before.exists && now.exists && now.size != before.size {
		wish(EventResizeWanted, eventRecord{Size: now.size, Former: before.size})
	}
	if before.exists && now.exists && now.mount != before.mount && now.mount != "" {
		wish(EventMountWanted, eventRecord{Text: now.mount})
	}
	if before.exists && now.exists && now.mountOptions != before.mountOptions {
		wish(EventMountOptionsWanted, eventRecord{Text: now.mountOptions})
	}
	if now.exists {
		switch {
		case now.claimed && !before.claimed:
			wish(EventClaimed, eventRecord{Text: now.claim})
		case before.claimed && !now.claimed:
			wish(EventUnclaimed, eventRecord{Text: before.claim})
		case before.claim != "" && now.claim == "":
			wish(EventOffered, eventRecord{})
		}
		if before.exists && now.labels != before.labels {
			wish(EventLabelled, eventRecord{Text: now.labels})
		}
	}
	for n := range now.parts {
		i.partEvents(before.parts[n], now.parts[n], add)
	}
	if !now.exists {
		add(EventRemoved, eventRecord{})
	}
	return events
}

// partEvents adds what has happened to a volume or filesystem.
func (i *instance) partEvents(before, now partShape, add func(EventType, eventRecord)) {
	if before.tag != "" && before.tag != now.tag {
		if before.machine != "" {
			add(EventDetached, eventRecord{Tag: before.tag, Machine: before.machine})
		}
		if before.made && now.tag == "" {
			gone := EventDestroyed
			if i.Release {
				gone = EventReleased
			}
			add(gone, eventRecord{Tag: before.tag})
		}
		before = partShape{made: now.made && before.made, size: before.size} // a filesystem that moves gets another tag
	}
	if now.tag == "" {
		return
	}
	e := i.entity(now.tag)
	switch {
	case now.made && !before.made:
		made := EventMade
		if takenOver := now.tag.kind() == names.FilesystemTagKind && i.Moved != nil && !i.Moved.Unmade; e.Imported || takenOver {
			made = EventImported
		}
		add(made, eventRecord{Tag: now.tag, Size: now.size, Text: now.id})
	case now.made && before.size != 0 && now.size != before.size:
		add(EventGrown, eventRecord{Tag: now.tag, Size: now.size, Former: before.size})
	}
	if before.machine != "" && before.machine != now.machine {
		add(EventDetached, eventRecord{Tag: now.tag, Machine: before.machine})
	}
	if now.machine != "" && (before.machine != now.machine || before.where != now.where) {
		add(EventAttached, eventRecord{Tag: now.tag, Machine: now.machine, Text: now.where})
	}
	said, says := before.status, now.status
	switch {
	case says.Status == said.Status && says.Message == said.Message:
	case says.Status == status.Error:
		add(EventError, eventRecord{Tag: now.tag, Text: says.Message})
	case said.Status == status.Error && (says.Status == status.Attached || says.Status == status.Detached):
		add(EventRecovered, eventRecord{Tag: now.tag, Text: says.Message})
	case says.Message != said.Message && says.Message != "":
		add(EventStatus, eventRecord{Tag: now.tag, Text: says.Message})
	}
}

// Events returns what has happened to the storage with these names, and to NAME/0, NAME/1, and so on, or
// to all storage without names, the oldest first: the last 50 events of each instance. The events of
// storage that was removed are kept for a day. It is not an error if there is no such storage.
func (st *State) Events(names ...string) (all []Event, err error) {
	err = st.view(func(r *reader, snapshot kv.Snapshot) error {
		all = nil
		add := func(key string, data []byte) error {
			record, err := decodeAt[eventsRecord](key, data)
			if err != nil {
				return errors.Trace(err)
			}
			all, err = record.appendTo(all, key[len(eventsPrefix):])
			return errors.Annotatef(err, "key %q", key)
		}
		if len(names) == 0 {
			return snapshot.Scan(eventsPrefix, add)
		}
		for _, name := range names {
			if data := r.get(eventsKey(name)); data != nil {
				if err := add(eventsKey(name), data); err != nil {
					return err
				}
			}
			if err := snapshot.Scan(eventsKey(name)+"/", add); err != nil {
				return err
			}
		}
		return nil
	})
	slices.SortStableFunc(all, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return all, errors.Trace(err)
}

// appendTo appends the events to a list. It leaves out those of a type that only a later version has.
func (record eventsRecord) appendTo(all []Event, name string) ([]Event, error) {
	for n, e := range record.Events {
		if int(e.Type) >= len(eventTypes) {
			continue
		}
		event := Event{
			Name:      name,
			Number:    record.Last - uint64(len(record.Events)-1-n),
			Time:      time.UnixMilli(e.Time).UTC(),
			Type:      eventTypes[e.Type],
			SizeMiB:   e.Size,
			FormerMiB: e.Former,
			Text:      e.Text,
			By:        e.By,
		}
		if e.Tag != "" {
			event.Tag = e.Tag.tag()
		}
		if e.Machine != "" {
			machine, err := names.ParseMachineTag(string(e.Machine))
			if err != nil {
				return nil, errors.Trace(err)
			}
			event.Machine = machine
		}
		all = append(all, event)
	}
	return all, nil
}

// RemoveOldEvents removes the events of storage that was removed some time ago.
func (st *State) RemoveOldEvents() error {
	type removed struct {
		name string
		at   time.Time
	}
	var old []removed
	err := st.view(func(_ *reader, snapshot kv.Snapshot) error {
		old = nil
		return snapshot.Scan(gonePrefix, func(key string, data []byte) error {
			at, err := decodeAt[time.Time](key, data)
			old = append(old, removed{key[len(gonePrefix):], at})
			return errors.Trace(err)
		})
	})
	slices.SortFunc(old, func(a, b removed) int { return b.at.Compare(a.at) })
	keep, _ := slices.BinarySearchFunc(old, st.clock.Now().Add(-eventRetention), func(r removed, limit time.Time) int { return limit.Compare(r.at) })
	old = old[min(keep, maxRemovedNames, len(old)):]
	for len(old) > 0 && err == nil {
		n := min(len(old), st.maxEntities())
		err = st.update(func(tx *txn) error {
			for _, r := range old[:n] {
				if tx.has(goneKey(r.name)) { // it may have been added again
					tx.remove(goneKey(r.name))
					tx.remove(eventsKey(r.name))
				}
			}
			return nil
		})
		old = old[n:]
	}
	return errors.Annotate(err, "removing old events")
}
