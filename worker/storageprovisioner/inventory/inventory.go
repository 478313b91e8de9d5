// Package inventory is a state for embedders that have none: what storage one worker is to make, and what it
// has made. It is in memory, and each change is given to the embedder to keep.
//
//	i, err := inventory.New(inventory.Config{Environ: environ, InstanceId: instanceOf, Save: save})
//	…
//	err = i.Add(names.NewVolumeTag("0"), inventory.Item{
//		Provider: "cloud", Size: 1024, Attachments: map[string]inventory.Attachment{"machine-0": {}},
//	})
//	worker, err := storageprovisioner.New(config.WithAccessors(i))
//
// An inventory is for one worker: that of the environment, or that of one machine. It keeps the rule that
// protects data: a volume or filesystem is dead, and is destroyed, only when it is not wanted any more, attached
// nowhere, and, if it is a volume, without a filesystem. It remembers what a worker has begun to make, so that
// nothing that a crash interrupts is left behind.
//
// A host with several writers, such as a database for several managers, implements
// [storageprovisioner.Accessors] itself, or uses package state.
package inventory

import (
	"context"
	"maps"
	"sync"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher/feed"
)

// Config configures an inventory. Environ and InstanceId are required. The functions must not use the inventory:
// it is locked while they are called.
type Config struct {
	// Environ is the configuration of the environment.
	Environ *config.Config

	// InstanceId returns the instance ID of a machine. The error satisfies errors.IsNotFound if there is no
	// such machine, and errors.IsNotProvisioned if it has no instance yet; see [Inventory.MachineChanged].
	InstanceId func(names.MachineTag) (string, error)

	// Items are those that Save has got, by tag, for a program that starts again.
	Items map[string]Item

	// Save keeps a changed item durably, under its tag; nil: the item is removed. If it fails, nothing has
	// changed. A program that does not keep its items (Save is nil) loses its storage when it ends.
	Save func(tag string, item *Item) error

	// Status gets the statuses of items. Nil: they are dropped.
	Status func(params.EntityStatusArgs)
}

// Item is a volume or a filesystem. The first group of fields says what is wanted, and the second what the
// worker has recorded. It can be encoded in JSON.
type Item struct {
	Provider   storage.ProviderType `json:"provider"`
	Size       uint64               `json:"size"` // MiB
	Attributes map[string]any       `json:"attributes,omitempty"`
	// ResourceTags are set on what the provider makes.
	ResourceTags map[string]string `json:"resource-tags,omitempty"`
	// Volume is the tag of the volume that a filesystem is made on; empty: the provider makes it.
	Volume string `json:"volume,omitempty"`
	// Release leaves the storage to its provider when the item is removed, instead of destroying it.
	Release bool       `json:"release,omitempty"`
	Life    life.Value `json:"life"` // Add makes it alive

	// Made is nil until the item is made. Attempted says that a worker has begun to make it.
	Made      *Info `json:"made,omitempty"`
	Attempted bool  `json:"attempted,omitempty"`
	// Attachments are those to machines, by tag.
	Attachments map[string]Attachment `json:"attachments,omitempty"`
}

// Info is what a provider has made.
type Info struct {
	ID         string `json:"id"`
	HardwareID string `json:"hardware-id,omitempty"`
	WWN        string `json:"wwn,omitempty"`
	Pool       string `json:"pool,omitempty"`
	Size       uint64 `json:"size"` // MiB
	Persistent bool   `json:"persistent,omitempty"`
	New        bool   `json:"new,omitempty"`
}

// Attachment is an attachment to a machine.
type Attachment struct {
	// MountPoint is where a filesystem is wanted; empty: its provider chooses.
	MountPoint string     `json:"mount-point,omitempty"`
	ReadOnly   bool       `json:"read-only,omitempty"`
	Life       life.Value `json:"life"`

	// Made is nil until the item is attached. Attempted says that a worker has begun to attach it.
	Made      *AttachmentInfo `json:"made,omitempty"`
	Attempted bool            `json:"attempted,omitempty"`
}

// AttachmentInfo says how a volume or filesystem shows on a machine.
type AttachmentInfo struct {
	DeviceName string `json:"device-name,omitempty"`
	DeviceLink string `json:"device-link,omitempty"`
	BusAddress string `json:"bus-address,omitempty"`
	MountPoint string `json:"mount-point,omitempty"`
	ReadOnly   bool   `json:"read-only,omitempty"`
}

// IsAttached reports whether the item is attached to all machines that it has attachments to, and has one.
func (i Item) IsAttached() bool {
	for _, a := range i.Attachments {
		if a.Made == nil || a.Life != life.Alive {
			return false
		}
	}
	return len(i.Attachments) > 0
}

// clone returns a copy whose attachments can be changed.
func (i Item) clone() Item {
	i.Attachments = maps.Clone(i.Attachments)
	return i
}

