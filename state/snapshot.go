package state

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
)

// A snapshot is recorded when it is requested. One worker makes it, and records that; it repeats what may
// have been interrupted. A snapshot that is to be deleted stays
// recorded until nothing is left of it, so nothing is lost from sight.

// SnapshotParams describes a snapshot to make.
type SnapshotParams struct {
	// Name is as that of an instance, without a number. With an Asker, it may be empty: the state
	// chooses it.
	Name string

	// Storage is the name of an instance that is provisioned.
	Storage string

	// Asker is who asks for the snapshot; zero for a user.
	Asker Asker

	// By is for events: who asks for it.
	By string
}

// SnapshotDeletion says who deletes a snapshot. A user is the zero value.
type SnapshotDeletion struct {
	// Way is that of an asker.
	Way string
	// Force deletes a snapshot of another way, too.
	Force bool
	// By is for events: who asks for it.
	By string
}

// Snapshot is a snapshot of the volume of an instance, or of its filesystem if that is on no volume.
type Snapshot struct {
	Name string
	// UUID never changes and is never reused. The provider keeps it as that of the owner.
	UUID  string
	Asker Asker

	// Storage is the name that the instance had, and StorageUUID its UUID, see [Storage.UUID]. It may
	// be gone.
	Storage, StorageUUID string

	// Kind, Pool, Provider and Attributes are those of the instance.
	Kind       storage.StorageKind
	Pool       string
	Provider   storage.ProviderType
	Attributes map[string]any

	// Machine is the machine that has the snapshot; the zero tag if the environment has it.
	Machine names.MachineTag

	// VolumeID or FilesystemID is the provider's ID of the volume or filesystem. SnapshotID is that of the
	// snapshot: empty until it is made. SizeMiB is its size, and at first that of the volume or
	// filesystem. TakenAt is when it was taken.
	VolumeID, FilesystemID, SnapshotID string

	SizeMiB            uint64
	Requested, TakenAt time.Time

	// Deleting says that it is to be deleted.
	Deleting bool

	// Failure says why the last attempt to make or to delete it has failed. Failed says that it is not
	// made, as trying again has no use until something changes.
	Failure string
	Failed  bool

	// ResourceTags are those of the snapshot at its provider.
	ResourceTags map[string]string
}

// IsMade reports whether storage can be made from the snapshot.
func (s *Snapshot) IsMade() bool { return s.SnapshotID != "" && !s.Deleting }

type snapshotRecord struct {
	UUID        string     `cbor:"1,keyasint,omitempty"`
	Asker       *asker     `cbor:"2,keyasint,omitempty"`
	Storage     string     `cbor:"3,keyasint,omitempty"`
	StorageUUID string     `cbor:"4,keyasint,omitempty"`
	Kind        string     `cbor:"5,keyasint,omitempty"`
	Pool        string     `cbor:"6,keyasint,omitempty"`
	Provider    string     `cbor:"7,keyasint,omitempty"`
	Attributes  attributes `cbor:"8,keyasint,omitzero"`
	// Scope is that of the volume or filesystem: a machine's tag, or environScope.
	Scope      string    `cbor:"9,keyasint,omitempty"`
	VolumeID   string    `cbor:"10,keyasint,omitempty"`
	SnapshotID string    `cbor:"11,keyasint,omitempty"`
	Size       uint64    `cbor:"12,keyasint,omitempty"`
	Requested  time.Time `cbor:"13,keyasint,omitzero"`
	TakenAt    time.Time `cbor:"14,keyasint,omitzero"`
	Deleting   bool      `cbor:"15,keyasint,omitempty"`
	Failure    string    `cbor:"16,keyasint,omitempty"`
	Failed     bool      `cbor:"17,keyasint,omitempty"`
	// FilesystemID is set instead of VolumeID for a filesystem that is on no volume.
	FilesystemID string `cbor:"18,keyasint,omitempty"`
}

// check returns an error unless the rest of the code can rely on the record.
func (s *snapshotRecord) check() error {
	switch {
	case s.UUID == "":
		return errors.New("a snapshot without a UUID")
	case s.Scope == environScope:
		return nil
	}
	_, err := parseMachineTag(s.Scope)
	return err
}

