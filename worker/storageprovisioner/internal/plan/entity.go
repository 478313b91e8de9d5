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
	// running has been handed to a provider.
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
	// entity's facts. heldBacking is the device that backs a filesystem or its
	// attachment while that is held.
	backing, heldBacking *device
	// size is how large a recorded volume or filesystem is, and wanted how large it
	// is to be, in MiB.
	size, wanted uint64

	// statusText is nil unless the last status had a text.
	statusText *statusText
	// work is nil unless there is something to do, or to remember about what was
	// tried.
	work    *work
	waiters waiters

	// allIndex is the entity's index in the core's list of all.
	allIndex uint32
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
	// lastStatus is the status that was last reported of a volume or filesystem.
	lastStatus lastStatus

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
	// release says that removing means to release, not to destroy.
	release bool
	// pendingRead says what of the entity is to be read, and stale that this must happen
	// before anything else is done about it.
	pendingRead pendingRead
	stale       bool
	// flags say whether this worker has attached it, and what has become of that.
	flags attachFlags
	// held says that the entity's dependencies must stay: it is attached, or
	// may be, or is being made there.
	held bool
	// orphan says that the state has removed the entity while it was being made;
	// what was made is taken back.
	orphan bool
	// outdated says that the environment's configuration has changed since the
	// operation began.
	outdated bool
	// attachedWithoutUUID says that the block device that backs a filesystem had no
	// UUID when the filesystem was attached.
	attachedWithoutUUID bool
	// unresolved says that the operation may be going on somewhere: it is
	// repeated as it was until its end is known.
	unresolved bool
	// leftover says what attempts to make or attach the entity may have left. The attempt
	// is repeated, and the leftover is looked for before the entity is removed.
	leftover leftover
	// attemptEnded says that an attempt to make it has ended since it was last to be read:
	// what a fact says about attempts is older.
	attemptEnded bool
	// stalled says whether, and why, the operation waits for a change.
	stalled stall
}

// leftover is what failed attempts may have left of an entity.
type leftover uint8

const (
	noLeftover leftover = iota
	// maybeLeftover: the attempts have ended, and did not say that they made nothing.
	maybeLeftover
	// unknownLeftover: it is not known what an attempt did, nor whether it has ended.
	unknownLeftover
)

// mayHaveLeftover reports whether attempts to make or attach the entity may have left anything.
func (e *entity) mayHaveLeftover() bool { return e.leftover != noLeftover }

// pendingRead is what of an entity is to be read.
type pendingRead uint8

const (
	readNothing pendingRead = iota
	// readFacts: what decides about its next operation.
	readFacts
	// readSource: the same, and in any case the source that provides it.
	readSource
)

// attachFlags say how something is attached, in one byte.
type attachFlags uint8

const (
	// attachedHere: this worker has attached it since it started.
	attachedHere attachFlags = 1 << iota
	// checkDue: whether it still is as it was attached is to be checked.
	checkDue
	// checkFailed: it was not, by the last check.
	checkFailed
	// repairRequested: a user has asked for the check, and it is attached again if the
	// check fails.
	repairRequested
)

func (f attachFlags) has(flags attachFlags) bool { return f&flags != 0 }

func (f *attachFlags) set(flags attachFlags, on bool) {
	*f &^= flags
	if on {
		*f |= flags
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

// lastStatus says which status was last reported of a volume or filesystem.
type lastStatus uint8

const (
	noStatus lastStatus = iota
	statusAttached
	statusDetached
	// statusOther is any other: the volume or filesystem is not at rest.
	statusOther
)

// atRestStatuses are the statuses of a volume or filesystem at rest.
var atRestStatuses = [...]status.Status{statusAttached: status.Attached, statusDetached: status.Detached}

// statusText is what was last reported of a volume or filesystem beside its status: the
// message of an error or of a status at rest, and the remark that its source made when it
// was attached.
type statusText struct {
	message, remark string
}

// host is where storage is attached: a machine, or a unit.
type host struct {
	waiters waiters
	tag     string
	// instance is the id of a machine's instance, once it is known.
	instance string
	// watched says that the core has asked for the machine to be watched.
	watched bool
	// users counts the entities that refer to it.
	users int
}

// device is the block device of a volume that backs filesystems.
type device struct {
	waiters waiters
	volume  string
	tag     names.Tag
	// watched says that something waits for the device, or has used it; only then
	// is anything known of it. watchedIndex is its index in the core's list of those.
	watched      bool
	watchedIndex int
	// lookupDue says that the device is to be looked up, and failures how often that has
	// failed in a row.
	lookupDue bool
	failures  int

	known bool
	// hasUUID says that it has a filesystem UUID.
	hasUUID bool
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

// ensureWork returns the entity's work, making it if it does not exist.
func (e *entity) ensureWork() *work {
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

// findSubject returns the record of a subject's entity, or nil.
func (c *Core) findSubject(s Subject) *entity {
	if s.entity != nil && c.has(s.entity) {
		return s.entity
	}
	return c.find(s.Key)
}

// has reports whether a record is still one of the core's.
func (c *Core) has(e *entity) bool {
	return int(e.allIndex) < len(c.all) && c.all[e.allIndex] == e
}

// entity returns the record of an entity, making it if it does not exist.
func (c *Core) entity(key Key) *entity {
	if e := c.find(key); e != nil {
		return e
	}
	e := &entity{kind: key.Kind, name: key.ID, allIndex: uint32(len(c.all))}
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

// dropUnused deletes the record of an entity, unless it holds anything or another record
// refers to it.
//
// The verbs for what the state no longer has: removeOrphan has what was made destroyed or
// detached by its provider, forget makes the record that of an entity never observed, and
// dropUnused deletes the record itself. No other function removes records.
func (c *Core) dropUnused(e *entity) {
	if e.observed || e.pendingRead != readNothing || e.held || e.users > 0 || e.work != nil || e.attachments.first != nil {
		return
	}
	if !c.has(e) {
		return // deleted already
	}
	last := len(c.all) - 1
	c.all[e.allIndex] = c.all[last]
	c.all[e.allIndex].allIndex = e.allIndex
	c.all[last] = nil
	c.all = c.all[:last]
	if s := e.storage; s != e {
		s.attachments.remove(e)
		c.dropUnused(s)
	} else {
		c.storage[e.kind].Delete(e.name)
	}
	c.setHost(e, "")
	if len(c.all) == 0 {
		c.all = nil // its capacity may be for millions
	}
}

// setHost sets the host that an entity refers to; empty for none. One that nothing
// refers to any more is dropped, unless it is being watched.
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
		c.dropUnusedHost(former)
	}
}

func (c *Core) dropUnusedHost(h *host) {
	if h.users == 0 && (h.instance != "" || !h.watched) {
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

// setDevice sets a reference to a device, which is dropped with the last one.
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
		c.clearLookupFailures(former)
		c.devices.Delete(former.volume)
	}
}

// watchDevice adds a device to those that are watched.
func (c *Core) watchDevice(d *device) {
	d.watched = true
	d.watchedIndex = len(c.watched)
	c.watched = append(c.watched, d)
}

// unwatchDevice removes a device from those that are watched.
func (c *Core) unwatchDevice(d *device) {
	last := len(c.watched) - 1
	c.watched[d.watchedIndex] = c.watched[last]
	c.watched[d.watchedIndex].watchedIndex = d.watchedIndex
	c.watched[last] = nil
	c.watched = c.watched[:last]
	d.watched, d.known, d.hasUUID, d.size = false, false, false, 0
	c.clearLookupFailures(d)
}