// Inventory holds the items. Its methods are safe for concurrent use. The worker uses it as
// [storageprovisioner.Accessors]; the embedder uses the methods in this file.
type Inventory struct {
	config Config

	mu    sync.Mutex
	items map[string]Item // by tag; their maps are not changed
	// on maps the tags of volumes to those of the filesystems on them.
	on      map[string]string
	devices *storage.BlockDevices

	volumes, filesystems                     feed.IDs[string]
	volumeAttachments, filesystemAttachments feed.IDs[params.MachineStorageId]
	machines, blockDevices, changed          feed.Notify
}

// New returns an inventory. The error satisfies errors.IsNotValid, or is that of Save.
func New(config Config) (*Inventory, error) {
	if config.Environ == nil || config.InstanceId == nil {
		return nil, errors.NotValidf("inventory.Config without Environ or InstanceId")
	}
	i := &Inventory{config: config, items: make(map[string]Item), on: make(map[string]string), devices: storage.IndexBlockDevices(nil)}
	for tag, item := range config.Items {
		if _, err := parse(tag); err != nil {
			return nil, errors.Trace(err)
		}
		i.items[tag] = item.clone()
		if item.Volume != "" {
			i.on[item.Volume] = tag
		}
	}
	// The former program may have ended between a change and what follows from it.
	for tag, item := range config.Items {
		if err := i.put(tag, item.clone()); err != nil {
			return nil, errors.Trace(err)
		}
	}
	return i, nil
}

// parse returns the tag of a volume or filesystem. The error satisfies errors.IsNotValid.
func parse(tag string) (names.Tag, error) {
	parsed, err := names.ParseTag(tag)
	if err == nil && parsed.Kind() != names.VolumeTagKind && parsed.Kind() != names.FilesystemTagKind {
		err = errors.New("it is neither a volume nor a filesystem")
	}
	if err != nil {
		return nil, errors.NewNotValid(err, "tag "+tag)
	}
	return parsed, nil
}