func (r *reader) viewSnapshot(name string, s *snapshotRecord) Snapshot {
	view := Snapshot{
		Name: name, UUID: s.UUID, Asker: s.Asker.view(), Storage: s.Storage, StorageUUID: s.StorageUUID,
		Kind: storage.StorageKindBlock, Pool: s.Pool, Provider: storage.ProviderType(s.Provider), Attributes: s.Attributes,
		VolumeID: s.VolumeID, FilesystemID: s.FilesystemID, SnapshotID: s.SnapshotID, SizeMiB: s.Size, Requested: s.Requested, TakenAt: s.TakenAt,
		Deleting: s.Deleting, Failure: s.Failure, Failed: s.Failed,
		ResourceTags: map[string]string{
			storage.ModelUUIDTag: r.identity().UUID, storage.EntityUUIDTag: s.UUID, storage.StorageNameTag: name,
			storage.PoolTag: s.Pool, storage.VolumeUUIDTag: s.StorageUUID,
		},
	}
	if s.Kind == storage.StorageKindFilesystem.String() {
		view.Kind = storage.StorageKindFilesystem
	}
	if s.Scope != environScope {
		view.Machine = machineTag(s.Scope).tag()
		view.ResourceTags[storage.MachineTag] = s.Scope
	}
	return view
}

// contents returns the entity that has the contents of an instance: its volume, or its filesystem if that
// is on no volume; nil if both are gone.
func (i *instance) contents() *entity {
	if i.Volume != nil {
		return i.Volume
	}
	return i.Filesystem
}

// snapshotOf returns the record of a new snapshot of an instance.
func (i *instance) snapshotOf(by Asker, storageName string, now time.Time) (*snapshotRecord, error) {
	e := i.contents()
	switch {
	case i.Life != life.Alive || e == nil:
		return nil, errors.NewNotValid(nil, "it is being removed")
	case e.Info == nil:
		return nil, errors.NewNotYetAvailable(nil, "it is not made yet: try again when it is")
	}
	made := &snapshotRecord{
		UUID: uuid.NewString(), Asker: newAsker(by), Storage: storageName, StorageUUID: e.UUID,
		Kind: i.Kind, Pool: i.Pool, Provider: i.Provider, Attributes: i.Attributes, Scope: e.Tag.scope(),
		Size: e.Info.Size, Requested: now,
	}
	if e == i.Volume {
		made.VolumeID = e.Info.ID
	} else {
		made.FilesystemID = e.Info.ID
	}
	return made, nil
}

// AddSnapshot requests a snapshot, and returns it. A repeated request returns the snapshot that the first
// has made or is making, and one that has failed is attempted again. Errors satisfy errors.IsNotFound if
// the storage does not exist, errors.IsAlreadyExists if there is a snapshot of that name of other storage
// or of another asker, and errors.Is(err, errors.NotYetAvailable) if that one is being deleted or the
// storage is not made yet.
func (st *State) AddSnapshot(p SnapshotParams) (made Snapshot, err error) {
	if err := p.Asker.Validate(); err != nil {
		return Snapshot{}, errors.Trace(err)
	}
	if p.Name == "" && p.Asker != (Asker{}) {
		p.Name = p.Asker.hashed()
	}
	if err := checkName(p.Name); err != nil || strings.Contains(p.Name, "/") {
		return Snapshot{}, errors.NewNotValid(nil, fmt.Sprintf("snapshot %q: a name is a lower-case letter, then up to 62 lower-case letters, digits and hyphens", p.Name))
	}
	err = st.updateIfSpace(func(tx *txn) error {
		if err := st.checkFeature(&tx.reader, snapshotsSchema, "snapshots"); err != nil {
			return err
		}
		i, exists := read[instance](&tx.reader, storageKey(p.Storage))
		record, ok := read[snapshotRecord](&tx.reader, snapshotKey(p.Name))
		switch {
		case ok && record.Deleting:
			return errors.NewNotYetAvailable(nil, "a snapshot of that name is being deleted: try again when it is gone")
		case ok && record.Asker.view() != p.Asker:
			return errors.NewAlreadyExists(nil, "there is a snapshot of that name, which somebody else asked for: choose another name")
		case ok && (record.Storage != p.Storage || exists && i.contents() != nil && i.contents().UUID != record.StorageUUID):
			return errors.NewAlreadyExists(nil, fmt.Sprintf("there is a snapshot of that name, of storage %q: choose another name", record.Storage))
		case ok && record.Failed:
			record.Failed, record.Failure = false, ""
		case ok:
			made = tx.viewSnapshot(p.Name, &record)
			return nil
		case !exists:
			return errors.NotFoundf("storage %q", p.Storage)
		default:
			fresh, err := i.snapshotOf(p.Asker, p.Storage, tx.now)
			if err != nil {
				return errors.Annotatef(err, "storage %q", p.Storage)
			}
			record = *fresh
		}
		tx.write(snapshotKey(p.Name), &record)
		tx.write(snapshotUUIDKey(record.UUID), &indexEntry{Storage: p.Name})
		tx.recordSnapshotEvent(EventSnapshotWanted, &record, eventRecord{Text: p.Name, By: p.By})
		made = tx.viewSnapshot(p.Name, &record)
		return nil
	})
	return made, errors.Annotatef(err, "snapshot %q", p.Name)
}

