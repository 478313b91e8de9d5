package plan

import (
	"time"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
)

// phase is how far an entity's operation is.
type phase uint8

const (
	// idle has nothing to do, or stalled.
	idle phase = iota
	// waiting is registered with the fact that it waits for.
	waiting
	// scheduled failed, and is tried again when it is due.
	scheduled
	// queued waits for its source to be free.
	queued
	// running is in a provider's hands.
	running
	// publishing has a result that the state has not taken yet.
	publishing
)

// entity is all that the worker remembers of one entity. There may be millions at
// rest, so what matters only while there is something to do is in work.
type entity struct {
	// name is the id of the tag of the volume or filesystem, or of the one that the
	// attachment attaches.
	name string
	// tag is that of the volume or filesystem; an attachment's is its storage's.
	tag names.Tag
	// id is the provider's id of the volume or filesystem, where it is known.
	id string

	// storage is what an attachment attaches, and the entity itself otherwise.
	storage *entity
	// attachments are those of a volume or filesystem; next and previous are an
	// attachment's neighbours there.
	attachments    attachments
	next, previous *entity
	// host is that of an attachment, or the machine that a volume is made for.
	host *host
	// queue is that of the source that provides the entity.
	queue *queue
	// backing is the device of the volume that backs a filesystem, if any, by the
	// entity's facts. heldBacking is the device that a filesystem or its attachment
	// stands on while it is held.
	backing, heldBacking *device
	// size is how large a recorded volume or filesystem is, and wanted how large it
	// is to be, in MiB.
	size, wanted uint64

	// said is nil unless there was more to say of the entity than its status.
	said *said
	// work is nil unless there is something to do, or to remember about what was
	// tried.
	work    *work
	waiters waiters

	// place is where the core has the entity in its list of all.
	place uint32
	// users counts what must go before the entity does: the held attachments
	// of a volume or filesystem, the mounted filesystems on an attached volume.
	users uint32
	// calls counts the operations under way that are about a volume or filesystem.
	calls uint16

	kind  Kind
	life  Life
	class Class
	phase phase
	op    Op
	// told is what status a volume or filesystem has last been given.
	told told

	// observed is false for an entity that is known only from what refers to
	// it.
	observed bool
	// recorded says that the state has the entity's info: it is provisioned.
	recorded bool
	// onMachine says that the host of an attachment is a machine.
	onMachine bool
	// backingKnown says that the facts of a filesystem's attachment tell what backs
	// the filesystem.
	backingKnown bool
	// released says that removing means to release, not to destroy.
	released bool
	// unread says what of the entity is to be read, and stale that this must happen
	// before anything else is done about it.
	unread unread
	stale  bool
	// ties say whether this worker has attached it, and what has become of that.
	ties ties
	// held says that what the entity stands on must stay: it is attached, or
	// may be, or is being made there.
	held bool
	// orphan says that the state has dropped the entity while it was being
	// made; what was made is undone.
	orphan bool
	// outdated says that the environment's configuration has changed since the
	// operation began.
	outdated bool
	// unmarked says that the block device that backs a filesystem had no UUID when
	// the filesystem was attached.
	unmarked bool
	// unresolved says that the operation may be going on somewhere: it is
	// repeated as it was until its end is known.
	unresolved bool
	// left says what attempts to make or attach the entity may have left. The entity is
	// tried again, and what is left is looked into before the entity goes.
	left leftovers
	// tried says that an attempt to make it has ended since it was last to be read: what
	// the state tells of attempts is older.
	tried bool
	// stalled says whether, and why, the operation waits for a change.
	stalled stall
}

// leftovers is what attempts that have failed may have left of an entity.
type leftovers uint8

const (
	nothingLeft leftovers = iota
	// somethingLeft: the attempts have ended, and did not say that they made nothing.
	somethingLeft
	// notKnown: nothing is known of what an attempt did, nor whether it has ended.
	notKnown
)

// uncertain reports whether attempts to make or attach the entity may have left anything.
func (e *entity) uncertain() bool { return e.left != nothingLeft }

// unread is what of an entity is to be read.
type unread uint8

const (
	nothingUnread unread = iota
	// factsUnread are what matters for what is to be done about it.
	factsUnread
	// sourceUnread is that, and which source provides it in any case.
	sourceUnread
)

