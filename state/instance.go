package state

import (
	"slices"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
)

// instance is the record of a storage instance: all that is made for it, and where
// that is attached.
type instance struct {
	// Kind is the text of a storage.StorageKind.
	Kind     string
	Pool     string
	Provider string

	// Size is what is wanted, in MiB. It never becomes less.
	Size uint64

	// Attributes are the pool's as they were when the instance was added, with the
	// instance's own over them: what is made does not change with the pool.
	Attributes map[string]any
	MountPoint string
	ReadOnly   bool

	Life life.Value

	// Release says that removing leaves the data with the provider.
	Release bool

	// Volume and Filesystem are nil when there never was one, and when it has been
	// removed. Where there are both, the filesystem is on the volume.
	Volume     *entity
	Filesystem *entity
}

func (i *instance) code(c *coder) {
	text(c, &i.Kind)
	text(c, &i.Pool)
	text(c, &i.Provider)
	c.number(&i.Size)
	attributes(c, &i.Attributes)
	text(c, &i.MountPoint)
	c.flag(&i.ReadOnly)
	text(c, &i.Life)
	c.flag(&i.Release)
	optional(c, &i.Volume)
	optional(c, &i.Filesystem)
}

// entity is the part of a record that is a volume or a filesystem.
type entity struct {
	Tag    entityTag
	Life   life.Value
	Status StatusInfo

	// Info is nil until the entity is provisioned.
	Info *entityInfo

	// Imported says that the provider has not made the entity but taken it over.
	Imported bool

	// Attachment is nil while no machine has the entity, or is to have it.
	Attachment *attachment
}

func (e *entity) code(c *coder) {
	e.Tag.code(c)
	text(c, &e.Life)
	e.Status.code(c)
	optional(c, &e.Info)
	c.flag(&e.Imported)
	optional(c, &e.Attachment)
}

// entityInfo is what a provider made.
type entityInfo struct {
	ID         string
	HardwareID string
	WWN        string
	Size       uint64
	Persistent bool
}

func (i *entityInfo) code(c *coder) {
	text(c, &i.ID)
	text(c, &i.HardwareID)
	text(c, &i.WWN)
	c.number(&i.Size)
	c.flag(&i.Persistent)
}

// attachment is the part of a record that is an entity on a machine.
type attachment struct {
	Machine machineTag
	Life    life.Value

	// Info is nil until the entity is attached.
	Info *attachmentInfo

	// Plan is nil where the machine itself has nothing to do.
	Plan *attachmentPlan
}

func (a *attachment) code(c *coder) {
	a.Machine.code(c)
	text(c, &a.Life)
	optional(c, &a.Info)
	optional(c, &a.Plan)
}

// attachmentInfo is what a provider attached: the device of a volume, or the mount
// point of a filesystem.
type attachmentInfo struct {
	DeviceName string
	DeviceLink string
	BusAddress string
	PlanInfo   *planInfo
	MountPoint string
	ReadOnly   bool
}

func (a *attachmentInfo) code(c *coder) {
	text(c, &a.DeviceName)
	text(c, &a.DeviceLink)
	text(c, &a.BusAddress)
	optional(c, &a.PlanInfo)
	text(c, &a.MountPoint)
	c.flag(&a.ReadOnly)
}

// attachmentPlan is what the machine does before the device of a volume shows.
type attachmentPlan struct {
	Life life.Value
	Info planInfo

	// BlockDevice is nil until the machine has carried the plan out.
	BlockDevice *deviceRecord
}

func (p *attachmentPlan) code(c *coder) {
	text(c, &p.Life)
	p.Info.code(c)
	optional(c, &p.BlockDevice)
}

type planInfo struct {
	DeviceType storage.DeviceType
	Attributes map[string]string
}

func (p *planInfo) code(c *coder) {
	text(c, &p.DeviceType)
	attributes(c, &p.Attributes)
}

// entities returns what the instance has, what is beneath first.
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

// indexEntry leads from a tag to its instance. It is written when something changes
// that makes a worker look again.
type indexEntry struct {
	Storage string
	Life    life.Value

	// Machine is the machine that has a volume or filesystem: what it is created with
	// depends on that.
	Machine machineTag

	// Size is what a volume or filesystem is wanted with, in MiB.
	Size uint64
}

