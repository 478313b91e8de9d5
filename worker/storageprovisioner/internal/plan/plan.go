// Package plan is the pure core of the storage provisioner: it knows what is
// wanted and what has been done, and decides what must happen next.
//
// Facts go in (entities as the state has them, finished operations, provisioned
// machines, known block devices, what has come due), and out come batches of
// operations, things to publish, and questions to ask. A Core does no I/O,
// reads no clock and starts no goroutine; it belongs to one goroutine, which
// tells it the time by [Core.At], and after each fact calls [Core.Batches],
// [Core.Take], [Core.Unread] and [Core.Devices].
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
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/byid"
)

// Options say how a core behaves.
type Options struct {
	Retry Retry
	// MaxBatch caps how many operations go in one batch; 0: no cap.
	MaxBatch int
	// Host is the tag of the machine on whose volumes this worker manages
	// filesystems; empty for a worker that does not.
	Host string
	// Attempts says that the state remembers what is about to be made: batches of
	// that are noted there, and go ahead with [Core.Noted].
	Attempts bool
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
	options Options
	now     time.Time

	// storage has the volumes and filesystems by the ids of their tags; the
	// attachments hang on those.
	storage [kinds]byid.Map[entity]
	// all are the entities in no particular order, but always the same.
	all     []*entity
	hosts   map[string]*host
	devices byid.Map[device]
	// watched are the devices that something waits for or has used, and lookups those of
	// them that are to be looked up; devicesChanged says that all are.
	watched, lookups []*device
	devicesChanged   bool

	queues  []*queue
	sources map[Source]*queue
	// issuers are all there have been; issuersBySource has them by their sources, without
	// the pool.
	issuers         []*issuer
	issuersBySource map[Source]*issuer
	// queued counts what is in the queues.
	queued [kinds][ops]int

	// unread are the entities to be read, and firstReads is how far the first reading is
	// of all that there was at the start.
	unread     []*entity
	firstReads [kinds]firstRead
	// idsCollected says that there is an issuer whose ids have been collected.
	idsCollected bool
	// unreadable are the entities that the last attempt to read has failed for.
	unreadable map[Key]unreadable
	// ownership has the volumes and filesystems whose sources have been asked whose they
	// are, and may be used.
	ownership map[*entity]Ownership
	out       Output
}

// New returns a core that knows nothing yet.
func New(options Options) *Core {
	return &Core{
		options:         options,
		hosts:           make(map[string]*host),
		sources:         make(map[Source]*queue),
		issuersBySource: make(map[Source]*issuer),
		unreadable:      make(map[Key]unreadable),
		ownership:       make(map[*entity]Ownership),
	}
}

// At tells the core the time of the facts that follow.
func (c *Core) At(now time.Time) {
	c.now = now
}

// Fact is an entity as the state has it.
type Fact struct {
	Subject
	// Err says that the entity could not be read. It is read again later, and
	// the other fields mean nothing.
	Err  error
	Life Life
	// Recorded says that the state has the entity's info: it is provisioned. Attempted
	// says of what is not recorded that it may have been made all the same.
	Recorded, Attempted bool
	// ID is the provider's id of the volume or filesystem, where it is known.
	ID     string
	Class  Class
	Source Source
	// Host is the tag of the machine that the entity is for, if any, and
	// Instance its instance id, where it came along with the entity.
	Host     string
	Instance string
	// Backing is the id of the volume that backs a filesystem, if any. For an
	// attachment it is taken from the filesystem, unless BackingKnown says that
	// it came along with the attachment.
	Backing      string
	BackingKnown bool
	// Release says that removing means to release, not to destroy.
	Release bool
	// Owner is whose the volume or filesystem is, or that which the attachment attaches,
	// where the source is to be asked that before anything is done to it; else nil.
	Owner *storage.Owner
	// Size is how large a recorded volume or filesystem is, and Wanted how large it
	// is to be, in MiB; Wanted is zero where the state does not tell.
	Size, Wanted uint64
	// Args are what the provider needs for the next operation, without ID and
	// Instance, which are handed to it as they are known by then. An entity
	// that lacks what it takes to be created or attached has none, and is left
	// as it is.
	Args any
}