// Snapshots returns all snapshots, sorted by name.
func (st *State) Snapshots() (all []Snapshot, err error) {
	err = st.view(func(r *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(snapshotPrefix, func(key string, data []byte) error {
			record, err := decodeAt[snapshotRecord](key, data)
			if err != nil {
				return errors.Trace(err)
			}
			all = append(all, r.viewSnapshot(key[len(snapshotPrefix):], &record))
			return nil
		})
	})
	return all, errors.Trace(err)
}

// Snapshot returns the named snapshot. The error satisfies errors.IsNotFound if it does not exist.
func (st *State) Snapshot(name string) (found Snapshot, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		found, err = r.snapshot(name)
		return err
	})
	return found, errors.Trace(err)
}

// SnapshotByUUID returns the snapshot with a UUID. The error satisfies errors.IsNotFound if it does not
// exist.
func (st *State) SnapshotByUUID(id string) (found Snapshot, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		entry, ok := read[indexEntry](r, snapshotUUIDKey(id))
		if !ok {
			return errors.NotFoundf("snapshot %s", id)
		}
		found, err = r.snapshot(entry.Storage)
		return err
	})
	return found, errors.Trace(err)
}

func (r *reader) snapshot(name string) (Snapshot, error) {
	record, ok := read[snapshotRecord](r, snapshotKey(name))
	if !ok {
		return Snapshot{}, errors.NotFoundf("snapshot %q", name)
	}
	return r.viewSnapshot(name, &record), nil
}

// AskedSnapshot returns the snapshot that an asker has asked for. The error satisfies errors.IsNotFound if
// there is no snapshot of that name.
func (st *State) AskedSnapshot(by Asker) (Snapshot, error) {
	found, err := st.Snapshot(by.hashed())
	if err == nil && found.Asker != by {
		err = errors.NotFoundf("snapshot of %s", by)
	}
	return found, err
}

// WatchSnapshots returns a watcher that notifies when a snapshot changes.
func (st *State) WatchSnapshots() (watcher.NotifyWatcher, error) {
	return st.newNotifyWatcher(snapshotPrefix)
}

// DeleteSnapshot requests that a snapshot be deleted. One that a program has asked for is only for those
// who come by the same way, without Force. The error satisfies errors.IsNotFound if it does not exist.
func (st *State) DeleteSnapshot(name string, d SnapshotDeletion) error {
	err := st.update(func(tx *txn) error {
		record, ok := read[snapshotRecord](&tx.reader, snapshotKey(name))
		switch {
		case !ok:
			return errors.NotFoundf("snapshot %q", name)
		case record.Asker != nil && record.Asker.Way != d.Way && !d.Force:
			return errors.NewNotValid(nil, fmt.Sprintf("snapshot %q: it was asked for by %s, as %q: delete it there, or add --force to delete it all the same",
				name, record.Asker.Way, record.Asker.Name))
		}
		if !record.Deleting {
			tx.recordSnapshotEvent(EventSnapshotDeleteWanted, &record, eventRecord{Text: name, By: d.By})
		}
		record.Deleting, record.Failed, record.Failure = true, false, ""
		tx.write(snapshotKey(name), &record)
		return nil
	})
	return errors.Trace(err)
}

