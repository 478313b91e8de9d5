package modeltest

import (
	"slices"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
)

// Destroy destroys a volume or filesystem as a state does: it and its attachments become dying
// at once. When a worker has removed the last attachment, it becomes dead, and a worker
// removes it. A volume waits for the filesystem on it, which must be destroyed first.
func (m *Model) Destroy(tag string) { m.end(tag, false) }

// Release is like Destroy but keeps the provider's storage: a worker whose accessors have
// [Removal] releases the storage instead of destroying it.
func (m *Model) Release(tag string) { m.end(tag, true) }

func (m *Model) end(tag string, release bool) {
	m.change(func() {
		if isFilesystem(tag) {
			f := known(&m.filesystems, tag)
			f.ending, f.release = true, release
		} else {
			v := known(&m.volumes, tag)
			v.ending, v.release = true, release
		}
		if l := m.life(tag); *l == life.Alive {
			*l = life.Dying
		}
		m.changed(tag)
		for _, id := range m.attachmentsOf(tag) {
			m.beginDetach(id)
		}
		m.settle(tag)
	})
}

// Detach detaches a volume or filesystem as a state does: the attachment becomes dying at
// once. If it has a plan, the plan becomes dying first, and the attachment when a worker has
// removed the plan.
func (m *Model) Detach(machine, tag string) {
	m.change(func() {
		id := at(machine, tag)
		m.attachmentLife(id) // panics if there is no such attachment
		m.beginDetach(id)
	})
}

func (m *Model) beginDetach(id params.MachineStorageId) {
	if plan, ok := m.plans.rows[id]; ok {
		plan.Life = life.Dying
		m.feeds.plans.Send(id)
		return
	}
	*m.attachmentLife(id) = life.Dying
	m.attachmentChanged(id)
}

// settle makes an entity that is being destroyed dead, if it has no attachment and no
// filesystem is on it.
func (m *Model) settle(tag string) {
	if !m.has(tag) || len(m.attachmentsOf(tag)) > 0 {
		return
	}
	if isFilesystem(tag) {
		if f := m.filesystems.rows[tag]; f.ending {
			f.life = life.Dead
			m.changed(tag)
		}
		return
	}
	for _, f := range m.filesystems.rows {
		if f.params.VolumeTag == tag {
			return
		}
	}
	if v := m.volumes.rows[tag]; v.ending {
		v.life = life.Dead
		m.changed(tag)
	}
}

// The functions below serve both volumes and filesystems. The caller holds the lock.

func isFilesystem(tag string) bool {
	_, err := names.ParseFilesystemTag(tag)
	return err == nil
}

func (m *Model) has(tag string) bool {
	return m.volumes.rows[tag] != nil || m.filesystems.rows[tag] != nil
}

func (m *Model) life(tag string) *life.Value {
	if isFilesystem(tag) {
		return &known(&m.filesystems, tag).life
	}
	return &known(&m.volumes, tag).life
}

func (m *Model) changed(tag string) {
	if isFilesystem(tag) {
		m.feeds.filesystems.changed(tag)
	} else {
		m.feeds.volumes.changed(tag)
	}
}

// remove removes an entity that a worker has removed. If it is a filesystem, remove also
// settles its backing volume.
func (m *Model) remove(tag string) bool {
	var backing string
	if f, ok := m.filesystems.rows[tag]; ok {
		backing = f.params.VolumeTag
	}
	if !m.volumes.remove(tag) && !m.filesystems.remove(tag) {
		return false
	}
	m.changed(tag)
	m.settle(backing)
	return true
}

func (m *Model) hasAttachment(id params.MachineStorageId) bool {
	return m.volumeAttachments.rows[id] != nil || m.filesystemAttachments.rows[id] != nil
}

func (m *Model) attachmentLife(id params.MachineStorageId) *life.Value {
	if isFilesystem(id.AttachmentTag) {
		return &known(&m.filesystemAttachments, id).life
	}
	return &known(&m.volumeAttachments, id).life
}

func (m *Model) attachmentChanged(id params.MachineStorageId) {
	if isFilesystem(id.AttachmentTag) {
		m.feeds.filesystemAttachments.Send(id)
	} else {
		m.feeds.volumeAttachments.Send(id)
	}
}

func (m *Model) removeAttachment(id params.MachineStorageId) bool {
	if m.plans.remove(id) {
		m.feeds.plans.Send(id)
	}
	return m.volumeAttachments.remove(id) || m.filesystemAttachments.remove(id)
}

// attachmentsOf returns the attachments of a volume or filesystem.
func (m *Model) attachmentsOf(tag string) []params.MachineStorageId {
	keys := m.volumeAttachments.keys
	if isFilesystem(tag) {
		keys = m.filesystemAttachments.keys
	}
	var ids []params.MachineStorageId
	for _, id := range slices.Clone(keys) {
		if id.AttachmentTag == tag {
			ids = append(ids, id)
		}
	}
	return ids
}
