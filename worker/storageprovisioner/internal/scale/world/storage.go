package world

import (
	"strconv"
	"strings"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
)

// Storage holds all volumes, or all filesystems, of a world, each with one attachment.
type Storage struct {
	world  *World
	kind   string // of tags: "volume"
	prefix string // of tags: "volume-"
	items  []item
	// made is what the sources have made of each item. sources holds the source of each
	// provider.
	made    []made
	sources []*source

	// Recorded, Attached, Detached and Removed count what the worker has reported to the
	// state: infos of storage, infos of attachments, removed attachments, and removed storage.
	Recorded, Attached, Detached, Removed Tally

	changes           *Watch[[]string]
	attachmentChanges *Watch[[]params.MachineStorageId]
}

// item is a volume or filesystem and its attachment. An empty life means that the entity is
// not there. The provider's ID is the tag.
type item struct {
	number           int
	tag              string
	machine          *machine
	provider         string
	life, attachment life.Value
	recorded         bool
	attached         bool
}

// providerID returns the ID that the provider has given, or an empty string if it is not
// recorded.
func (i *item) providerID() string {
	if !i.recorded {
		return ""
	}
	return i.tag
}

// noItem is the item for a tag that no item has.
var noItem item

func newStorage(w *World, kind string, n int) *Storage {
	s := &Storage{
		world:             w,
		kind:              kind,
		prefix:            kind + "-",
		items:             make([]item, n),
		changes:           newWatch[[]string](0),
		attachmentChanges: newWatch[[]params.MachineStorageId](0),
	}
	for _, t := range []*Tally{&s.Recorded, &s.Attached, &s.Detached, &s.Removed} {
		t.mu = &w.mu
	}
	s.made = make([]made, n)
	types := make([]string, w.options.Providers)
	for i := range types {
		types[i] = providerType(i)
		s.sources = append(s.sources, newSource(s))
	}
	for i := range s.items {
		s.items[i] = item{
			number:   i,
			tag:      s.prefix + strconv.Itoa(i),
			machine:  &w.machines[i%len(w.machines)],
			provider: types[i%len(types)],
		}
		if w.options.Recorded {
			s.items[i].recorded, s.items[i].attached = true, true
			s.made[i].made, s.made[i].attached = true, true
		}
	}
	return s
}

// Len returns the number of items.
func (s *Storage) Len() int { return len(s.items) }

// IDs returns the IDs of all items, as a watcher sends them.
func (s *Storage) IDs() []string {
	ids := make([]string, len(s.items))
	for i := range s.items {
		ids[i] = s.items[i].tag[len(s.prefix):]
	}
	return ids
}

// AttachmentIDs returns the IDs of all attachments.
func (s *Storage) AttachmentIDs() []params.MachineStorageId {
	ids := make([]params.MachineStorageId, len(s.items))
	for i := range s.items {
		ids[i] = params.MachineStorageId{MachineTag: s.items[i].machine.tag, AttachmentTag: s.items[i].tag}
	}
	return ids
}

// Appear makes all items and their attachments alive, without an event for the worker.
func (s *Storage) Appear() {
	s.all(func(i *item) { i.life, i.attachment = life.Alive, life.Alive })
}

// Detach makes all attachments dying, without an event for the worker.
func (s *Storage) Detach() {
	s.all(func(i *item) { i.attachment = life.Dying })
}

// Die makes all items dead, without an event for the worker. Their attachments must be gone.
func (s *Storage) Die() {
	s.all(func(i *item) { i.life = life.Dead })
}

func (s *Storage) all(change func(*item)) {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	for i := range s.items {
		change(&s.items[i])
	}
}

// Notify reports to the worker that volumes or filesystems have changed.
func (s *Storage) Notify(ids ...string) { s.changes.Send(ids) }

// NotifyAttachments reports to the worker that attachments have changed.
func (s *Storage) NotifyAttachments(ids ...params.MachineStorageId) { s.attachmentChanges.Send(ids) }

// number returns the number in a tag. If no item has the tag, it breaks the world and returns
// -1.
func (s *Storage) number(tag string) int {
	id, ok := strings.CutPrefix(tag, s.prefix)
	n, err := strconv.Atoi(id)
	if !ok || err != nil || n < 0 || n >= len(s.items) {
		s.world.fail("%q is not the tag of a %s", tag, s.kind)
		return -1
	}
	return n
}

// at returns the item of a tag.
func (s *Storage) at(tag string) *item {
	if n := s.number(tag); n >= 0 {
		return &s.items[n]
	}
	return &noItem
}

// attachmentAt returns the item with an attachment.
func (s *Storage) attachmentAt(id params.MachineStorageId) *item {
	i := s.at(id.AttachmentTag)
	if i != &noItem && id.MachineTag != i.machine.tag {
		s.world.fail("%s is not attached to %q", id.AttachmentTag, id.MachineTag)
		return &noItem
	}
	return i
}

// record records the info of the item with a tag.
func (s *Storage) record(tag, id string, mib uint64) *params.Error {
	i := s.at(tag)
	if err := present(i.life); err != nil {
		return err
	}
	if id != i.tag || mib != size {
		s.world.fail("%s is recorded with the id %q and %d MiB", tag, id, mib)
	}
	i.recorded = true
	s.Recorded.add()
	return nil
}

// recordAttachment records the info of an attachment.
func (s *Storage) recordAttachment(id params.MachineStorageId) *params.Error {
	i := s.attachmentAt(id)
	if err := present(i.attachment); err != nil {
		return err
	}
	if !i.recorded {
		s.world.fail("the attachment of %s is recorded before the storage", i.tag)
	}
	i.attached = true
	if s == s.world.Volumes {
		s.world.options.Attached(i.number)
	}
	s.Attached.add()
	return nil
}

// removeAttachment removes an attachment.
func (s *Storage) removeAttachment(id params.MachineStorageId) *params.Error {
	i := s.attachmentAt(id)
	if err := present(i.attachment); err != nil {
		return err
	}
	switch {
	case i.attachment == life.Alive:
		s.world.fail("the attachment of %s is removed while it is alive", i.tag)
	case s.made[i.number].attached:
		s.world.fail("the attachment of %s is removed while it is attached", i.tag)
	}
	i.attachment, i.attached = "", false
	s.Detached.add()
	return nil
}

// remove removes a volume or filesystem.
func (s *Storage) remove(tag string) *params.Error {
	i := s.at(tag)
	if err := present(i.life); err != nil {
		return err
	}
	switch {
	case i.life != life.Dead:
		s.world.fail("%s is removed while it is %s", tag, i.life)
	case s.made[i.number].made:
		s.world.fail("%s is removed while its provider has it", tag)
	}
	i.life, i.recorded = "", false
	s.Removed.add()
	return nil
}
