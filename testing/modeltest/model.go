// Package modeltest has a model in memory: the part of a state that a storage provisioner
// needs, for tests.
//
// A test adds machines, volumes, filesystems and attachments to a [Model] and changes them.
// The watchers that a worker has started report that: the full set first and then the changes.
// The worker uses the model through the accessors that [Model.Config] or [Model.For] returns
// for its scope, and the test reads what the worker has recorded:
//
//	model := modeltest.New(modeltest.Options{})
//	defer model.Close()
//	model.ProvisionMachine("machine-0", "instance-0")
//	model.AddVolume(params.VolumeParams{VolumeTag: "volume-0", Size: 1024, Provider: "pretend"})
//	model.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-0", MachineTag: "machine-0", Provider: "pretend"})
//	cfg := model.Config(names.NewModelTag(uuid))
//
// The model is a [calls.Journal] of the accessor calls, and a [calls.Script] that makes them
// fail, by name, such as "SetVolumeInfo"; an unknown name panics. Subjects are tags; that of an attachment is two
// tags: "volume-0 machine-0". Its Await waits for any condition on the model:
//
//	model.Await(t, "the record", func() bool { return model.Recorded("volume-0") })
//
// Entities are identified by tags, as on the wire: "machine-0", "volume-0", "filesystem-0".
// All methods are safe for concurrent use. Naming an entity that the model does not have is a
// mistake in the test: the method panics.
package modeltest

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/watchertest"
)

// Options configures a model. The zero value is valid.
type Options struct {
	// Journal records the accessor calls; nil: the model has its own.
	Journal *calls.Journal
	// ByHand are watchers that the test feeds.
	ByHand Watchers
}

// Watchers replace the model's own watchers, which then send nothing. A nil field keeps the
// model's own. Accessors return each watcher unchanged and only once, so the test can feed it
// before a worker asks for it. Closing the model stops them.
type Watchers struct {
	EnvironConfig         *watchertest.Notify
	BlockDevices          *watchertest.Notify
	Volumes               *watchertest.Strings
	Filesystems           *watchertest.Strings
	VolumeAttachments     *watchertest.MachineStorageIds
	FilesystemAttachments *watchertest.MachineStorageIds
	VolumeAttachmentPlans *watchertest.MachineStorageIds
	// Machine is called for each watcher of a machine. It must not call the model.
	Machine func(names.MachineTag) *watchertest.Notify
}

type (
	volume               = entity[params.VolumeParams, params.VolumeInfo]
	filesystem           = entity[params.FilesystemParams, params.FilesystemInfo]
	volumeAttachment     = entity[params.VolumeAttachmentParams, params.VolumeAttachmentInfo]
	filesystemAttachment = entity[params.FilesystemAttachmentParams, params.FilesystemAttachmentInfo]
)

// Model is a model in memory.
type Model struct {
	*calls.Journal
	*calls.Script

	byHand     Watchers
	started    watchertest.Group
	overlapped atomic.Bool

	mu       sync.Mutex
	attrs    map[string]any
	machines map[string]string // instance IDs; empty if not provisioned

	volumes               table[string, volume]
	filesystems           table[string, filesystem]
	volumeAttachments     table[params.MachineStorageId, volumeAttachment]
	filesystemAttachments table[params.MachineStorageId, filesystemAttachment]
	plans                 table[params.MachineStorageId, params.VolumeAttachmentPlan]
	devices               map[params.MachineStorageId]storage.BlockDevice

	unchecked map[string]bool // tags of entities whose owners must be checked

	statuses map[string][]params.EntityStatusArgs
	removed  []string
	feeds    feeds
}

// New returns an empty model, whose environment is named "test". Close it at the end of the
// test.
func New(options Options) *Model {
	if options.Journal == nil {
		options.Journal = calls.NewJournal()
	}
	m := &Model{
		Journal: options.Journal,
		Script:  calls.NewScript(accessorNames()...),
		byHand:  options.ByHand,
		attrs: map[string]any{
			"name": "test", "type": "test", "uuid": "deadbeef-0bad-400d-8000-4b1d0d06f00d",
		},
		machines:              make(map[string]string),
		volumes:               newTable[string, volume](),
		filesystems:           newTable[string, filesystem](),
		volumeAttachments:     newTable[params.MachineStorageId, volumeAttachment](),
		filesystemAttachments: newTable[params.MachineStorageId, filesystemAttachment](),
		plans:                 newTable[params.MachineStorageId, params.VolumeAttachmentPlan](),
		devices:               make(map[params.MachineStorageId]storage.BlockDevice),
		unchecked:             make(map[string]bool),
		statuses:              make(map[string][]params.EntityStatusArgs),
	}
	return m
}

