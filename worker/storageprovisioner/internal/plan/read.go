package plan

import (
	"reflect"
	"time"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
)

// Fact is an entity as the state has it.
type Fact struct {
	Subject
	// Err says why the entity could not be read. The entity is read again later, and the other
	// fields but Subject and Life mean nothing. Life is Gone if it was not read either.
	Err  error
	Life Life
	// Recorded says that the state has the entity's info: the entity is provisioned. Attempted
	// says that an entity that is not recorded may have been made nevertheless.
	Recorded, Attempted bool
	// ID is the provider's ID of the volume or filesystem, if it is known.
	ID     string
	Class  Class
	Source Source
	// Host is the tag of the machine that the entity is for, if any, and Instance the
	// machine's instance ID, if it was read along with the entity.
	Host     string
	Instance string
	// Backing is the ID of the volume that backs a filesystem, if any. An attachment uses that
	// of its filesystem, unless BackingKnown says that it was read along with the attachment.
	Backing      string
	BackingKnown bool
	// Release says that removing the entity means to release, not to destroy it.
	Release bool
	// Owner is the owner of the volume or filesystem, or of the one that the attachment
	// attaches, if the source must be asked for the owner before anything is done; else nil.
	Owner *storage.Owner
	// Size is the size of a recorded volume or filesystem, and Wanted its wanted size, in MiB;
	// Wanted is zero if the state does not say. The Size of a plan that acts on the growth of its
	// volume is the volume's.
	Size, Wanted uint64
	// Context is what the source of a recorded volume needs to attach it, beside its ID. It is read both
	// with the volume and with its attachments: either may be first.
	Context map[string]string
	// Args are the provider's arguments for the next operation, without ID and Instance, which
	// are added when the operation starts. They are nil for an entity that lacks the
	// parameters to be created or attached, which is left as it is.
	Args any
}

// Subject names an entity. Any goroutine may use it.
type Subject struct {
	// entity is the entity's record, which the core may have dropped. The exported methods read
	// only the fields that do not change.
	entity *entity
	// Unattributed says that the source that provides the entity must be read even if nothing
	// is to be done about the entity.
	Unattributed bool
	// Settled says that this worker has attached the attachment: while it stays recorded and
	// alive, nothing else needs to be read about it.
	Settled bool
}

// subject returns the entity's subject.
func (e *entity) subject() Subject { return Subject{entity: e} }

// NewSubject returns the subject of an entity that the core need not have a record of.
func NewSubject(key Key) Subject {
	e := newStorage(key.Storage())
	if key.Kind.Attachment() {
		e = newAttachment(key.Kind, e)
		e.host = &host{tag: key.Host}
	}
	return e.subject()
}

// Key returns the entity's key.
func (s Subject) Key() Key { return s.entity.key() }

// Kind returns the kind of the entity.
func (s Subject) Kind() Kind { return s.entity.kind }

// Tag returns the tag of the volume or filesystem, or of the one that is attached.
func (s Subject) Tag() names.Tag { return s.entity.common.tag }

// TagText returns the text of the tag that Tag returns.
func (s Subject) TagText() string { return s.entity.common.text }

// Storage returns the subject of the volume or filesystem that an attachment attaches; the
// subject of a volume or filesystem returns itself.
func (s Subject) Storage() Subject { return s.entity.storage.subject() }

// HasUnread reports whether there is anything to read or look up.
func (c *Core) HasUnread() bool {
	return len(c.unread) > 0 || len(c.lookups) > 0 || c.devicesChanged && len(c.watched) > 0
}

// Changed notes that an entity must be read.
func (c *Core) Changed(key Key) {
	c.requestRead(c.entity(key))
}

func (c *Core) requestRead(e *entity) {
	if e.pendingRead == readNothing {
		e.pendingRead = readFacts
		c.unread = append(c.unread, e)
	}
}

// Unread returns the entities to be read, at most limit of them.
func (c *Core) Unread(limit int) []Subject {
	n := min(limit, len(c.unread))
	if n == 0 {
		return nil
	}
	subjects := make([]Subject, n)
	for i, e := range takeFirst(&c.unread, n) {
		subjects[i] = e.subject()
		subjects[i].Unattributed = e.pendingRead == readSource
		subjects[i].Settled = e.flags.has(attachedHere) && e.op == None
		e.pendingRead, e.attemptEnded = readNothing, false
	}
	return subjects
}

// takeFirst removes the first n elements from a list and returns them.
func takeFirst[T any](list *[]T, n int) []T {
	first, rest := (*list)[:n], (*list)[n:]
	if len(rest) == 0 {
		rest = nil
	}
	*list = rest
	return first
}

// Observe handles a fact: an entity as the state has it.
func (c *Core) Observe(f Fact) {
	key := f.Key()
	c.countFirstRead(key.Kind)
	if f.Err != nil {
		c.readFailed(&f)
		return
	}
	if _, ok := c.unreadable[key]; ok {
		delete(c.unreadable, key)
		c.options.Timetable.Remove(key)
	}
	e := c.findSubject(f.Subject)
	if key.Kind == VolumeAttachment && f.Life != Alive && (e == nil || e.known == neverRead || e.life == Alive) {
		c.noteUnwantedAttachment(key.Storage())
	}
	if f.Life == Gone {
		if e != nil {
			c.observeGone(e)
		}
		return
	}
	if e == nil {
		e = c.entity(key)
	}
	if e.orphan {
		return
	}
	// When an entity starts to be removed, look at once for what may have been made for it,
	// even if the operation that does so has been given up.
	goes := e.life == Alive && f.Life != Alive
	if e.stalled == deferred || !e.underway() && e.hasFailed() && (goes || e.differs(&f)) {
		c.refresh(e)
	}
	foundRecorded := f.Recorded && f.ID != e.id && !e.kind.Attachment()
	c.learn(e, &f)
	if h := e.host; f.Instance != "" && (h == nil || h.tag != f.Host || h.instance != f.Instance) {
		c.Provisioned(f.Host, f.Instance)
	}
	c.settle(e)
	c.wake(e)
	if foundRecorded {
		c.rejectDuplicates(e)
	}
	if e.kind == FilesystemAttachment {
		c.wake(e.storage) // a filesystem is made only where it is wanted
	}
}

