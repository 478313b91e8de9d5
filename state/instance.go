package state

import (
	"time"

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
	Size     uint64 `json:"size"`

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
	// Tag is the text of a names.VolumeTag or names.FilesystemTag.
	Tag    string     `json:"tag"`
	Life   life.Value `json:"life"`
	Status StatusInfo `json:"status"`

	// Info is nil until the entity is provisioned.
	Info *entityInfo `json:"info,omitempty"`

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
	// Machine is the machine's id.
	Machine string     `json:"machine"`
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
	text := tag.String()
	for _, e := range i.entities() {
		if e.Tag == text {
			return e
		}
	}
	return nil
}

func (e *entity) tag() names.Tag {
	// Records hold only tags that were made here.
	tag, err := names.ParseTag(e.Tag)
	if err != nil {
		panic(err)
	}
	return tag
}

func (a *attachment) machine() names.MachineTag { return names.NewMachineTag(a.Machine) }

// indexEntry leads from a tag to its instance. It is written when something changes
// that makes a worker look again; Machine is among that, since what a volume is
// created with depends on it.
type indexEntry struct {
	Storage string     `json:"storage"`
	Life    life.Value `json:"life"`
	Machine string     `json:"machine,omitempty"`
}

// index returns the index entries of the instance, by key.
func (i *instance) index(name string) map[string]indexEntry {
	index := make(map[string]indexEntry, 5)
	for _, e := range i.entities() {
		tag, entry := e.tag(), indexEntry{Storage: name, Life: e.Life}
		if a := e.Attachment; a != nil {
			entry.Machine = a.Machine
			index[attachmentKey(a.machine(), tag)] = indexEntry{Storage: name, Life: a.Life, Machine: a.Machine}
			if a.Plan != nil {
				index[planKey(a.machine(), tag)] = indexEntry{Storage: name, Life: a.Plan.Life, Machine: a.Machine}
			}
		}
		index[entityKey(tag)] = entry
	}
	return index
}

// change applies fn and then the rules of life to an instance that is there, and
// writes what that changed: the record, its index entries, its history. When fn
// returns an error nothing is changed. When the instance has gone with its last
// entity, nothing of it stays.
func (tx *txn) change(name string, i instance, fn func(*instance) error) error {
	oldIndex, oldStatuses := i.index(name), i.statuses()
	if err := fn(&i); err != nil {
		return err
	}
	i.settle(tx.now)
	tx.writeIndex(oldIndex, i.index(name))
	for _, e := range i.entities() {
		if oldStatuses[e.Tag] != e.Status {
			tx.recordStatus(e.tag(), e.Status)
		}
		delete(oldStatuses, e.Tag)
	}
	for tag := range oldStatuses {
		tx.remove(historyPrefix + tag)
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
func (i *instance) statuses() map[string]StatusInfo {
	statuses := make(map[string]StatusInfo, 2)
	for _, e := range i.entities() {
		statuses[e.Tag] = e.Status
	}
	return statuses
}

// newEntity returns an entity that is not provisioned yet.
func newEntity(tag names.Tag, now time.Time) *entity {
	e := &entity{Tag: tag.String(), Life: life.Alive}
	e.Status.set(status.Pending, "", now)
	return e
}