// accessorNames returns the names of all accessor calls.
func accessorNames() []string {
	all := reflect.TypeOf(new(Model).For(nil, Removal, Plans, Sizes, Owners, Attempts))
	var names []string
	for i := range all.NumMethod() {
		names = append(names, all.Method(i).Name)
	}
	return names
}

// Close stops all watchers and returns the names of those that were not stopped before, such
// as "WatchVolumes": a worker that has ended should have stopped all of its watchers.
func (m *Model) Close() []string {
	left := m.started.Stop()
	m.byHand.stop()
	return left
}

// Watching returns the names of the watchers that have been started and not stopped, in the
// order in which they were started. The machine's tag follows the name of a machine's watcher:
// "WatchMachine machine-0".
func (m *Model) Watching() []string { return m.started.Living() }

// Overlapped reports whether one worker has ever made two accessor calls at the same time: a
// real accessor need not be safe for that.
func (m *Model) Overlapped() bool { return m.overlapped.Load() }

// change changes the model on behalf of the test.
func (m *Model) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	m.Changed()
}

// get returns the result of f, which reads the model.
func get[T any](m *Model, f func() T) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return f()
}

// at returns the ID of an attachment.
func at(machine, tag string) params.MachineStorageId {
	return params.MachineStorageId{MachineTag: machine, AttachmentTag: tag}
}

func subject(id params.MachineStorageId) string { return id.AttachmentTag + " " + id.MachineTag }

// must panics if the test has made a mistake.
func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("modeltest: %v", err))
	}
}

// known returns the row of a key, and panics if the row does not exist.
func known[K comparable, E any](t *table[K, E], key K) *E {
	row, ok := t.rows[key]
	if !ok {
		panic(fmt.Sprintf("modeltest: the model has no %v", key))
	}
	return row
}

// SetEnvironConfig sets attributes of the environment's configuration and keeps the others. A
// nil value removes an attribute.
func (m *Model) SetEnvironConfig(attrs map[string]any) {
	m.change(func() {
		for k, v := range attrs {
			if v == nil {
				delete(m.attrs, k)
			} else {
				m.attrs[k] = v
			}
		}
		m.feeds.environ.Send()
	})
}

// AddMachine adds a machine that is not provisioned.
func (m *Model) AddMachine(machine string) { m.ProvisionMachine(machine, "") }

// ProvisionMachine sets the instance ID of a machine, and adds the machine if it does not
// exist.
func (m *Model) ProvisionMachine(machine, instance string) {
	_, err := names.ParseMachineTag(machine)
	must(err)
	m.change(func() {
		m.machines[machine] = instance
		m.feeds.machines.changed(machine)
	})
}

// RemoveMachine removes a machine.
func (m *Model) RemoveMachine(machine string) {
	m.change(func() {
		delete(m.machines, machine)
		m.feeds.machines.changed(machine)
	})
}

// SetBlockDevice sets the block device of a volume on a machine.
func (m *Model) SetBlockDevice(machine, volume string, device storage.BlockDevice) {
	m.change(func() {
		m.devices[at(machine, volume)] = device
		m.feeds.devices.changed(machine)
	})
}

// RemoveBlockDevice removes the block device of a volume on a machine.
func (m *Model) RemoveBlockDevice(machine, volume string) {
	m.change(func() {
		delete(m.devices, at(machine, volume))
		m.feeds.devices.changed(machine)
	})
}

// AddVolume adds a volume that is wanted, and not made yet. If the tag exists, the volume gets
// the new parameters. AttachVolume adds its attachment.
func (m *Model) AddVolume(p params.VolumeParams) {
	_, err := names.ParseVolumeTag(p.VolumeTag)
	must(err)
	m.change(func() {
		v, added := m.volumes.put(p.VolumeTag)
		if added {
			v.life = life.Alive
		}
		v.params = p
		m.feeds.volumes.changed(p.VolumeTag)
	})
}

// AttachVolume adds the attachment of a volume to a machine, which is wanted and not made yet.
// If the attachment exists, it gets the new parameters. The IDs of volume and instance are
// filled in when the worker reads them, if they are known then.
func (m *Model) AttachVolume(p params.VolumeAttachmentParams) {
	_, err := names.ParseVolumeTag(p.VolumeTag)
	must(err)
	_, err = names.ParseTag(p.MachineTag)
	must(err)
	m.change(func() {
		id := at(p.MachineTag, p.VolumeTag)
		a, added := m.volumeAttachments.put(id)
		if added {
			a.life = life.Alive
		}
		a.params = p
		m.feeds.volumes.changed(p.VolumeTag)
		m.feeds.volumeAttachments.Send(id)
	})
}

