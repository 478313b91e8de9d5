// Package plan is the pure core of the storage provisioner: it knows what is
// wanted and what has been done, and decides what must happen next.
//
// Facts go in (entities as the state has them, finished operations, provisioned
// machines, known block devices, what has come due), and out come batches of
// operations, things to publish, and questions to ask. A Core does no I/O,
// reads no clock and starts no goroutine; it belongs to one goroutine, which
// tells it the time by [Core.At], and after each fact calls [Core.Batches] and
// [Core.Take].
//
// Each entity (a volume, a filesystem, or an attachment of one) has one record
// and at most one operation at a time. From the record, [Core.decide] tells the
// next operation and what that waits for, if anything:
//
//	idle ──▶ waiting (for a fact) ──▶ queued ──▶ running ──▶ publishing ──▶ idle
//	                                    ▲            │ failed
//	                                    └─ scheduled ◀┘
//
// An operation ends when its result has been recorded in the state, not before.
package plan

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"
)

// Options say how a core behaves.
type Options struct {
	Retry Retry
	// MaxBatch caps how many operations go in one batch; 0: no cap.
	MaxBatch int
	// Host is the tag of the machine on whose volumes this worker manages
	// filesystems; empty for a worker that does not.
	Host string
	// Timetable is told what is to come to [Core.Due], and when.
	Timetable Timetable
}

// Timetable keeps values until they are due. Adding a key again replaces it.
type Timetable interface {
	Add(key, value any, due time.Time)
	Remove(key any)
}

// Core is the worker's knowledge and plans.
type Core struct {
	options  Options
	now      time.Time
	entities map[Key]*entity
	machines map[string]machine
	// devices tells of each volume whose block device matters what is known of
	// that.
	devices map[string]device
	// mounted has the attachment of the filesystem on a volume, from when it is
	// being made until it is unmade.
	mounted map[string]*entity
	// devicesChanged says that all of them are to be looked up.
	devicesChanged bool
	waiters        map[Key][]*entity
	queues         []*queue
	// queued counts what is in the queues.
	queued [kinds][ops]int
	// unread counts the failed attempts to read entities.
	unread map[Key]int
	out    Output
}

// New returns a core that knows nothing yet.
func New(options Options) *Core {
	return &Core{
		options:  options,
		entities: make(map[Key]*entity),
		machines: make(map[string]machine),
		devices:  make(map[string]device),
		mounted:  make(map[string]*entity),
		waiters:  make(map[Key][]*entity),
		unread:   make(map[Key]int),
	}
}

// At tells the core the time of the facts that follow.
func (c *Core) At(now time.Time) {
	c.now = now
}

// Fact is an entity as the state has it.
type Fact struct {
	Key Key
	// Err says that the entity could not be read. It is read again later, and
	// the other fields mean nothing.
	Err  error
	Life Life
	// Recorded says that the state has the entity's info: it is provisioned.
	Recorded bool
	// ID is the provider's id of the volume or filesystem, where it is known.
	ID     string
	Class  Class
	Source Source
	// Host is the tag of the machine that the entity is for, if any, and
	// Instance its instance id, where it came along with the entity.
	Host     string
	Instance string
	// Backing is the id of the volume beneath a filesystem, if any. Of an
	// attachment it is taken from the filesystem, unless BackingKnown says that
	// it came along with the attachment.
	Backing      string
	BackingKnown bool
	// Release says that removing means to release, not to destroy.
	Release bool
	// Size is how large a recorded volume or filesystem is, and Wanted how large it
	// is to be, in MiB; Wanted is zero where the state does not tell.
	Size, Wanted uint64
	// Args are what the provider needs for the next operation, without ID and
	// Instance, which are handed to it as they are known by then. An entity
	// that lacks what it takes to be created or attached has none, and is left
	// as it is.
	Args any
}

// keep completes a fact with what an earlier one said: how an entity is provided
// does not change, and is not read again for every decision.
func (f *Fact) keep(earlier Fact) {
	f.ID = cmp.Or(f.ID, earlier.ID)
	f.Host = cmp.Or(f.Host, earlier.Host)
	f.Backing = cmp.Or(f.Backing, earlier.Backing)
	if f.Source == (Source{}) {
		f.Source, f.Class = earlier.Source, earlier.Class
	}
}

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