// SetSnapshotMade records that a snapshot is made. The error satisfies errors.IsNotFound if it is not
// recorded any more.
func (st *State) SetSnapshotMade(id string, info storage.SnapshotInfo) error {
	return st.changeSnapshot(id, func(tx *txn, name string, record *snapshotRecord) error {
		switch {
		case info.SnapshotId == "":
			return errors.NotValidf("empty ID of a snapshot")
		case record.SnapshotID != "" && record.SnapshotID != info.SnapshotId:
			return errors.NewNotValid(nil, fmt.Sprintf("it is made as %q, and cannot become %q", record.SnapshotID, info.SnapshotId))
		}
		if info.Size == 0 { // the source does not know it
			info.Size = record.Size
		}
		if record.SnapshotID == "" {
			tx.recordSnapshotEvent(EventSnapshotMade, record, eventRecord{Text: name, Size: info.Size})
		}
		record.SnapshotID, record.Size, record.TakenAt = info.SnapshotId, info.Size, info.TakenAt
		record.Failure, record.Failed = "", false
		return nil
	})
}

// SetSnapshotFailed records why an attempt to make or to delete a snapshot has failed. final says that
// making it is not attempted again.
func (st *State) SetSnapshotFailed(id, failure string, final bool) error {
	return st.changeSnapshot(id, func(tx *txn, name string, record *snapshotRecord) error {
		if failure = truncate(failure, maxFailure); failure != record.Failure {
			tx.recordSnapshotEvent(EventSnapshotError, record, eventRecord{Text: name + ": " + failure})
		}
		record.Failure, record.Failed = failure, final && !record.Deleting
		return nil
	})
}

func (st *State) changeSnapshot(id string, change func(tx *txn, name string, record *snapshotRecord) error) error {
	err := st.update(func(tx *txn) error {
		entry, _ := read[indexEntry](&tx.reader, snapshotUUIDKey(id))
		record, ok := read[snapshotRecord](&tx.reader, snapshotKey(entry.Storage))
		if !ok || record.UUID != id {
			return errors.NotFoundf("snapshot %s", id)
		}
		if err := change(tx, entry.Storage, &record); err != nil {
			return errors.Annotatef(err, "snapshot %q", entry.Storage)
		}
		tx.write(snapshotKey(entry.Storage), &record)
		return nil
	})
	return errors.Trace(err)
}

// RemoveSnapshot removes the record of a snapshot that is deleted. It is to be deleted; one that
// is not recorded any more is no error.
func (st *State) RemoveSnapshot(id string) error {
	err := st.update(func(tx *txn) error {
		entry, ok := read[indexEntry](&tx.reader, snapshotUUIDKey(id))
		if !ok {
			return nil
		}
		record, _ := read[snapshotRecord](&tx.reader, snapshotKey(entry.Storage))
		if !record.Deleting {
			return errors.NewNotValid(nil, fmt.Sprintf("snapshot %q is not to be deleted", entry.Storage))
		}
		tx.recordSnapshotEvent(EventSnapshotDeleted, &record, eventRecord{Text: entry.Storage})
		tx.remove(snapshotUUIDKey(id))
		tx.remove(snapshotKey(entry.Storage))
		return nil
	})
	return errors.Trace(err)
}

// From names whose contents new storage gets: those of a snapshot, or those that other storage has when
// it is made. At most one field is set.
type From struct{ Snapshot, Storage string }

// String describes where the contents come from.
func (f From) String() string {
	switch {
	case f.Snapshot != "":
		return "snapshot " + f.Snapshot
	case f.Storage != "":
		return "storage " + f.Storage
	}
	return ""
}

