// Package plan is the pure core of the storage provisioner: it knows what is wanted and what
// has been done, and decides what must happen next.
//
// Facts go in (entities as the state has them, finished operations, provisioned machines,
// known block devices, values that have become due), and batches of operations, results to
// publish and questions to ask come out. A Core does no I/O, reads no clock and starts no
// goroutine. It belongs to one goroutine, which sets the time with [Core.At], and after each
// fact calls [Core.Batches], [Core.Take], [Core.Unread] and [Core.Devices].
//
// Each entity (a volume, a filesystem, or an attachment or plan of one) has one record and at
// most one operation at a time. From the record, [Core.decide] derives the next operation and
// what that operation waits for, if anything:
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

// Options configures a [Core].
type Options struct {
	Retry Retry
	// MaxBatch caps the number of operations in one batch; 0: no cap.
	MaxBatch int
	// Host is the tag of the machine on whose volumes this worker manages filesystems; empty
	// for a worker in the environment's scope.
	Host string
	// Attempts says that the state remembers attempts: before a batch makes something, the
	// state must note that, and the batch goes ahead with [Core.Noted].
	Attempts bool
	// Timetable holds the values to pass to [Core.Due] when they are due.
	Timetable Timetable
}

// Timetable keeps values until they are due. Adding a key again replaces its value.
type Timetable interface {
	Add(key, value any, due time.Time)
	Remove(key any)
}

// Core is the worker's knowledge and plans.
type Core struct {
	options Options
	now     time.Time

	// storage holds the volumes and filesystems by the IDs of their tags. Their records hold
	// their attachments.
	storage [kinds]byid.Map[entity]
	// all holds the entities in an arbitrary but deterministic order.
	all     []*entity
	hosts   map[string]*host
	devices byid.Map[device]
	// watched are the devices that something waits for or has used; lookups are those of them
	// that must be looked up; devicesChanged says that all of them must be.
	watched, lookups []*device
	devicesChanged   bool

	queues  []*queue
	sources map[Source]*queue
	// issuers are all issuers so far; issuersBySource holds them by source, without the pool.
	issuers         []*issuer
	issuersBySource map[Source]*issuer
	// queued counts the entities in the queues.
	queued [kinds][ops]int

	// unread are the entities to be read; firstReads is the progress of the first reading of
	// everything that existed at the start.
	unread     []*entity
	firstReads [kinds]firstRead
	// idsCollected says that the IDs of at least one issuer have been collected.
	idsCollected bool
	// unreadable are the entities that the last attempt to read has failed for.
	unreadable map[Key]unreadable
	// ownership holds the volumes and filesystems that may be used according to their sources,
	// which have been asked for the owners.
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

// At sets the time of the facts that follow.
func (c *Core) At(now time.Time) {
	c.now = now
}

// Fact is an entity as the state has it.
type Fact struct {
	Subject
	// Err says why the entity could not be read. The entity is read again later, and the other
	// fields but Subject mean nothing.
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
	// Wanted is zero if the state does not say.
	Size, Wanted uint64
	// Args are the provider's arguments for the next operation, without ID and Instance, which
	// are added when the operation starts. They are nil for an entity that lacks the
	// parameters to be created or attached, which is left as it is.
	Args any
}

// Output is what the core wants done, besides batches, readings and lookups.
type Output struct {
	Publish Publication
	// Machines are the machines to watch until they are provisioned.
	Machines []string
	// Forgotten are the volumes whose block devices are no longer watched.
	Forgotten []string
}

// Publication is what is to be recorded in the state.
type Publication struct {
	Statuses []Status
	Records  []Record
	Removals []Subject
	// Unmade are the entities whose attempt has made nothing. Ended are the managed
	// filesystems whose attempt has ended and may have left something.
	Unmade, Ended []Subject
}

// Empty reports whether there is nothing to publish.
func (p Publication) Empty() bool {
	return len(p.Statuses) == 0 && len(p.Records) == 0 && len(p.Removals) == 0 && len(p.Unmade) == 0 && len(p.Ended) == 0
}

// Subject names an entity.
type Subject struct {
	Key Key
	// Tag is the tag of the volume or filesystem, or of the one that is attached.
	Tag names.Tag
	// Unattributed says that the source that provides the entity must be read even if nothing
	// is to be done about the entity.
	Unattributed bool
	// Settled says that this worker has attached the attachment: while it stays recorded and
	// alive, nothing else needs to be read about it.
	Settled bool
	// entity saves the core a lookup; it is nil in a Subject that the core did not return.
	entity *entity
}

// subject returns the entity's subject.
func (e *entity) subject() Subject {
	return Subject{Key: e.key(), Tag: e.tag, entity: e}
}

// Record is the info of an entity, as its provider returned it.
type Record struct {
	Subject
	Info any
}

// Take returns the output that has accumulated since the last call.
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

// Devices returns the volumes whose block devices must be looked up, at most limit of them.
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

// requestLookup marks a device to be looked up.
func (c *Core) requestLookup(d *device) {
	if !d.lookupDue {
		d.lookupDue = true
		c.lookups = append(c.lookups, d)
	}
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
	// When an entity starts to be removed, look at once for what may have been made for it,
	// even if the operation that does so has been given up.
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
		c.wake(e.storage) // a filesystem is made only where it is wanted
	}
}

