package state

import (
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
)

// instance is the record of a storage instance: everything that is made for it, and where that
// is attached.
type instance struct {
	// Kind is the text of a storage.StorageKind.
	Kind     string `cbor:"1,keyasint,omitempty"`
	Pool     string `cbor:"2,keyasint,omitempty"`
	Provider string `cbor:"3,keyasint,omitempty"`

	// Size is the wanted size, in MiB. It can be raised, and lowered down to the provisioned
	// size.
	Size uint64 `cbor:"4,keyasint,omitempty"`

	// Attributes are the pool's at the time when the instance was added, overridden by the
	// instance's own: later changes of the pool do not change existing storage.
	Attributes attributes `cbor:"5,keyasint,omitzero"`
	MountPoint string     `cbor:"6,keyasint,omitempty"`
	ReadOnly   bool       `cbor:"7,keyasint,omitempty"`

	Life life.Value `cbor:"8,keyasint,omitempty"`

	// Release says that removing the instance leaves the data with the provider.
	Release bool `cbor:"9,keyasint,omitempty"`

	// Volume and Filesystem are nil if the instance never had one, or if it has been removed.
	// If both are set, the filesystem is on the volume.
	Volume     *entity `cbor:"10,keyasint,omitempty"`
	Filesystem *entity `cbor:"11,keyasint,omitempty"`

	// Uncounted says that the pool does not count the instance: the pool did not exist when
	// the instance was recovered.
	Uncounted bool `cbor:"12,keyasint,omitempty"`

	// MoveTo is the machine to which the instance is to be attached once it is detached.
	MoveTo machineTag `cbor:"13,keyasint,omitempty"`

	// Moved is set once the instance has left the machine that its filesystem on a volume
	// belonged to.
	Moved *movedFilesystem `cbor:"14,keyasint,omitempty"`

	// Labels are what users have said about the instance.
	Labels map[string]string `cbor:"15,keyasint,omitempty"`

	// Claim is the name of the claim that has the instance. If it is Retained, that claim is gone,
	// and no claim may have the instance until a user offers it again: it has data.
	Claim    string `cbor:"16,keyasint,omitempty"`
	Retained bool   `cbor:"17,keyasint,omitempty"`

	// Asker says who asked for the instance, nil for a user.
	Asker *asker `cbor:"18,keyasint,omitempty"`

	// Origin says whose contents the volume, or the filesystem that is on no volume, gets when it is
	// made; nil for an empty one.
	Origin *originRecord `cbor:"19,keyasint,omitempty"`
}

// movedFilesystem is the filesystem of an instance on its former machine.
type movedFilesystem struct {
	// UUID is that of the entity.
	UUID string `cbor:"1,keyasint,omitempty"`
	// Unmade says that the filesystem was never recorded as made. The former machine may have made
	// it all the same.
	Unmade bool `cbor:"2,keyasint,omitempty"`
}

// entity is the part of a record that is a volume or a filesystem.
type entity struct {
	Tag    entityTag  `cbor:"1,keyasint,omitempty"`
	Life   life.Value `cbor:"2,keyasint,omitempty"`
	Status StatusInfo `cbor:"3,keyasint"`

	// Info is nil until the entity is provisioned.
	Info *entityInfo `cbor:"4,keyasint,omitempty"`

	// Imported says that the provider took the entity over rather than made it.
	Imported bool `cbor:"5,keyasint,omitempty"`

	// Attachment is nil if no machine has the entity or is to have it.
	Attachment *attachment `cbor:"6,keyasint,omitempty"`

	// Attempted says that a worker has set out to make the entity, and that the attempt is not
	// known to have made nothing.
	Attempted bool `cbor:"7,keyasint,omitempty"`

	// UUID never changes, and no other entity has it. A restored or copied state may use every
	// other name of the entity again.
	UUID string `cbor:"8,keyasint,omitempty"`

	// Generation is the state's generation when a fact about the entity was last recorded; the
	// first such fact is that it is not made.
	Generation uint64 `cbor:"9,keyasint,omitempty"`

	// AttachmentGeneration is the state's generation when it was last known where, if
	// anywhere, the entity is attached.
	AttachmentGeneration uint64 `cbor:"10,keyasint,omitempty"`

	// AttemptEnded says that the noted attempt is over: no worker is making the entity any
	// more, but the attempt may have left something.
	AttemptEnded bool `cbor:"11,keyasint,omitempty"`

	// Context is what the source needs to attach the volume, beside its ID.
	Context map[string]string `cbor:"12,keyasint,omitempty"`
}