// Output is what the core wants done beside the batches and what is to be read or
// looked up.
type Output struct {
	Publish Publication
	// Machines are to be watched until they are provisioned.
	Machines []string
	// Forgotten are the volumes whose block devices are not watched any more.
	Forgotten []string
}

// Publication is what is to be recorded in the state.
type Publication struct {
	Statuses []Status
	Records  []Record
	Removals []Subject
	// Unmade are the entities whose attempt has made nothing. Ended are the filesystems on
	// volumes whose attempt has ended and may have left something.
	Unmade, Ended []Subject
}

// Empty reports whether there is nothing to publish.
func (p Publication) Empty() bool {
	return len(p.Statuses) == 0 && len(p.Records) == 0 && len(p.Removals) == 0 && len(p.Unmade) == 0 && len(p.Ended) == 0
}

// Subject names an entity.
type Subject struct {
	Key Key
	// Tag is that of the volume or filesystem, or of what is attached.
	Tag names.Tag
	// Unattributed says that which source provides it is to be read, though nothing is
	// to be done about it.
	Unattributed bool
	// Settled says that this worker has attached the attachment: while it stays recorded
	// and alive, nothing but that is to be read of it.
	Settled bool
	// entity spares the core to look it up; nil in what the core has not given out.
	entity *entity
}

// subject returns what names the entity.
func (e *entity) subject() Subject {
	return Subject{Key: e.key(), Tag: e.tag, entity: e}
}

// Record is the info of an entity, as its provider gave it.
type Record struct {
	Subject
	Info any
}

// Take returns what has come together since the last call.
func (c *Core) Take() Output {
	out := c.out
	c.out = Output{}
	return out
}

// Knows reports whether the core has a record of an entity.
func (c *Core) Knows(key Key) bool {
	return c.find(key) != nil
}

// KnowsHost reports whether the core has a record of a host.
func (c *Core) KnowsHost(tag string) bool {
	return c.hosts[tag] != nil
}

// HasUnread reports whether there is anything to read or to look up.
func (c *Core) HasUnread() bool {
	return len(c.unread) > 0 || len(c.lookups) > 0 || c.devicesChanged && len(c.watched) > 0
}

// Changed notes that an entity is to be read.
func (c *Core) Changed(key Key) {
	c.requestRead(c.entity(key))
}

func (c *Core) requestRead(e *entity) {
	if e.pendingRead == readNothing {
		e.pendingRead = readFacts
		c.unread = append(c.unread, e)
	}
}

// Unread returns what is to be read, at most so many.
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

// Devices returns the volumes whose block devices are to be looked up, at most so
// many.
func (c *Core) Devices(limit int) []Subject {
	if c.devicesChanged && len(c.lookups) == 0 {
		c.devicesChanged = false
		for _, d := range c.watched {
			c.requestLookup(d)
		}
	}
	var volumes []Subject
	for _, d := range takeFirst(&c.lookups, min(limit, len(c.lookups))) {
		d.lookupDue = false
		if d.watched {
			volumes = append(volumes, Subject{Key: DeviceKey(d.volume), Tag: d.tag})
		}
	}
	return volumes
}

// requestLookup has a device looked up.
func (c *Core) requestLookup(d *device) {
	if !d.lookupDue {
		d.lookupDue = true
		c.lookups = append(c.lookups, d)
	}
}

// takeFirst takes the first n out of a list.
func takeFirst[T any](list *[]T, n int) []T {
	first, rest := (*list)[:n], (*list)[n:]
	if len(rest) == 0 {
		rest = nil
	}
	*list = rest
	return first
}