// Add adds an item with its attachments, all of them wanted. The error satisfies errors.IsAlreadyExists or
// errors.IsNotValid.
func (i *Inventory) Add(tag names.Tag, item Item) error {
	if _, err := parse(tag.String()); err != nil {
		return errors.Trace(err)
	}
	item = item.clone()
	item.Life, item.Made, item.Attempted = life.Alive, nil, false
	for machine, a := range item.Attachments {
		if _, err := names.ParseMachineTag(machine); err != nil {
			return errors.NewNotValid(err, "attachment of "+tag.String())
		}
		item.Attachments[machine] = Attachment{MountPoint: a.MountPoint, ReadOnly: a.ReadOnly, Life: life.Alive}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, ok := i.items[tag.String()]; ok {
		return errors.AlreadyExistsf("%s", names.ReadableString(tag))
	}
	if item.Volume != "" {
		if volume, ok := i.items[item.Volume]; !ok || volume.Life != life.Alive || tag.Kind() != names.FilesystemTagKind || i.on[item.Volume] != "" {
			return errors.NotValidf("%s on %q, which is not a volume that is wanted and has no filesystem,", names.ReadableString(tag), item.Volume)
		}
	}
	return i.put(tag.String(), item)
}

// Destroy says that an item is no longer wanted, nor a filesystem on it. The worker detaches them, and destroys or
// releases them.
func (i *Inventory) Destroy(tag names.Tag) error {
	i.mu.Lock()
	filesystem, ok := i.on[tag.String()]
	i.mu.Unlock()
	if ok {
		if err := i.destroy(filesystem); err != nil && !errors.Is(err, errors.NotFound) {
			return err
		}
	}
	return i.destroy(tag.String())
}

func (i *Inventory) destroy(tag string) error {
	return i.change(tag, func(item *Item) error {
		if item.Life == life.Alive {
			item.Life = life.Dying
		}
		return nil
	})
}

// Attach adds an attachment, which is wanted, to a machine. The error satisfies errors.IsAlreadyExists if there
// is one, maybe one that is being detached, and errors.IsNotValid if the item is no longer wanted.
func (i *Inventory) Attach(tag names.Tag, machine names.MachineTag, a Attachment) error {
	return i.change(tag.String(), func(item *Item) error {
		if item.Life != life.Alive {
			return errors.NewNotValid(nil, "it is being removed")
		}
		if _, ok := item.Attachments[machine.String()]; ok {
			return errors.AlreadyExistsf("attachment to %s", names.ReadableString(machine))
		}
		if item.Attachments == nil {
			item.Attachments = make(map[string]Attachment)
		}
		item.Attachments[machine.String()] = Attachment{MountPoint: a.MountPoint, ReadOnly: a.ReadOnly, Life: life.Alive}
		return nil
	})
}

// Detach says that an attachment is no longer wanted. It succeeds without one, too.
func (i *Inventory) Detach(tag names.Tag, machine names.MachineTag) error {
	return i.change(tag.String(), func(item *Item) error {
		if a, ok := item.Attachments[machine.String()]; ok {
			a.Life = life.Dying
			item.Attachments[machine.String()] = a
		}
		return nil
	})
}

// Resize raises the wanted size of an item, in MiB. A filesystem on a volume grows after its volume, which is
// resized separately.
func (i *Inventory) Resize(tag names.Tag, size uint64) error {
	return i.change(tag.String(), func(item *Item) error {
		item.Size = max(item.Size, size)
		return nil
	})
}

// Items returns all items, by tag. Their contents must not be changed.
func (i *Inventory) Items() map[string]Item {
	i.mu.Lock()
	defer i.mu.Unlock()
	return maps.Clone(i.items)
}

// AllAttached and None are conditions for [Inventory.Await]: that all items are attached, and that there are none.
func AllAttached(items map[string]Item) bool {
	for _, item := range items {
		if !item.IsAttached() {
			return false
		}
	}
	return true
}

// None is described at [AllAttached].
func None(items map[string]Item) bool { return len(items) == 0 }

// Await waits until done returns true. It is called with all items at the beginning and after changes.
func (i *Inventory) Await(ctx context.Context, done func(map[string]Item) bool) error {
	w := i.changed.Watch()
	defer func() {
		w.Kill()
		_ = w.Wait() // it does not fail
	}()
	for {
		select {
		case <-w.Changes():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if done(i.Items()) {
			return nil
		}
	}
}

// MachineChanged says that the instance ID of a machine may have changed.
func (i *Inventory) MachineChanged() { i.machines.Send() }

// SetMachineBlockDevices records the block devices of the machine. The worker finds those of its volumes among
// them. It makes the inventory a publisher for package diskmanager.
func (i *Inventory) SetMachineBlockDevices(devices []storage.BlockDevice) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.devices = storage.IndexBlockDevices(devices)
	i.blockDevices.Send()
	return nil
}

// change changes an item. If it does not exist, the error satisfies errors.IsNotFound.
func (i *Inventory) change(tag string, f func(*Item) error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	item, ok := i.items[tag]
	if !ok {
		return errors.NotFoundf("%s", tag)
	}
	item = item.clone()
	if err := f(&item); err != nil {
		return errors.Annotate(err, tag)
	}
	return i.put(tag, item)
}

// put replaces an item, keeps it, and announces it. The lock is held.
func (i *Inventory) put(tag string, item Item) error {
	i.settle(tag, &item)
	if err := i.save(tag, &item); err != nil {
		return err
	}
	before := i.items[tag]
	i.items[tag] = item
	if item.Volume != "" {
		i.on[item.Volume] = tag
	}
	i.announce(tag, before, item)
	return i.settleVolume(item.Volume)
}

// drop removes an item. The lock is held.
func (i *Inventory) drop(tag string) error {
	if err := i.save(tag, nil); err != nil {
		return err
	}
	item := i.items[tag]
	delete(i.items, tag)
	if item.Volume != "" {
		delete(i.on, item.Volume)
	}
	i.announce(tag, item)
	return i.settleVolume(item.Volume)
}

func (i *Inventory) save(tag string, item *Item) error {
	if i.config.Save == nil {
		return nil
	}
	return errors.Annotatef(i.config.Save(tag, item), "keeping %s", tag)
}

// settle detaches an item that is not wanted, and lets it die when it is in use nowhere.
func (i *Inventory) settle(tag string, item *Item) {
	if item.Life != life.Dying {
		return
	}
	filesystem, used := i.items[i.on[tag]]
	for machine, a := range item.Attachments {
		if _, mounted := filesystem.Attachments[machine]; !mounted {
			a.Life = life.Dying
			item.Attachments[machine] = a
		}
	}
	if len(item.Attachments) == 0 && !used {
		item.Life = life.Dead
	}
}

// settleVolume settles the volume of a filesystem that has changed, if it has one.
func (i *Inventory) settleVolume(tag string) error {
	volume, ok := i.items[tag]
	if !ok || volume.Life != life.Dying {
		return nil
	}
	return i.put(tag, volume.clone())
}

// announce sends what has changed to the watchers: an item, and its attachments then and now.
func (i *Inventory) announce(tag string, versions ...Item) {
	parsed, _ := names.ParseTag(tag) // it is valid
	ids, attachments := &i.volumes, &i.volumeAttachments
	if parsed.Kind() == names.FilesystemTagKind {
		ids, attachments = &i.filesystems, &i.filesystemAttachments
	}
	ids.Send(parsed.Id())
	for _, item := range versions {
		for machine := range item.Attachments {
			attachments.Send(params.MachineStorageId{MachineTag: machine, AttachmentTag: tag})
		}
	}
	i.changed.Send()
}