// entityInfo describes the object that a provider made.
type entityInfo struct {
	ID         string `cbor:"1,keyasint,omitempty"`
	HardwareID string `cbor:"2,keyasint,omitempty"`
	WWN        string `cbor:"3,keyasint,omitempty"`
	Size       uint64 `cbor:"4,keyasint,omitempty"`
	Persistent bool   `cbor:"5,keyasint,omitempty"`

	// New says that nothing can have been written to the volume: its provider said so when it
	// made the volume, and no filesystem has been recorded on it since.
	New bool `cbor:"6,keyasint,omitempty"`
}

// attachment is the attachment of an entity to a machine.
type attachment struct {
	Machine machineTag `cbor:"1,keyasint,omitempty"`
	Life    life.Value `cbor:"2,keyasint,omitempty"`

	// Info is nil until the entity is attached.
	Info *attachmentInfo `cbor:"3,keyasint,omitempty"`

	// Plan is nil if the machine itself has nothing to do.
	Plan *attachmentPlan `cbor:"4,keyasint,omitempty"`

	// Attempted is like the Attempted of an entity, for the attachment.
	Attempted bool `cbor:"5,keyasint,omitempty"`
}

// attachmentInfo describes a completed attachment: the device of a volume, or the mount point
// of a filesystem.
type attachmentInfo struct {
	DeviceName string    `cbor:"1,keyasint,omitempty"`
	DeviceLink string    `cbor:"2,keyasint,omitempty"`
	BusAddress string    `cbor:"3,keyasint,omitempty"`
	PlanInfo   *planInfo `cbor:"4,keyasint,omitempty"`
	MountPoint string    `cbor:"5,keyasint,omitempty"`
	ReadOnly   bool      `cbor:"6,keyasint,omitempty"`
}

// attachmentPlan is what the machine has to do before the device of a volume appears.
type attachmentPlan struct {
	Life life.Value `cbor:"1,keyasint,omitempty"`
	Info planInfo   `cbor:"2,keyasint"`

	// BlockDevice is nil until the machine has carried the plan out.
	BlockDevice *deviceRecord `cbor:"3,keyasint,omitempty"`

	// Status is what the machine's worker has reported about carrying out or undoing the
	// plan; nil until its first report.
	Status *StatusInfo `cbor:"4,keyasint,omitempty"`
}

type planInfo struct {
	DeviceType storage.DeviceType `cbor:"1,keyasint,omitempty"`
	Attributes map[string]string  `cbor:"2,keyasint,omitempty"`
}

// check returns an error unless the rest of the code can rely on the record.
func (i *instance) check() error {
	entities := i.entities()
	if len(entities) == 0 {
		return errors.New("neither volume nor filesystem")
	}
	for _, e := range entities {
		if err := e.check(); err != nil {
			return err
		}
	}
	return nil
}

func (e *entity) check() error {
	if _, err := parseEntityTag(string(e.Tag)); err != nil {
		return err
	}
	if e.UUID == "" {
		return errors.Errorf("%s has no UUID", e.Tag)
	}
	if e.Imported && e.Info == nil {
		return errors.Errorf("%s is imported and not provisioned", e.Tag)
	}
	if e.Attachment == nil {
		return nil
	}
	_, err := parseMachineTag(string(e.Attachment.Machine))
	return err
}

// entities returns the volume and filesystem that the instance has, the volume first.
func (i *instance) entities() []*entity {
	entities := make([]*entity, 0, 2)
	if i.Volume != nil {
		entities = append(entities, i.Volume)
	}
	if i.Filesystem != nil {
		entities = append(entities, i.Filesystem)
	}
	return entities
}

// entity returns the volume or filesystem with the tag, or nil.
func (i *instance) entity(tag entityTag) *entity {
	for _, e := range i.entities() {
		if e.Tag == tag {
			return e
		}
	}
	return nil
}

