package state

import (
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
)

// instance is the record of a storage instance: all that is made for it, and where
// that is attached.
type instance struct {
	// Kind is the text of a storage.StorageKind.
	Kind     string `json:"kind"`
	Pool     string `json:"pool"`
	Provider string `json:"provider"`

	// Size is what is wanted, in MiB. It never becomes less.
	Size uint64 `json:"size"`

	// Attributes are the pool's as they were when the instance was added, with the
	// instance's own over them: what is made does not change with the pool.
	Attributes map[string]any `json:"attributes,omitempty"`
	MountPoint string         `json:"mount-point,omitempty"`
	ReadOnly   bool           `json:"read-only,omitempty"`

	Life life.Value `json:"life"`

	// Release says that removing leaves the data with the provider.
	Release bool `json:"release,omitempty"`

	// Volume and Filesystem are nil when there never was one, and when it has been
	// removed. Where there are both, the filesystem is on the volume.
	Volume     *entity `json:"volume,omitempty"`
	Filesystem *entity `json:"filesystem,omitempty"`
}

// entity is the part of a record that is a volume or a filesystem.
type entity struct {
	Tag    entityTag  `json:"tag"`
	Life   life.Value `json:"life"`
	Status StatusInfo `json:"status"`

	// Info is nil until the entity is provisioned.
	Info *entityInfo `json:"info,omitempty"`

	// Imported says that the provider has not made the entity but taken it over.
	Imported bool `json:"imported,omitempty"`

	// Attachment is nil while no machine has the entity, or is to have it.
	Attachment *attachment `json:"attachment,omitempty"`
}

// entityInfo is what a provider made.
type entityInfo struct {
	ID         string `json:"id"`
	HardwareID string `json:"hardware-id,omitempty"`
	WWN        string `json:"wwn,omitempty"`
	Size       uint64 `json:"size"`
	Persistent bool   `json:"persistent,omitempty"`
}

// attachment is the part of a record that is an entity on a machine.
type attachment struct {
	Machine machineTag `json:"machine"`
	Life    life.Value `json:"life"`

	// Info is nil until the entity is attached.
	Info *attachmentInfo `json:"info,omitempty"`

	// Plan is nil where the machine itself has nothing to do.
	Plan *attachmentPlan `json:"plan,omitempty"`
}

// attachmentInfo is what a provider attached: the device of a volume, or the mount
// point of a filesystem.
type attachmentInfo struct {
	DeviceName string    `json:"device-name,omitempty"`
	DeviceLink string    `json:"device-link,omitempty"`
	BusAddress string    `json:"bus-address,omitempty"`
	PlanInfo   *planInfo `json:"plan-info,omitempty"`
	MountPoint string    `json:"mount-point,omitempty"`
	ReadOnly   bool      `json:"read-only,omitempty"`
}

// attachmentPlan is what the machine does before the device of a volume shows.
type attachmentPlan struct {
	Life life.Value `json:"life"`
	Info planInfo   `json:"info"`

	// BlockDevice is nil until the machine has carried the plan out.
	BlockDevice *storage.BlockDevice `json:"block-device,omitempty"`
}

type planInfo struct {
	DeviceType storage.DeviceType `json:"device-type,omitempty"`
	Attributes map[string]string  `json:"attributes,omitempty"`
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
func (i *instance) entity(tag names.Tag) *entity {
	for _, e := range i.entities() {
		if e.tag() == tag {
			return e
		}
	}
	return nil
}

// entityTag is a names.VolumeTag or names.FilesystemTag, as text in records.
type entityTag struct{ names.Tag }

// MarshalText implements encoding.TextMarshaler.
func (t entityTag) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *entityTag) UnmarshalText(text []byte) error {
	tag, err := names.ParseTag(string(text))
	if err != nil {
		return err
	}
	t.Tag = tag
	return checkKind(tag)
}

// machineTag is a names.MachineTag, as text in records.
type machineTag struct{ names.MachineTag }

// MarshalText implements encoding.TextMarshaler.
func (t machineTag) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *machineTag) UnmarshalText(text []byte) (err error) {
	t.MachineTag, err = names.ParseMachineTag(string(text))
	return err
}