// Observe takes in an entity as the state has it.
func (c *Core) Observe(f Fact) {
	c.countFirstRead(f.Key.Kind)
	if f.Err != nil {
		c.readFailed(f.Key, f.Err)
		return
	}
	if _, ok := c.unreadable[f.Key]; ok {
		delete(c.unreadable, f.Key)
		c.options.Timetable.Remove(f.Key)
	}
	e := c.findSubject(f.Subject)
	if f.Key.Kind == VolumeAttachment && f.Life != Alive && (e == nil || !e.observed || e.life == Alive) {
		c.noteUnwantedAttachment(f.Key.Storage())
	}
	if f.Life == Gone {
		if e != nil {
			c.observeGone(e)
		}
		return
	}
	if e == nil {
		e = c.entity(f.Key)
	}
	if e.orphan {
		return
	}
	// What may have been made for an entity that is to be removed is looked for at once,
	// even if the operation for that is the one that has been given up.
	goes := e.life == Alive && f.Life != Alive
	if e.stalled == deferred || !e.underway() && e.hasFailed() && (goes || e.differs(f)) {
		c.refresh(e)
	}
	foundRecorded := f.Recorded && f.ID != e.id && !e.kind.Attachment()
	c.learn(e, f)
	if f.Instance != "" {
		c.Provisioned(f.Host, f.Instance)
	}
	c.settle(e)
	c.wake(e)
	if foundRecorded {
		c.rejectDuplicates(e)
	}
	if e.kind == FilesystemAttachment {
		c.wake(e.storage) // which is made only where it is wanted
	}
}

// noteUnwantedAttachment notes that an attachment of a volume is no longer wanted. The volume
// is read before it is created: by what was read before, its creation might attach it.
func (c *Core) noteUnwantedAttachment(volume Key) {
	v := c.find(volume)
	if v != nil && v.observed && !v.recorded && v.life == Alive {
		c.requireRead(v)
		c.settle(v)
	}
}

// unreadable is what has come of reading an entity that cannot be read.
type unreadable struct {
	// refusal is the state's, and since when the first of those was that came in a row.
	refusal
	since time.Time
}

// readFailed takes in that an entity cannot be read. The entity is read again later; until
// then the core keeps what it knew of the entity.
func (c *Core) readFailed(key Key, err error) {
	u, ok := c.unreadable[key]
	if !ok {
		u.since = c.now
	}
	u.attempts++
	u.message = err.Error()
	u.due = c.now.Add(c.options.Retry.Delay(u.attempts))
	c.unreadable[key] = u
	c.options.Timetable.Add(key, key, u.due)
}