// indexEntry leads from a tag to its instance. It is written when something changes that a
// worker has to look at.
type indexEntry struct {
	Storage string     `cbor:"1,keyasint,omitempty"`
	Life    life.Value `cbor:"2,keyasint,omitempty"`

	// Machine is the machine that a volume or filesystem is attached to; the parameters of its
	// creation depend on it.
	Machine machineTag `cbor:"3,keyasint,omitempty"`

	// Size is the wanted size of a volume or filesystem, in MiB.
	Size uint64 `cbor:"4,keyasint,omitempty"`
}

// indexKey holds the parts of the key of an index entry. For an attachment or plan, owner is
// the machine and id the tag; for an import, owner is the provider and id the provider's ID; for a
// mount point, owner is the instance's home and id the path; for an asker, owner is the way in, and id
// the name or the instance's UUID. For a volume or filesystem only id is set, to the tag. For a provider's ID, id is the whole key. What an instance has only one of, such
// as a volume that is to be made, needs neither.
type indexKey struct{ kind, owner, id string }

// keyedEntry is an index entry with its key.
type keyedEntry struct {
	indexKey
	entry indexEntry
}

func (k keyedEntry) key() string {
	switch k.kind {
	case mountPointIndex:
		return mountPointKey(k.owner, k.id, k.entry.Storage)
	case unmadeIndex:
		return unmadeKey(k.entry.Storage)
	case importedIndex:
		return importedKey(k.owner, k.id)
	case askerIndex:
		return Asker{k.owner, k.id}.key()
	case askedIndex:
		return askedKey(k.owner, k.id)
	case providerIDIndex:
		return k.id
	case planIndex:
		return planKey(machineTag(k.owner), entityTag(k.id))
	case volumeIndex, filesystemIndex:
		return entityKey(entityTag(k.id))
	}
	return attachmentKey(machineTag(k.owner), entityTag(k.id))
}

// maxIndexEntries is the most index entries that an instance can have.
const maxIndexEntries = 12

// index appends the index entries of the instance.
func (i *instance) index(index []keyedEntry, name string) []keyedEntry {
	for _, e := range i.entities() {
		kind, tag := e.Tag.kind(), string(e.Tag)
		entry := indexEntry{Storage: name, Life: e.Life, Size: i.Size}
		if a := e.Attachment; a != nil {
			entry.Machine = a.Machine
			k := indexKey{kind + attachmentSuffix, string(a.Machine), tag}
			index = append(index, keyedEntry{k, indexEntry{Storage: name, Life: a.Life}})
			if a.Plan != nil {
				k.kind = planIndex
				index = append(index, keyedEntry{k, indexEntry{Storage: name, Life: a.Plan.Life}})
			}
		}
		index = append(index, keyedEntry{indexKey{kind: kind, id: tag}, entry})
		if e.Imported {
			k := indexKey{importedIndex, i.Provider, e.Info.ID}
			index = append(index, keyedEntry{k, indexEntry{Storage: name}})
		}
		if key := i.providerIDKey(e); key != "" {
			index = append(index, keyedEntry{indexKey{kind: providerIDIndex, id: key}, indexEntry{Storage: name}})
		}
	}
	if i.Asker != nil && len(index) > 0 { // without entities, nothing is left of it
		for _, k := range i.Asker.index(i.uuid()) {
			index = append(index, keyedEntry{k, indexEntry{Storage: name}})
		}
	}
	if i.MountPoint != "" && len(index) > 0 {
		k := indexKey{mountPointIndex, i.home(), i.MountPoint}
		index = append(index, keyedEntry{k, indexEntry{Storage: name}})
	}
	if missing := i.missing(); missing > 0 {
		index = append(index, keyedEntry{indexKey{kind: unmadeIndex}, indexEntry{Storage: name, Size: missing}})
	}
	return index
}

// home returns the machine that has the instance, or that alone can have it, as a tag. It is empty
// for an instance of the environment that is detached, which any machine can have.
func (i *instance) home() string {
	for _, e := range i.entities() {
		if e.Attachment != nil {
			return string(e.Attachment.Machine)
		}
		if scope := e.Tag.scope(); scope != environScope {
			return scope
		}
	}
	return ""
}