// originRecord is whose contents an instance got: a provider's ID of a snapshot, of a volume, or of a
// filesystem that is on no volume. From is what users called it.
type originRecord struct {
	SnapshotID string `cbor:"1,keyasint,omitempty"`
	VolumeID   string `cbor:"2,keyasint,omitempty"`
	Snapshot   string `cbor:"3,keyasint,omitempty"`
	Storage    string `cbor:"4,keyasint,omitempty"`
	// UUID is that of the snapshot, or of the volume or filesystem.
	UUID         string `cbor:"5,keyasint,omitempty"`
	FilesystemID string `cbor:"6,keyasint,omitempty"`
}

func (o *originRecord) view() From {
	if o == nil {
		return From{}
	}
	return From{o.Snapshot, o.Storage}
}

func (o *originRecord) uuid() string {
	if o == nil {
		return ""
	}
	return o.UUID
}

// applyFrom completes the design of an instance that gets the contents of others.
func (st *State) applyFrom(r *reader, d *design, from From) error {
	if from == (From{}) {
		return nil
	}
	if err := st.checkFeature(r, snapshotsSchema, "storage with the contents of others"); err != nil {
		return err
	}
	var of *snapshotRecord
	switch {
	case from.Snapshot != "" && from.Storage != "":
		return errors.NotValidf("storage from a snapshot and from other storage, too,")
	case from.Snapshot != "":
		record, ok := read[snapshotRecord](r, snapshotKey(from.Snapshot))
		switch {
		case !ok || record.Deleting:
			return errors.NotFoundf("%s", from)
		case record.SnapshotID == "":
			return errors.NewNotYetAvailable(nil, fmt.Sprintf("%s is not made yet: try again when it is", from))
		}
		of = &record
		d.Origin = &originRecord{SnapshotID: record.SnapshotID, Snapshot: from.Snapshot, UUID: record.UUID}
	default:
		i, ok := read[instance](r, storageKey(from.Storage))
		if !ok {
			return errors.NotFoundf("%s", from)
		}
		record, err := i.snapshotOf(Asker{}, from.Storage, time.Time{})
		if err != nil {
			return errors.Annotate(err, from.String())
		}
		of = record
		d.Origin = &originRecord{VolumeID: record.VolumeID, FilesystemID: record.FilesystemID, Storage: from.Storage, UUID: record.StorageUUID}
	}
	scope := environScope
	if d.bound {
		scope = d.machine.String()
	}
	switch {
	case of.Provider != d.Provider:
		return errors.NewNotValid(nil, fmt.Sprintf("%s is of provider %s, and pool %q of %s: choose a pool of provider %s", from, of.Provider, d.Pool, d.Provider, of.Provider))
	case of.Kind != d.Kind:
		return errors.NewNotValid(nil, fmt.Sprintf("%s is %s storage, not %s", from, of.Kind, d.Kind))
	case of.Scope != scope:
		return errors.NewNotValid(nil, fmt.Sprintf("%s is on machine %s: storage from it is made there", from, r.machineName(machineTag(of.Scope))))
	case d.Size < of.Size:
		return errors.NewNotValid(nil, fmt.Sprintf("%s has %d MiB: storage from it has at least as much, not %d MiB", from, of.Size, d.Size))
	}
	// The filesystem is as that which is copied, whatever new ones of the pool are.
	all := attributes{}
	maps.Copy(all, d.Attributes)
	for _, name := range []string{storage.FilesystemTypeAttribute, storage.MkfsOptionsAttribute} {
		delete(all, name)
		if value, ok := of.Attributes[name]; ok {
			all[name] = value
		}
	}
	d.Attributes = all
	return nil
}

// volumeOrigin returns the origin of the instance's volume, as the provisioner gets it.
func (i *instance) volumeOrigin() *params.VolumeOrigin {
	if i.Origin == nil {
		return nil
	}
	return &params.VolumeOrigin{SnapshotId: i.Origin.SnapshotID, VolumeId: i.Origin.VolumeID}
}

// filesystemOrigin returns the origin of the instance's filesystem, as the provisioner gets it. A
// filesystem on a volume has none.
func (i *instance) filesystemOrigin() *params.FilesystemOrigin {
	if i.Origin == nil || i.Volume != nil {
		return nil
	}
	return &params.FilesystemOrigin{SnapshotId: i.Origin.SnapshotID, FilesystemId: i.Origin.FilesystemID}
}