// entity is all that the worker remembers of one entity.
type entity struct {
	fact Fact
	// observed is false for an entity that is known only from what refers to
	// it.
	observed bool
	// stale says that how to go on must be read first.
	stale bool
	// attached says that this worker has attached it since it started.
	attached bool
	// held says that what the entity stands on must stay: it is attached, or
	// may be, or is being made there.
	held bool
	// orphan says that the state has dropped the entity while it was being
	// made; what was made is undone.
	orphan bool
	// outdated says that the environment's configuration has changed since the
	// operation began.
	outdated bool
	// unmarked says that the block device beneath a filesystem had no UUID when
	// that was attached.
	unmarked bool
	// unresolved says that the operation may be going on somewhere: it is
	// repeated as it was until its end is known.
	unresolved bool
	// uncertain says that nothing is known of what the last attempt to make or
	// attach it did. It is tried anew, and looked into before the entity goes.
	uncertain bool
	// stalled says that the operation waits for a change: it has failed in a
	// way that repeating does not help, or is deferred.
	stalled bool
	// deferred says that the source has asked to be asked again at the next
	// change of the entity.
	deferred bool
	phase    phase
	op       Op
	// since is when the operation was first wanted, or began or ceased to wait
	// for something.
	since time.Time
	// beneath is the id of the volume that a held filesystem or attachment of
	// one stands on.
	beneath string
	// users counts what must go before the entity does: the held attachments
	// of a volume or filesystem, the mounted filesystems on an attached volume.
	users int
	// attempts counts the failures of the operation in a row; due is when it is
	// tried next, zero when it may go at once.
	attempts int
	due      time.Time
	// failure is the message of the last one.
	failure string
	// told is the status that a volume or filesystem has last been given, and remark
	// what its source had to say when it was attached.
	told   Status
	remark string
	// wait and place say where a waiting entity is registered; wait is zero for
	// any other.
	wait  Key
	place int
	// item is the operation as a provider was handed it, until it ends.
	item Item
	// result is kept until it is published.
	result *Result
	// refused tells of the failures to publish the result.
	refused refusal
}