func (e *indexEntry) code(c *coder) {
	text(c, &e.Storage)
	text(c, &e.Life)
	text(c, &e.Machine)
	c.number(&e.Size)
}

// place is what the key of an index entry is made of: that of an attachment or plan of
// a machine and a tag, that of what was imported of a provider and its id.
type place struct{ kind, at, of string }

// indexed is an index entry in its place.
type indexed struct {
	place
	entry indexEntry
}

func (p place) key() string {
	switch p.kind {
	case importedIndex:
		return importedKey(p.at, p.of)
	case planIndex:
		return planKey(machineTag(p.at), entityTag(p.of))
	case volumeIndex, filesystemIndex:
		return entityKey(entityTag(p.of))
	}
	return attachmentKey(machineTag(p.at), entityTag(p.of))
}

// maxIndexed is how many index entries an instance may have.
const maxIndexed = 6

// index appends the index entries of the instance.
func (i *instance) index(index []indexed, name string) []indexed {
	for _, e := range i.entities() {
		kind, tag := e.Tag.kind(), string(e.Tag)
		entry := indexEntry{Storage: name, Life: e.Life, Size: i.Size}
		if a := e.Attachment; a != nil {
			entry.Machine = a.Machine
			at := place{kind + attachmentSuffix, string(a.Machine), tag}
			index = append(index, indexed{at, indexEntry{Storage: name, Life: a.Life}})
			if a.Plan != nil {
				at.kind = planIndex
				index = append(index, indexed{at, indexEntry{Storage: name, Life: a.Plan.Life}})
			}
		}
		index = append(index, indexed{place{kind: kind, of: tag}, entry})
		if e.Imported {
			at := place{importedIndex, i.Provider, e.Info.ID}
			index = append(index, indexed{at, indexEntry{Storage: name}})
		}
	}
	return index
}

// follow returns the instance that an index entry leads to, with its volume or
// filesystem.
func (r *reader) follow(entry indexEntry, tag entityTag) (*instance, *entity, error) {
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

// change lets fn change the instance, applies the rules of life to it, and writes
// what that changed: the record, its index entries, its history. When fn returns an
// error nothing is written. When the instance has gone with its last entity, nothing
// of it stays.
func (tx *txn) change(name string, i *instance, fn func() error) error {
	oldIndex := i.index(make([]indexed, 0, maxIndexed), name)
	oldStatuses := i.statuses(make([]entityStatus, 0, 2))
	if err := fn(); err != nil {
		return err
	}
	i.settle(tx.now)
	tx.writeIndex(oldIndex, i.index(make([]indexed, 0, maxIndexed), name))
	for _, old := range oldStatuses {
		switch e := i.entity(old.tag); {
		case e == nil:
			tx.remove(historyKey(old.tag))
		case e.Status != old.status:
			tx.recordStatus(e)
		}
	}
	if len(i.entities()) == 0 {
		leavePool(tx, i.Pool)
		tx.remove(storageKey(name))
	} else {
		write(tx, storageKey(name), i)
	}
	return nil
}

// add writes an instance that is new.
func (tx *txn) add(name string, i *instance) {
	tx.writeIndex(nil, i.index(nil, name))
	for _, e := range i.entities() {
		tx.recordStatus(e)
	}
	write(tx, storageKey(name), i)
}

func (tx *txn) writeIndex(old, index []indexed) {
	for _, now := range index {
		if !slices.Contains(old, now) {
			write(tx, now.key(), &now.entry)
		}
	}
	for _, before := range old {
		if !slices.ContainsFunc(index, func(now indexed) bool { return now.place == before.place }) {
			tx.remove(before.key())
		}
	}
}

// entityStatus is a status that an entity had.
type entityStatus struct {
	tag    entityTag
	status StatusInfo
}

// statuses appends the statuses of the entities.
func (i *instance) statuses(statuses []entityStatus) []entityStatus {
	for _, e := range i.entities() {
		statuses = append(statuses, entityStatus{e.Tag, e.Status})
	}
	return statuses
}

// newEntity returns an entity that is not provisioned yet.
func newEntity(kind, id string, now time.Time) *entity {
	e := &entity{Tag: entityTag(kind + "-" + id), Life: life.Alive}
	e.Status.set(status.Pending, "", now)
	return e
}