// AddFilesystem is AddVolume for a filesystem.
func (m *Model) AddFilesystem(p params.FilesystemParams) {
	_, err := names.ParseFilesystemTag(p.FilesystemTag)
	must(err)
	m.change(func() {
		f, added := m.filesystems.put(p.FilesystemTag)
		if added {
			f.life = life.Alive
		}
		f.params = p
		m.feeds.filesystems.changed(p.FilesystemTag)
	})
}

// AttachFilesystem is AttachVolume for a filesystem.
func (m *Model) AttachFilesystem(p params.FilesystemAttachmentParams) {
	_, err := names.ParseFilesystemTag(p.FilesystemTag)
	must(err)
	_, err = names.ParseTag(p.MachineTag)
	must(err)
	m.change(func() {
		id := at(p.MachineTag, p.FilesystemTag)
		a, added := m.filesystemAttachments.put(id)
		if added {
			a.life = life.Alive
		}
		a.params = p
		m.feeds.filesystems.changed(p.FilesystemTag)
		m.feeds.filesystemAttachments.Send(id)
	})
}

// ProvisionVolume records a volume as provisioned.
func (m *Model) ProvisionVolume(volume string, info params.VolumeInfo) {
	m.change(func() {
		known(&m.volumes, volume).info = &info
		m.feeds.volumes.changed(volume)
	})
}

// ProvisionFilesystem records a filesystem as provisioned.
func (m *Model) ProvisionFilesystem(filesystem string, info params.FilesystemInfo) {
	m.change(func() {
		known(&m.filesystems, filesystem).info = &info
		m.feeds.filesystems.changed(filesystem)
	})
}

// ProvisionVolumeAttachment records an attachment as made.
func (m *Model) ProvisionVolumeAttachment(machine, volume string, info params.VolumeAttachmentInfo) {
	id := at(machine, volume)
	m.change(func() {
		known(&m.volumeAttachments, id).info = &info
		m.feeds.volumeAttachments.Send(id)
	})
}

// ProvisionFilesystemAttachment records an attachment as made.
func (m *Model) ProvisionFilesystemAttachment(machine, filesystem string, info params.FilesystemAttachmentInfo) {
	id := at(machine, filesystem)
	m.change(func() {
		known(&m.filesystemAttachments, id).info = &info
		m.feeds.filesystemAttachments.Send(id)
	})
}

// SetSize sets the wanted size of a volume or filesystem, in MiB. If it is provisioned, it
// grows if the worker's accessors have [Sizes].
func (m *Model) SetSize(tag string, size uint64) {
	m.change(func() {
		if isFilesystem(tag) {
			known(&m.filesystems, tag).params.Size = size
		} else {
			known(&m.volumes, tag).params.Size = size
		}
		m.changed(tag)
	})
}

// SetPool sets the pool of a volume or filesystem, and of its attachments.
func (m *Model) SetPool(tag string, pool params.Pool) {
	m.change(func() {
		if isFilesystem(tag) {
			known(&m.filesystems, tag).params.Pool = &pool
		} else {
			known(&m.volumes, tag).params.Pool = &pool
		}
		m.changed(tag)
	})
}

// Owner returns the owner of a volume or filesystem, whether or not the model has it.
func (m *Model) Owner(tag string) storage.Owner {
	return get(m, func() storage.Owner { return m.owner(tag) })
}

// owner returns the same owner for a tag in every model of the environment.
func (m *Model) owner(tag string) storage.Owner {
	model, _ := m.attrs["uuid"].(string)
	return storage.Owner{ModelUUID: model, EntityUUID: uuid.NewSHA1(uuid.NameSpaceOID, []byte(model+tag)).String()}
}

// CheckOwner makes accessors with [Owners] request a check of the owner of a volume or
// filesystem, until it is recorded again, as a restored state does.
func (m *Model) CheckOwner(tag string) {
	m.change(func() { m.unchecked[tag] = true })
}

// SetLife sets the life of a volume or filesystem, and nothing else. Destroy does what a state
// does.
func (m *Model) SetLife(tag string, to life.Value) {
	m.change(func() {
		*m.life(tag) = to
		m.changed(tag)
	})
}