// learn has an entity be as the state has it. How it is provided does not change, and is
// not read again for every decision: what the fact lacks stays as it was.
func (c *Core) learn(e *entity, f Fact) {
	e.observed = true
	e.stale = false
	e.life = f.Life
	e.recorded = f.Recorded
	if f.Attempted && !f.Recorded && !e.attemptEnded && !e.underway() {
		e.leftover = unknownLeftover
		e.ensureWork()
	}
	e.release = f.Release
	e.size, e.wanted = f.Size, f.Wanted
	e.backingKnown = f.BackingKnown
	if f.ID != "" {
		e.id = f.ID
	}
	if f.Host != "" {
		e.onMachine = true
		if !e.kind.Attachment() {
			c.setHost(e, f.Host)
		}
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

// differs reports whether the entity's next operation would be another by a fact than the
// one that has failed.
func (e *entity) differs(f Fact) bool {
	return !reflect.DeepEqual(e.args(), f.Args) || !reflect.DeepEqual(e.work.owner, f.Owner)
}

// Refresh has what has failed tried again at once, as after a change of the environment's
// configuration, and what fails now of what has begun; and has read again what is not done.
// What is in progress goes on as it does.
func (c *Core) Refresh() {
	for _, e := range slices.Clone(c.all) {
		if e.op != None || e.class != Ours {
			c.requestRead(e)
		}
		e.outdated = true
		if !e.unresolved {
			c.retry(e)
		}
	}
	for _, d := range c.watched {
		if d.failures > 0 {
			c.requestLookup(d)
		}
	}
}

// Retry has what has failed of a volume or filesystem, and of its attachments and plans,
// tried again at once, as if it had not been tried before. What is attached is looked at, and
// attached again if it is not as it was attached.
func (c *Core) Retry(key Key) {
	s := c.find(key)
	if s == nil {
		return
	}
	c.retry(s)
	for a := s.attachments.first; a != nil; a = a.next {
		switch {
		case a.flags.has(checkFailed):
			c.reattach(a)
		case a.flags.has(attachedHere) && a.kind != Plan:
			a.flags.set(checkDue|repairRequested, true)
			c.settle(a)
		}
		c.retry(a)
	}
}

// reattach has something attached again that is not as it was attached.
func (c *Core) reattach(a *entity) {
	a.flags.set(checkFailed|attachedHere|repairRequested, false)
	c.requestRead(a) // clearWork has discarded the arguments
}

// CheckMounts has all filesystems looked at that this worker has attached: they may have been
// unmounted, or covered, by others.
func (c *Core) CheckMounts() { c.check(FilesystemAttachment) }

// check has all looked at that this worker has attached, of some kinds of attachment.
func (c *Core) check(kinds ...Kind) {
	for _, e := range slices.Clone(c.all) {
		if e.flags.has(attachedHere) && slices.Contains(kinds, e.kind) {
			e.flags.set(checkDue, true)
			c.settle(e)
		}
	}
}

// FailedOn returns the volume on which a filesystem is to be made, if an attempt has failed, and
// the next is to come later, or was given up.
func (c *Core) FailedOn(filesystem Key) (volume string, ok bool) {
	e := c.find(filesystem)
	if e == nil || e.op != Create || e.backing == nil || e.life != Alive || e.phase != scheduled && e.stalled == notStalled {
		return "", false
	}
	return e.backing.volume, true
}

func (c *Core) retry(e *entity) {
	if len(c.unreadable) > 0 {
		if _, ok := c.unreadable[e.key()]; ok {
			c.requestRead(e)
		}
	}
	switch {
	case e.phase == scheduled, e.stalled != notStalled:
		c.refresh(e)
		c.settle(e)
	case e.phase == publishing && e.work.refused != nil && !e.work.refused.due.IsZero():
		c.options.Timetable.Remove(e)
		c.Due([]any{e})
	}
}

// Resync grants what has been given up one more attempt and asks again about what is
// deferred and what is waited for, and has read again all that is known.
func (c *Core) Resync() {
	for _, e := range slices.Clone(c.all) {
		switch e.stalled {
		case notStalled:
			continue
		case givenUp:
			e.stalled, e.work.granted = notStalled, true
		case deferred:
			c.refresh(e)
		}
		c.settle(e)
	}
	c.check(VolumeAttachment, FilesystemAttachment)
	c.DevicesChanged()
	for _, tag := range slices.Sorted(maps.Keys(c.hosts)) {
		switch h := c.hosts[tag]; {
		case !h.watched || h.instance != "":
		case h.waiters.any():
			c.out.Machines = append(c.out.Machines, tag)
		default:
			h.watched = false // the next to wait for it has it watched
			c.dropUnusedHost(h)
		}
	}
	for _, e := range c.all {
		if e.observed {
			c.requestRead(e)
		}
	}
}

// Provisioned takes in that a machine has an instance.
func (c *Core) Provisioned(tag, instance string) {
	h, ok := c.hosts[tag]
	if !ok {
		return
	}
	h.instance = instance
	c.wake(h)
	c.dropUnusedHost(h)
}

// DevicesChanged takes in that the machine's block devices have changed: those
// that are watched are to be looked up again.
func (c *Core) DevicesChanged() {
	c.devicesChanged = true
}

// DeviceWatched reports whether a volume's block device is watched: something waits
// for it, or has used it.
func (c *Core) DeviceWatched(volume string) bool {
	d := c.devices.Get(volume)
	return d != nil && d.watched
}

// DeviceKnown takes in whether the block device of a volume, which must be one
// that is watched, is known, whether it has a UUID, and its size in MiB. When it
// gets a UUID while the filesystem on it is attached, that is attached again.
func (c *Core) DeviceKnown(volume string, known, marked bool, size uint64) {
	d := c.devices.Get(volume)
	c.clearLookupFailures(d)
	d.known, d.hasUUID, d.size = known, marked, size
	if !known {
		return
	}
	c.wake(d)
	if e := d.mounted; e != nil && e.flags.has(attachedHere) && e.attachedWithoutUUID && marked {
		// clearWork has discarded the arguments.
		e.flags.set(attachedHere, false)
		c.requestRead(e)
	}
}

// DeviceUnreadable takes in that the block device of a volume, which must be one that
// is watched, could not be looked up. That is tried again later.
func (c *Core) DeviceUnreadable(volume string) {
	d := c.devices.Get(volume)
	d.known, d.hasUUID, d.size = false, false, 0
	d.failures++
	c.options.Timetable.Add(d, d, c.now.Add(c.options.Retry.Delay(d.failures)))
}

// clearLookupFailures forgets that lookups of a device have failed.
func (c *Core) clearLookupFailures(d *device) {
	if d.failures > 0 {
		d.failures = 0
		c.options.Timetable.Remove(d)
	}
}

// Due takes in what the timetable has given out.
func (c *Core) Due(values []any) {
	for _, value := range values {
		switch v := value.(type) {
		case Key:
			c.Changed(v)
		case *device:
			c.requestLookup(v)
		case *entity:
			if v.phase == publishing {
				v.work.refused.due = time.Time{}
				c.publish(v)
				continue
			}
			v.phase = idle
			v.work.due = time.Time{}
			c.settle(v)
		}
	}
}

// settle brings an entity to where its facts want it: waiting, scheduled,
// queued, or at rest. It is called whenever something about it has changed.
func (c *Core) settle(e *entity) {
	if e.busy() {
		return
	}
	op, need := c.decide(e)
	if op != e.op {
		c.refresh(e)
		e.op = op
		if op != None {
			e.ensureWork().since = c.now
		}
		c.wake(e)
	}
	switch {
	case op == None:
		c.clearWork(e)
	case need != nil:
		c.await(e, need)
	case e.stalled != notStalled || e.phase == queued:
	case !e.work.due.IsZero():
		c.makeIdle(e)
		e.phase = scheduled
		c.options.Timetable.Add(e, e, e.work.due)
	case op == Remove:
		c.publish(e)
	default:
		c.makeIdle(e)
		c.enqueue(e)
	}
	c.updateStatus(e)
}

// clearWork discards the work of an entity with nothing to do, except what is needed to
// repeat an attempt that may have left something.
func (c *Core) clearWork(e *entity) {
	switch {
	case e.mayHaveLeftover():
		e.work.args, e.work.owner = nil, nil
	default:
		e.work = nil
	}
}

// hasFailed reports whether the entity's operation has failed.
func (e *entity) hasFailed() bool {
	return e.work != nil && e.work.attempts+e.work.transient > 0
}

// refresh forgets the failures of an entity's operation, which so may go at
// once.
func (c *Core) refresh(e *entity) {
	c.makeIdle(e)
	e.stalled = notStalled
	if w := e.work; w != nil {
		w.attempts, w.transient = 0, 0
		w.due = time.Time{}
		w.failure = ""
		w.granted = false
	}
}

// makeIdle makes an entity idle that is not busy. A queue skips it when its
// turn comes.
func (c *Core) makeIdle(e *entity) {
	switch e.phase {
	case waiting:
		c.stopWaiting(e)
	case scheduled:
		c.options.Timetable.Remove(e)
	case queued:
		c.queued[e.kind][e.op]--
	}
	e.phase = idle
}

// observeGone takes in that the state does not have an entity any more.
func (c *Core) observeGone(e *entity) {
	switch {
	case e.orphan:
	case e.underway():
		e.life = Gone
	default:
		c.forget(e)
	}
}

// removeOrphan has destroyed or detached what was made for an entity that the state no
// longer has. The state may have the entity again when that is done, so the entity is
// read then.
func (c *Core) removeOrphan(e *entity) {
	e.orphan, e.stale = true, false
	e.recorded = true
	e.release = false
	e.life = Dead
	c.makeIdle(e)
	c.settle(e)
}

// forget clears the record of an entity, and drops it unless others refer to it.
func (c *Core) forget(e *entity) {
	d := e.backing
	c.makeIdle(e)
	c.unhold(e)
	delete(c.ownership, e)
	e.clear()
	c.wake(e)
	if s := e.storage; !s.observed && d != nil && d.watched {
		// Entities that still wait for the device of the filesystem that is gone ask again.
		c.unwatchDevice(d)
		c.out.Forgotten = append(c.out.Forgotten, d.volume)
		c.wake(d)
	}
	c.setDevice(&e.backing, nil)
	c.dropUnused(e)
}

// clear makes the record of an entity what it was before the entity was observed.
func (e *entity) clear() {
	*e = entity{
		kind: e.kind, name: e.name, tag: e.tag, allIndex: e.allIndex, host: e.host, backing: e.backing,
		storage: e.storage, attachments: e.attachments, next: e.next, previous: e.previous,
		waiters: e.waiters, users: e.users, calls: e.calls, pendingRead: e.pendingRead,
	}
}

// hold notes that the entity's dependencies must stay: it is being attached, or
// made there.
func (c *Core) hold(e *entity) {
	if e.held {
		return
	}
	c.setDevice(&e.heldBacking, c.backing(e))
	e.held = true
	if e.kind == FilesystemAttachment && e.heldBacking != nil {
		e.heldBacking.mounted = e
	}
	for _, dep := range c.dependencies(e) {
		if dep != nil {
			dep.users++
		}
	}
}

// unhold notes that the entity's dependencies may go.
func (c *Core) unhold(e *entity) {
	if !e.held {
		return
	}
	e.held = false
	if d := e.heldBacking; d != nil && d.mounted == e {
		d.mounted = nil
	}
	deps := c.dependencies(e)
	c.setDevice(&e.heldBacking, nil)
	for _, dep := range deps {
		if dep != nil {
			dep.users--
			c.wake(dep)
			c.dropUnused(dep)
		}
	}
}

// dependencies returns what a held entity depends on: an attachment on its volume or
// filesystem, a plan also on the attachment of its volume, and a filesystem and its
// attachment on the attachment of the backing volume. The other elements are nil.
func (c *Core) dependencies(e *entity) (on [3]*entity) {
	if e.kind.Attachment() {
		on[0] = e.storage
	}
	if e.kind == Plan {
		on[1] = c.entity(Key{Kind: VolumeAttachment, ID: e.name, Host: e.host.tag})
	}
	if e.heldBacking != nil {
		on[2] = c.entity(c.backingAttachment(e.heldBacking))
	}
	return on
}

// backingAttachment returns the key of the attachment of a backing volume to the worker's
// machine.
func (c *Core) backingAttachment(d *device) Key {
	return Key{Kind: VolumeAttachment, ID: d.volume, Host: c.options.Host}
}

// plannedAttachment returns the volume attachment that a plan is for, or nil.
func plannedAttachment(plan *entity) *entity {
	return plan.storage.attachments.find(VolumeAttachment, plan.host.tag)
}

// deviceChanged notes that what block device a volume is may have changed: it is
// not known until it has been looked up again.
func (c *Core) deviceChanged(volume string) {
	if d := c.devices.Get(volume); d != nil && d.watched {
		d.known, d.hasUUID, d.size = false, false, 0
		c.requestLookup(d)
	}
}