// refusal is what has come of publishing a result that the state has not taken.
type refusal struct {
	// attempts have failed, message is that of the last, and due is when the result
	// is published next.
	attempts int
	message  string
	due      time.Time
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

type machine struct {
	instance string
	asked    bool
}

// device is what is known of a volume's block device.
type device struct {
	known bool
	// marked says that it has a UUID.
	marked bool
	// size is in MiB.
	size uint64
}

// Output is what the core wants done beside the batches.
type Output struct {
	Publish Publication
	// Machines are to be watched until they are provisioned.
	Machines []string
	// Devices are the volumes whose block devices are to be looked up.
	Devices []string
	// Forgotten are the volumes whose block devices do not matter any more.
	Forgotten []string
	// Unread are the entities to be read again.
	Unread []Key
}

// Publication is what is to be recorded in the state.
type Publication struct {
	Statuses []Status
	Records  []Record
	Removals []Key
}

// Empty reports whether there is nothing to publish.
func (p Publication) Empty() bool {
	return len(p.Statuses) == 0 && len(p.Records) == 0 && len(p.Removals) == 0
}

// Record is the info of an entity, as its provider gave it.
type Record struct {
	Key  Key
	Info any
}

// Take returns what has come together since the last call.
func (c *Core) Take() Output {
	out := c.out
	c.out = Output{}
	if c.devicesChanged {
		c.devicesChanged = false
		out.Devices = slices.Sorted(maps.Keys(c.devices))
	}
	return out
}

// Observe takes in an entity as the state has it.
func (c *Core) Observe(f Fact) {
	if f.Err != nil {
		c.unread[f.Key]++
		c.options.Timetable.Add(f.Key, f.Key, c.now.Add(c.options.Retry.delay(c.unread[f.Key])))
		return
	}
	delete(c.unread, f.Key)
	c.options.Timetable.Remove(f.Key)
	if f.Life == Gone {
		if e, ok := c.entities[f.Key]; ok {
			c.gone(e)
		}
		return
	}
	e := c.entity(f.Key)
	if e.orphan {
		return
	}
	f.keep(e.fact)
	// What may have been made for an entity that goes is looked into at once, though the
	// operation for that may be the one that has been given up.
	goes := e.fact.Life == Alive && f.Life != Alive
	if e.deferred || !e.underway() && (goes || !reflect.DeepEqual(e.fact.Args, f.Args)) {
		c.refresh(e)
	}
	if f.Instance != "" {
		c.Provisioned(f.Host, f.Instance)
	}
	e.fact = f
	e.observed = true
	e.stale = false
	c.settle(e)
	c.wake(f.Key)
}

// Refresh makes all that has stalled, or is about to, go again, as after a change
// of the environment's configuration, and returns the keys of what is not done
// and should be read anew.
func (c *Core) Refresh() []Key {
	var undone []Key
	for _, key := range c.keys() {
		e := c.entities[key]
		if e.op != None || e.fact.Class != Ours {
			undone = append(undone, key)
		}
		e.outdated = true
		if e.stalled {
			c.refresh(e)
			c.settle(e)
		}
	}
	return undone
}

// Resync makes all that has stalled go again, asks anew about what is waited for,
// and returns the keys of all that is known, in order, which should be read anew.
func (c *Core) Resync() []Key {
	c.Refresh()
	c.DevicesChanged()
	for _, host := range slices.Sorted(maps.Keys(c.machines)) {
		switch {
		case c.machines[host].instance != "":
		case len(c.waiters[MachineKey(host)]) > 0:
			c.out.Machines = append(c.out.Machines, host)
		default:
			delete(c.machines, host) // the next to wait for it asks
		}
	}
	return slices.DeleteFunc(c.keys(), func(key Key) bool { return !c.entities[key].observed })
}

// keys returns the keys of all entities, in order.
func (c *Core) keys() []Key {
	return slices.SortedFunc(maps.Keys(c.entities), compareKeys)
}

// Provisioned takes in that a machine has an instance.
func (c *Core) Provisioned(host, instance string) {
	c.machines[host] = machine{instance: instance, asked: true}
	c.wake(MachineKey(host))
}

// DevicesChanged takes in that the machine's block devices have changed: those
// that matter are to be looked up again.
func (c *Core) DevicesChanged() {
	c.devicesChanged = true
}

// DeviceMatters reports whether anything waits for a volume's block device, or
// has used it.
func (c *Core) DeviceMatters(volume string) bool {
	_, ok := c.devices[volume]
	return ok
}

// DeviceKnown takes in whether the block device of a volume, which must be one
// that matters, is known, whether it is marked with a UUID, and its size in MiB.
// When it comes to be marked while the filesystem on it is attached, that is
// attached again.
func (c *Core) DeviceKnown(volume string, known, marked bool, size uint64) {
	c.devices[volume] = device{known, marked, size}
	if !known {
		return
	}
	c.wake(DeviceKey(volume))
	if e := c.mounted[volume]; e != nil && e.attached && e.unmarked && marked {
		// What it takes has been forgotten with the end of the last operation.
		e.attached = false
		c.out.Unread = append(c.out.Unread, e.fact.Key)
	}
}

// Due takes in what the timetable has given out.
func (c *Core) Due(values []any) {
	for _, value := range values {
		switch v := value.(type) {
		case Key:
			c.out.Unread = append(c.out.Unread, v)
		case *entity:
			if v.phase == publishing {
				v.refused.due = time.Time{}
				c.publish(v)
				continue
			}
			v.phase = idle
			v.due = time.Time{}
			c.settle(v)
		}
	}
}

// entity returns the record of an entity, making it where there is none.
func (c *Core) entity(key Key) *entity {
	e, ok := c.entities[key]
	if !ok {
		e = &entity{fact: Fact{Key: key}}
		c.entities[key] = e
	}
	return e
}

// settle brings an entity to where its facts want it: waiting, scheduled,
// queued, or at rest. It is called whenever something about it has changed.
func (c *Core) settle(e *entity) {
	if e.busy() {
		return
	}
	defer c.tell(e)
	op, need := c.decide(e)
	if op != e.op {
		c.refresh(e)
		e.op = op
		e.since = c.now
		c.wake(e.fact.Key)
	}
	switch {
	case op == None:
		e.fact.Args = nil
	case need != Key{}:
		c.await(e, need)
	case e.stalled || e.phase == queued:
	case !e.due.IsZero():
		c.leave(e)
		e.phase = scheduled
		c.options.Timetable.Add(e, e, e.due)
	case op == Remove:
		c.publish(e)
	default:
		c.leave(e)
		c.enqueue(e)
	}
}

// refresh forgets the failures of an entity's operation, which so may go at
// once.
func (c *Core) refresh(e *entity) {
	c.leave(e)
	e.attempts = 0
	e.due = time.Time{}
	e.failure = ""
	e.stalled = false
	e.deferred = false
}

// leave takes an entity that is not busy to idle. A queue drops it when its
// turn comes.
func (c *Core) leave(e *entity) {
	switch e.phase {
	case waiting:
		c.unawait(e)
	case scheduled:
		c.options.Timetable.Remove(e)
	case queued:
		c.queued[e.fact.Key.Kind][e.op]--
	}
	e.phase = idle
}

// gone takes in that the state has no such entity any more.
func (c *Core) gone(e *entity) {
	switch {
	case e.orphan:
	case e.underway():
		e.fact.Life = Gone
	default:
		c.forget(e)
	}
}

// adrift sees to what was made for an entity that the state no longer has: a
// volume or filesystem is destroyed, an attachment detached. The entity may be
// there anew when that is done, and is read then.
func (c *Core) adrift(e *entity) {
	e.orphan = true
	e.fact.Recorded = true
	e.fact.Release = false
	e.fact.Life = Dead
	c.leave(e)
	c.settle(e)
}

// forget drops an entity and what was remembered of it.
func (c *Core) forget(e *entity) {
	key, backing := e.fact.Key, e.fact.Backing
	c.leave(e)
	c.release(e)
	*e = entity{fact: Fact{Key: key}, users: e.users}
	if e.users == 0 {
		delete(c.entities, key)
	}
	c.wake(key)
	if filesystem := c.entities[key.Storage()]; filesystem != nil && filesystem.observed {
		return
	}
	// Whoever still waits for the device of the filesystem that is gone asks anew.
	if _, ok := c.devices[backing]; ok {
		delete(c.devices, backing)
		c.out.Forgotten = append(c.out.Forgotten, backing)
		c.wake(DeviceKey(backing))
	}
}

// hold notes that what the entity stands on must stay: it is being attached, or
// made there.
func (c *Core) hold(e *entity) {
	if e.held {
		return
	}
	e.beneath = c.backing(e)
	e.held = true
	if e.fact.Key.Kind == FilesystemAttachment && e.beneath != "" {
		c.mounted[e.beneath] = e
	}
	for _, key := range c.footing(e) {
		c.entity(key).users++
	}
}

// release notes that what the entity stood on may go.
func (c *Core) release(e *entity) {
	if !e.held {
		return
	}
	e.held = false
	if c.mounted[e.beneath] == e {
		delete(c.mounted, e.beneath)
	}
	for _, key := range c.footing(e) {
		under := c.entity(key)
		under.users--
		if under.users == 0 && !under.observed && !under.held {
			delete(c.entities, key)
		}
		c.wake(key)
	}
}

// footing returns what a held entity stands on: an attachment on its volume or
// filesystem, a plan on its attachment, and a filesystem on the attachment of the
// volume beneath it.
func (c *Core) footing(e *entity) []Key {
	var keys []Key
	if e.fact.Key.Kind.Attachment() {
		keys = append(keys, e.fact.Key.Storage())
	}
	if e.fact.Key.Kind == Plan {
		keys = append(keys, planned(e.fact.Key))
	}
	if e.beneath != "" {
		keys = append(keys, c.under(e.beneath))
	}
	return keys
}

// under returns the key of the attachment of a volume to the worker's machine.
func (c *Core) under(volume string) Key {
	return Key{Kind: VolumeAttachment, ID: volume, Host: c.options.Host}
}

// planned returns the key of the attachment that a plan is for.
func planned(plan Key) Key {
	plan.Kind = VolumeAttachment
	return plan
}

// deviceChanged notes that what block device a volume is may have changed: it is
// not known until it has been looked up again.
func (c *Core) deviceChanged(volume string) {
	if c.DeviceMatters(volume) {
		c.devices[volume] = device{}
		c.out.Devices = append(c.out.Devices, volume)
	}
}