// ties say how something is attached, in one byte.
type ties uint8

const (
	// attachedHere: this worker has attached it since it started.
	attachedHere ties = 1 << iota
	// unchecked: it is to be looked at whether it still is as it was attached.
	unchecked
	// amiss: it was not, by the last look.
	amiss
	// asked: a user has asked for it, and it is attached again if it is amiss.
	asked
)

func (t ties) has(what ties) bool { return t&what != 0 }

func (t *ties) set(what ties, on bool) {
	*t &^= what
	if on {
		*t |= what
	}
}

// stall is why an operation is not tried.
type stall uint8

const (
	notStalled stall = iota
	// givenUp has failed in a way that repeating does not help.
	givenUp
	// deferred is what the source has asked to be asked again about at the next
	// change of the entity.
	deferred
)

// work is what there is to do about an entity.
type work struct {
	// since is when the operation was first wanted, or began or ceased to wait
	// for something.
	since time.Time
	// args and owner are those of the entity's [Fact].
	args  any
	owner *storage.Owner
	// attempts counts the failures of the operation in a row; due is when it is
	// tried next, zero when it may go at once.
	attempts int
	due      time.Time
	// transient counts the failures that pass by themselves, and which attempts has not.
	transient int
	// failure is the message of the last one.
	failure string
	// granted says that a resync allows one more attempt at an operation that has been
	// given up. The attempt is not counted, and a failure that the status already shows
	// is not reported again.
	granted bool
	// wait is what a waiting entity is registered with, between its neighbours
	// there; nil for any other.
	wait           awaited
	next, previous *entity
	// item is the operation as a provider was handed it, until it ends; else nil.
	item *Item
	// result is kept until it is published; refused tells of the failures to do so.
	result  *Result
	refused *refusal
}

// refusal is what has come of publishing a result that the state has not taken, or of
// reading what it does not give.
type refusal struct {
	// attempts have failed, message is that of the last, and due is when the next is.
	attempts int
	message  string
	due      time.Time
}

// told is what status a volume or filesystem has last been given.
type told uint8

const (
	nothing told = iota
	attached
	detached
	// unrest is any other.
	unrest
)

// resting are the statuses of what is at rest.
var resting = [...]status.Status{attached: status.Attached, detached: status.Detached}

// said is what a volume or filesystem has been told about beside its status: the
// message of an error, or of what is at rest, and what its source had to say when it was
// attached.
type said struct {
	message, remark string
}

// host is where storage is attached: a machine, or a unit.
type host struct {
	waiters waiters
	tag     string
	// instance is the id of a machine's instance, once it is known.
	instance string
	// asked says that the machine's instance is being asked about.
	asked bool
	// users counts the entities that refer to it.
	users int
}

// device is the block device of a volume that backs filesystems.
type device struct {
	waiters waiters
	volume  string
	tag     names.Tag
	// matters says that something waits for the device, or has used it; only then
	// is anything known of it. place is where the core has it in its list of those.
	matters bool
	place   int
	// sought says that the device is to be looked up, and failures how often that has
	// failed in a row.
	sought   bool
	failures int

	known bool
	// marked says that it has a UUID.
	marked bool
	// size is in MiB.
	size uint64
	// mounted is the attachment of the filesystem on it, from when it is being
	// made until it is unmade.
	mounted *entity
	// users counts the entities that refer to it.
	users int
}

// key returns what identifies the entity.
func (e *entity) key() Key {
	key := Key{Kind: e.kind, ID: e.name}
	if e.kind.Attachment() {
		key.Host = e.host.tag
	}
	return key
}

// args returns what a provider needs for the next operation, as far as it is known.
func (e *entity) args() any {
	if e.work == nil {
		return nil
	}
	return e.work.args
}

// busy reports whether the entity's operation must end before anything else can
// be done about it.
func (e *entity) busy() bool {
	return e.phase == running || e.phase == publishing
}

// underway reports whether the entity's operation has begun and has not ended, as
// far as is known.
func (e *entity) underway() bool {
	return e.busy() || e.unresolved
}