// missing returns how much larger than it is the instance's volume is to be, in MiB. A volume that
// is not made has no size.
func (i *instance) missing() uint64 {
	if i.Volume == nil {
		return 0
	}
	var made uint64
	if i.Volume.Info != nil {
		made = i.Volume.Info.Size
	}
	return i.Size - min(made, i.Size)
}

// providerIDKey returns the key of the index entry of an entity's ID. It returns "" if there
// is no ID, or if the ID is made of the tag and the UUID, since no other entity can have that
// one.
func (i *instance) providerIDKey(e *entity) string {
	if e.Info == nil || e == i.Filesystem && i.Volume != nil || e.isDerivedID(e.Info.ID) {
		return ""
	}
	return providerIDKey(e.Tag.scope()+"/"+e.Tag.kind(), i.Provider, e.Info.ID)
}

// derivedID returns the ID that an entity has if its provider does not choose one.
func (e *entity) derivedID() string { return string(e.Tag) + "-" + e.UUID }

// isDerivedID reports whether id is the entity's derived ID.
func (e *entity) isDerivedID(id string) bool {
	rest, ok := strings.CutPrefix(id, string(e.Tag))
	return ok && len(rest) == 1+len(e.UUID) && rest[0] == '-' && rest[1:] == e.UUID
}

// resolve returns the instance that an index entry leads to, with its volume or
// filesystem.
func (r *reader) resolve(entry indexEntry, tag entityTag) (*instance, *entity, error) {
	i, _ := read[instance](r, storageKey(entry.Storage))
	if r.err != nil {
		return nil, nil, r.err
	}
	e := i.entity(tag)
	if e == nil {
		r.err = errors.Errorf("the index has %s in storage %q, which does not have it", tag, entry.Storage)
		return nil, nil, r.err
	}
	return &i, e, nil
}

// change lets fn change the instance, applies the rules of life to it, and writes what has
// changed: the record, its index entries and its events. If fn returns an error, nothing is
// written. If the instance has lost its last entity, everything of it is removed.
func (tx *txn) change(name string, i *instance, fn func() error) error {
	oldIndex := i.index(make([]keyedEntry, 0, maxIndexEntries), name)
	before := i.shape()
	if err := fn(); err != nil {
		return err
	}
	i.settle(tx.now)
	if err := tx.settleMove(i); err != nil {
		return err
	}
	tx.writeIndex(oldIndex, i.index(make([]keyedEntry, 0, maxIndexEntries), name))
	for _, part := range before.parts {
		if part.tag != "" && i.entity(part.tag) == nil && tx.has(historyKey(part.tag)) {
			tx.remove(historyKey(part.tag))
		}
	}
	tx.recordEvents(name, i.eventsSince(before, tx.by))
	if len(i.entities()) == 0 {
		tx.write(goneKey(name), &tx.now)
		if !i.Uncounted {
			removeFromPool(tx, i.Pool)
		}
		tx.remove(storageKey(name))
	} else {
		tx.write(storageKey(name), i)
	}
	return nil
}

// add writes a new instance.
func (tx *txn) add(name string, i *instance) {
	tx.writeIndex(nil, i.index(nil, name))
	tx.recordEvents(name, i.eventsSince(shape{}, tx.by))
	if tx.has(goneKey(name)) { // an earlier instance had the name
		tx.remove(goneKey(name))
	}
	tx.write(storageKey(name), i)
}

func (tx *txn) writeIndex(old, index []keyedEntry) {
	for _, now := range index {
		if !slices.Contains(old, now) {
			tx.write(now.key(), &now.entry)
		}
	}
	for _, before := range old {
		if !slices.ContainsFunc(index, func(now keyedEntry) bool { return now.indexKey == before.indexKey }) {
			tx.remove(before.key())
			for _, key := range []string{before.retryKey(), before.formatKey()} {
				if key != "" {
					tx.remove(key)
				}
			}
		}
	}
}

// newEntity returns an entity that is not provisioned yet.
func (tx *txn) newEntity(tag entityTag) *entity {
	e := &entity{Tag: tag, Life: life.Alive, UUID: uuid.NewString()}
	e.Status.set(status.Pending, "", tx.now)
	tx.setGeneration(e)
	return e
}