// noteUnwantedAttachment notes that an attachment of a volume is no longer wanted. The volume
// is read before it is created, because its creation with the parameters read earlier might
// attach it.
func (c *Core) noteUnwantedAttachment(volume Key) {
	v := c.find(volume)
	if v != nil && v.observed && !v.recorded && v.life == Alive {
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
// the core keeps what it knew of the entity.
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

// learn updates an entity from a fact. The source of an entity does not change and is not read
// for every decision: what the fact lacks stays as it was.
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

// differs reports whether a fact would give the entity's next operation other parameters than
// the one that has failed.
func (e *entity) differs(f Fact) bool {
	return !reflect.DeepEqual(e.args(), f.Args) || !reflect.DeepEqual(e.work.owner, f.Owner)
}

// Refresh handles a change of the environment's configuration. It retries failed operations at
// once, and operations under way as soon as they fail, and marks for reading all entities that
// have something to do or do not belong to this worker. Operations that may be in progress go
// on unchanged.
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

// Retry retries the failed operations of a volume or filesystem, and of its attachments and
// plans, at once and as if they had not been tried before. It checks what is attached, and
// attaches it again if it is not as it was attached.
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

// reattach attaches an entity again that is not as it was attached.
func (c *Core) reattach(a *entity) {
	a.flags.set(checkFailed|attachedHere|repairRequested, false)
	c.requestRead(a) // clearWork has discarded the arguments
}

// CheckMounts checks all filesystems that this worker has attached: others may have unmounted
// or covered them.
func (c *Core) CheckMounts() { c.check(FilesystemAttachment) }

// check checks everything that this worker has attached, of the given kinds of attachment.
func (c *Core) check(kinds ...Kind) {
	for _, e := range slices.Clone(c.all) {
		if e.flags.has(attachedHere) && slices.Contains(kinds, e.kind) {
			e.flags.set(checkDue, true)
			c.settle(e)
		}
	}
}

// FailedOn returns the volume on which a filesystem is to be made. ok is false unless an
// attempt has failed, and the next attempt is due later or needs a change.
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

// Resync grants one more attempt to each operation that has been given up, asks again about
// everything that is deferred or waited for, checks what is attached, and marks everything
// that is known for reading.
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
			h.watched = false // the next entity to wait for it watches it again
			c.dropUnusedHost(h)
		}
	}
	for _, e := range c.all {
		if e.observed {
			c.requestRead(e)
		}
	}
}

// Provisioned notes that a machine has an instance.
func (c *Core) Provisioned(tag, instance string) {
	h, ok := c.hosts[tag]
	if !ok {
		return
	}
	h.instance = instance
	c.wake(h)
	c.dropUnusedHost(h)
}

// DevicesChanged notes that the machine's block devices have changed: those that are watched
// must be looked up again.
func (c *Core) DevicesChanged() {
	c.devicesChanged = true
}

// DeviceWatched reports whether a volume's block device is watched: something waits
// for it, or has used it.
func (c *Core) DeviceWatched(volume string) bool {
	d := c.devices.Get(volume)
	return d != nil && d.watched
}

// DeviceKnown notes whether the block device of a volume is known, whether it has a
// filesystem UUID, and its size in MiB. The device must be watched. If it gets a UUID while
// the filesystem on it is attached, the filesystem is attached again.
func (c *Core) DeviceKnown(volume string, known, hasUUID bool, size uint64) {
	d := c.devices.Get(volume)
	c.clearLookupFailures(d)
	d.known, d.hasUUID, d.size = known, hasUUID, size
	if !known {
		return
	}
	c.wake(d)
	if e := d.mounted; e != nil && e.flags.has(attachedHere) && e.attachedWithoutUUID && hasUUID {
		// clearWork has discarded the arguments.
		e.flags.set(attachedHere, false)
		c.requestRead(e)
	}
}

// DeviceUnreadable notes that the block device of a volume, which must be watched, could not
// be looked up. The lookup is tried again later.
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

// Due handles the values that the timetable has returned as due.
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

// settle moves an entity to the phase that its facts call for: waiting, scheduled, queued,
// publishing a removal, or idle. It is called whenever something about the entity has changed.
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

// refresh forgets the failures of an entity's operation, so that the operation may start at
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

// makeIdle makes an entity idle; the entity must not be busy. It stays in its queue, which
// skips it.
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
	*e = entity{
		kind: e.kind, name: e.name, tag: e.tag, allIndex: e.allIndex, host: e.host, backing: e.backing,
		storage: e.storage, attachments: e.attachments, next: e.next, previous: e.previous,
		waiters: e.waiters, users: e.users, calls: e.calls, pendingRead: e.pendingRead,
	}
}

// hold notes that the entity's dependencies must stay, because the entity is being attached or
// made.
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

// deviceChanged notes that the block device of a volume may have changed: it is not known
// until it has been looked up again.
func (c *Core) deviceChanged(volume string) {
	if d := c.devices.Get(volume); d != nil && d.watched {
		d.known, d.hasUUID, d.size = false, false, 0
		c.requestLookup(d)
	}
}