// toDo returns the entity's work, making it if it does not exist.
func (e *entity) toDo() *work {
	if e.work == nil {
		e.work = &work{}
	}
	return e.work
}

// find returns the record of the entity with a key, or nil.
func (c *Core) find(key Key) *entity {
	s := c.storage[key.Kind.Storage()].Get(key.ID)
	if s == nil || !key.Kind.Attachment() {
		return s
	}
	return s.attachments.find(key.Kind, key.Host)
}

// known returns the record of a subject's entity, or nil.
func (c *Core) known(s Subject) *entity {
	if s.entity != nil && c.has(s.entity) {
		return s.entity
	}
	return c.find(s.Key)
}

// has reports whether a record is the core's still.
func (c *Core) has(e *entity) bool {
	return int(e.place) < len(c.all) && c.all[e.place] == e
}

// entity returns the record of an entity, making it if it does not exist.
func (c *Core) entity(key Key) *entity {
	if e := c.find(key); e != nil {
		return e
	}
	e := &entity{kind: key.Kind, name: key.ID, place: uint32(len(c.all))}
	c.all = append(c.all, e)
	if !key.Kind.Attachment() {
		e.storage = e
		e.tag = key.Tag()
		c.storage[key.Kind].Set(key.ID, e)
		return e
	}
	c.setHost(e, key.Host)
	s := c.entity(key.Storage())
	e.storage, e.name, e.tag = s, s.name, s.tag
	s.attachments.add(e)
	return e
}

// drop drops an entity that nothing is to be remembered of any more: not of itself,
// and not for others.
func (c *Core) drop(e *entity) {
	if e.observed || e.unread != nothingUnread || e.held || e.users > 0 || e.work != nil || e.attachments.first != nil {
		return
	}
	if !c.has(e) {
		return // dropped already
	}
	last := len(c.all) - 1
	c.all[e.place] = c.all[last]
	c.all[e.place].place = e.place
	c.all[last] = nil
	c.all = c.all[:last]
	if s := e.storage; s != e {
		s.attachments.remove(e)
		c.drop(s)
	} else {
		c.storage[e.kind].Delete(e.name)
	}
	c.setHost(e, "")
	if len(c.all) == 0 {
		c.all = nil // the room for millions is not kept for none
	}
}

// setHost sets the host that an entity refers to; empty for none. One that nothing
// refers to any more is forgotten, unless it is being asked about.
func (c *Core) setHost(e *entity, tag string) {
	former := e.host
	e.host = nil
	if tag != "" {
		h, ok := c.hosts[tag]
		if !ok {
			h = &host{tag: tag}
			c.hosts[tag] = h
		}
		h.users++
		e.host = h
	}
	if former != nil {
		former.users--
		c.dropHost(former)
	}
}

func (c *Core) dropHost(h *host) {
	if h.users == 0 && (h.instance != "" || !h.asked) {
		delete(c.hosts, h.tag)
	}
}

// device returns what is known of the device of a volume, making it where there is
// nothing.
func (c *Core) device(volume string) *device {
	d := c.devices.Get(volume)
	if d == nil {
		d = &device{volume: volume}
		if v := c.storage[Volume].Get(volume); v != nil {
			d.tag = v.tag
		} else {
			d.tag = names.NewVolumeTag(volume)
		}
		c.devices.Set(volume, d)
	}
	return d
}

// setDevice sets a reference to a device, which is forgotten with the last one.
func (c *Core) setDevice(of **device, d *device) {
	former := *of
	*of = d
	if d != nil {
		d.users++
	}
	if former == nil {
		return
	}
	former.users--
	if former.users == 0 {
		c.readable(former)
		c.devices.Delete(former.volume)
	}
}

// matter notes that a device matters from here on.
func (c *Core) matter(d *device) {
	d.matters = true
	d.place = len(c.mattering)
	c.mattering = append(c.mattering, d)
}

// ignore notes that a device does not matter any more.
func (c *Core) ignore(d *device) {
	last := len(c.mattering) - 1
	c.mattering[d.place] = c.mattering[last]
	c.mattering[d.place].place = d.place
	c.mattering[last] = nil
	c.mattering = c.mattering[:last]
	d.matters, d.known, d.marked, d.size = false, false, false, 0
	c.readable(d)
}