// SetAttachmentLife sets the life of an attachment, and nothing else. Detach does what a state
// does.
func (m *Model) SetAttachmentLife(machine, tag string, to life.Value) {
	m.change(func() {
		id := at(machine, tag)
		*m.attachmentLife(id) = to
		m.attachmentChanged(id)
	})
}

// Forget removes a volume or filesystem from the model, with its attachments, without a
// worker's involvement.
func (m *Model) Forget(tag string) {
	m.change(func() {
		for _, id := range m.attachmentsOf(tag) {
			m.removeAttachment(id)
			m.attachmentChanged(id)
		}
		m.volumes.remove(tag)
		m.filesystems.remove(tag)
		m.changed(tag)
	})
}

// ForgetAttachment removes an attachment from the model without a worker's involvement.
func (m *Model) ForgetAttachment(machine, tag string) {
	m.change(func() {
		id := at(machine, tag)
		m.removeAttachment(id)
		m.attachmentChanged(id)
		m.changed(tag)
	})
}

// Life returns the life of a volume or filesystem; empty if the model has no such entity.
func (m *Model) Life(tag string) life.Value {
	return get(m, func() life.Value {
		if !m.has(tag) {
			return ""
		}
		return *m.life(tag)
	})
}

// AttachmentLife returns the life of an attachment; empty if the model has no such attachment.
func (m *Model) AttachmentLife(machine, tag string) life.Value {
	return get(m, func() life.Value {
		id := at(machine, tag)
		if !m.hasAttachment(id) {
			return ""
		}
		return *m.attachmentLife(id)
	})
}

// Volume returns the recorded info of a volume, if it is provisioned.
func (m *Model) Volume(volume string) (params.VolumeInfo, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return info(&m.volumes, volume)
}

// Filesystem returns the recorded info of a filesystem, if it is provisioned.
func (m *Model) Filesystem(filesystem string) (params.FilesystemInfo, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return info(&m.filesystems, filesystem)
}

// VolumeAttachment returns the recorded info of an attachment, if it is made.
func (m *Model) VolumeAttachment(machine, volume string) (params.VolumeAttachmentInfo, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return info(&m.volumeAttachments, at(machine, volume))
}

// FilesystemAttachment returns the recorded info of an attachment, if it is made.
func (m *Model) FilesystemAttachment(machine, filesystem string) (params.FilesystemAttachmentInfo, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return info(&m.filesystemAttachments, at(machine, filesystem))
}

func info[K comparable, P, I any](t *table[K, entity[P, I]], key K) (I, bool) {
	if e, ok := t.rows[key]; ok && e.info != nil {
		return *e.info, true
	}
	var none I
	return none, false
}

// Plan returns an attachment plan, if there is one.
func (m *Model) Plan(machine, volume string) (params.VolumeAttachmentPlan, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, ok := m.plans.rows[at(machine, volume)]; ok {
		return *p, true
	}
	return params.VolumeAttachmentPlan{}, false
}

// Statuses returns all statuses that have been set for a volume or filesystem, the latest
// last.
func (m *Model) Statuses(tag string) []params.EntityStatusArgs {
	return get(m, func() []params.EntityStatusArgs { return slices.Clone(m.statuses[tag]) })
}

// Status returns the latest status of a volume or filesystem; the zero value if none has been
// set.
func (m *Model) Status(tag string) params.EntityStatusArgs {
	if all := m.Statuses(tag); len(all) > 0 {
		return all[len(all)-1]
	}
	return params.EntityStatusArgs{}
}

// Removed returns the volumes, filesystems and attachments that workers have removed, in
// order, as subjects.
func (m *Model) Removed() []string {
	return get(m, func() []string { return slices.Clone(m.removed) })
}

// Tags returns the tags of all machines, volumes and filesystems, sorted.
func (m *Model) Tags() []string {
	return get(m, func() []string {
		tags := slices.Concat(m.volumes.keys, m.filesystems.keys)
		for machine := range m.machines {
			tags = append(tags, machine)
		}
		slices.Sort(tags)
		return tags
	})
}

// Recorded reports whether a volume or filesystem is provisioned.
func (m *Model) Recorded(tag string) bool {
	_, volume := m.Volume(tag)
	_, filesystem := m.Filesystem(tag)
	return volume || filesystem
}

// Backing returns the tag of a filesystem's backing volume; empty if it has none.
func (m *Model) Backing(filesystem string) string {
	return get(m, func() string {
		if f, ok := m.filesystems.rows[filesystem]; ok {
			return f.params.VolumeTag
		}
		return ""
	})
}