func (e *entity) tag() names.Tag { return e.Tag.Tag }

func (a *attachment) machine() names.MachineTag { return a.Machine.MachineTag }

// indexEntry leads from a tag to its instance. It is written when something changes
// that makes a worker look again.
type indexEntry struct {
	Storage string     `json:"storage"`
	Life    life.Value `json:"life"`

	// Machine is the id of the machine that has a volume or filesystem: what it is
	// created with depends on that.
	Machine string `json:"machine,omitempty"`

	// Size is what a volume or filesystem is wanted with, in MiB.
	Size uint64 `json:"size,omitempty"`
}

// index returns the index entries of the instance, by key.
func (i *instance) index(name string) map[string]indexEntry {
	index := make(map[string]indexEntry, 5)
	for _, e := range i.entities() {
		tag, entry := e.tag(), indexEntry{Storage: name, Life: e.Life, Size: i.Size}
		if a := e.Attachment; a != nil {
			entry.Machine = a.machine().Id()
			index[attachmentKey(a.machine(), tag)] = indexEntry{Storage: name, Life: a.Life}
			if a.Plan != nil {
				index[planKey(a.machine(), tag)] = indexEntry{Storage: name, Life: a.Plan.Life}
			}
		}
		index[entityKey(tag)] = entry
		if e.Imported {
			index[importedKey(i.Provider, e.Info.ID)] = indexEntry{Storage: name}
		}
	}
	return index
}

// follow returns the instance that an index entry leads to, with its volume or
// filesystem.
func (r *reader) follow(entry indexEntry, tag names.Tag) (*instance, *entity, error) {
	i, _ := read[instance](r, storageKey(entry.Storage))
	if r.err != nil {
		return nil, nil, r.err
	}
	e := i.entity(tag)
	if e == nil {
		r.err = errors.Errorf("the index has %s in storage %q, which does not have it", names.ReadableString(tag), entry.Storage)
		return nil, nil, r.err
	}
	return &i, e, nil
}

// change lets fn change the instance, applies the rules of life to it, and writes
// what that changed: the record, its index entries, its history. When fn returns an
// error nothing is written. When the instance has gone with its last entity, nothing
// of it stays.
func (tx *txn) change(name string, i *instance, fn func() error) error {
	oldIndex, oldStatuses := i.index(name), i.statuses()
	if err := fn(); err != nil {
		return err
	}
	i.settle(tx.now)
	tx.writeIndex(oldIndex, i.index(name))
	for _, e := range i.entities() {
		if oldStatuses[e.tag()] != e.Status {
			tx.recordStatus(e.tag(), e.Status)
		}
		delete(oldStatuses, e.tag())
	}
	for tag := range oldStatuses {
		tx.remove(historyKey(tag))
	}
	if len(i.entities()) == 0 {
		leavePool(tx, i.Pool)
		tx.remove(storageKey(name))
	} else {
		tx.write(storageKey(name), i)
	}
	return nil
}

// add writes an instance that is new.
func (tx *txn) add(name string, i instance) {
	tx.writeIndex(nil, i.index(name))
	for _, e := range i.entities() {
		tx.recordStatus(e.tag(), e.Status)
	}
	tx.write(storageKey(name), i)
}

func (tx *txn) writeIndex(old, index map[string]indexEntry) {
	for key, entry := range index {
		if before, ok := old[key]; !ok || before != entry {
			tx.write(key, entry)
		}
	}
	for key := range old {
		if _, ok := index[key]; !ok {
			tx.remove(key)
		}
	}
}

// statuses returns the statuses of the entities, by tag.
func (i *instance) statuses() map[names.Tag]StatusInfo {
	statuses := make(map[names.Tag]StatusInfo, 2)
	for _, e := range i.entities() {
		statuses[e.tag()] = e.Status
	}
	return statuses
}

// newEntity returns an entity that is not provisioned yet.
func newEntity(tag names.Tag, now time.Time) *entity {
	e := &entity{Tag: entityTag{tag}, Life: life.Alive}
	e.Status.set(status.Pending, "", now)
	return e
}