// noteUnwantedAttachment notes that an attachment of a volume is no longer wanted. The volume
// is read before it is created, because its creation with the parameters read earlier might
// attach it.
func (c *Core) noteUnwantedAttachment(volume Key) {
	v := c.find(volume)
	if v != nil && v.known != neverRead && v.made != recorded && v.life == Alive {
		c.requireRead(v)
		c.settle(v)
	}
}

// unreadable describes the failed attempts to read an entity.
type unreadable struct {
	// refusal describes the failures in a row, and since is the time of the first of them.
	refusal
	since time.Time
}

// readFailed notes that an entity cannot be read. The entity is read again later; until then
// the core keeps what it knew of the entity. If only its life could be read, and it is no
// longer wanted, nothing is done about it until then.
func (c *Core) readFailed(f *Fact) {
	key := f.Key()
	u, ok := c.unreadable[key]
	if !ok {
		u.since = c.now
	}
	u.attempts++
	u.message = f.Err.Error()
	u.due = c.now.Add(c.options.Retry.Delay(u.attempts))
	c.unreadable[key] = u
	c.options.Timetable.Add(key, key, u.due)
	e := c.findSubject(f.Subject)
	if e != nil && e.known == fresh && e.life == Alive && (f.Life == Dying || f.Life == Dead) && !e.orphan {
		e.known = stale
		c.settle(e)
		c.wake(e)
	}
}

// learn updates an entity from a fact. The source of an entity does not change and is not read
// for every decision: what the fact lacks stays as it was.
func (c *Core) learn(e *entity, f *Fact) {
	e.known = fresh
	e.life = f.Life
	switch {
	case f.Recorded:
		e.made = recorded
	case f.Attempted && !e.attemptEnded && !e.underway():
		e.made = unknownMade
		e.ensureWork()
	case e.made == recorded:
		e.made = notMade
	}
	e.release = f.Release
	e.backingKnown = f.BackingKnown
	if f.ID != "" {
		e.id = f.ID
	}
	if f.ID != "" && (len(f.Context) > 0 || !e.kind.Attachment()) {
		c.setContext(e.storage, f.Context)
	}
	if !e.kind.Attachment() {
		e.common.size, e.common.wanted = f.Size, f.Wanted
		if f.Host != "" {
			c.setHost(e, f.Host)
		}
	}
	if e.kind == Plan && f.Size > c.planned[e] {
		c.planned[e] = f.Size
		e.flags.set(attachedHere, false) // the plan is carried out again
	}
	if f.Backing != "" {
		c.setDevice(&e.backing, c.device(f.Backing))
	}
	if f.Source != (Source{}) || e.queue == nil {
		e.queue, e.class = c.queue(f.Source), f.Class
	}
	if f.ID != "" {
		c.learnID(e, f.ID)
	}
	if f.Args != nil || f.Owner != nil || e.work != nil {
		w := e.ensureWork()
		w.args, w.owner = f.Args, f.Owner
	}
}

// differs reports whether a fact would give the entity's next operation other parameters than
// the one that has failed.
func (e *entity) differs(f *Fact) bool {
	return !reflect.DeepEqual(e.args(), f.Args) || !reflect.DeepEqual(e.work.owner, f.Owner)
}

// observeGone notes that the state does not have an entity any more.
func (c *Core) observeGone(e *entity) {
	switch {
	case e.orphan:
	case e.underway():
		e.life = Gone
	default:
		c.forget(e)
	}
}

// removeOrphan destroys or detaches what was made for an entity that the state no longer has.
// The state may have the entity again when that is done, so the entity is read then.
func (c *Core) removeOrphan(e *entity) {
	e.orphan = true
	if e.known == stale {
		e.known = fresh
	}
	e.made = recorded
	e.release = false
	e.life = Dead
	c.makeIdle(e)
	c.settle(e)
}

// setContext notes what the source of a volume needs to attach it, beside its ID.
func (c *Core) setContext(volume *entity, context map[string]string) {
	if len(context) == 0 {
		delete(c.contexts, volume)
		return
	}
	c.contexts[volume] = context
}

// forget clears the record of an entity, and drops it unless others refer to it.
func (c *Core) forget(e *entity) {
	d := e.backing
	c.makeIdle(e)
	c.unhold(e)
	delete(c.ownership, e)
	delete(c.contexts, e)
	delete(c.planned, e)
	e.clear()
	c.wake(e)
	if s := e.storage; s.known == neverRead && d != nil && d.watched {
		// Entities that still wait for the device of the deleted filesystem request the device
		// again.
		c.unwatchDevice(d)
		c.out.Forgotten = append(c.out.Forgotten, d.volume)
		c.wake(d)
	}
	c.setDevice(&e.backing, nil)
	c.dropUnused(e)
}

// clear resets the record of an entity to what it was before the entity was observed.
func (e *entity) clear() {
	e.state = state{}
	if s := e.common; !e.kind.Attachment() {
		s.size, s.wanted = 0, 0
		s.lastStatus, s.statusText = noStatus, nil
	}
}
