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
	"time"

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
	// Mounts says that [Core.CheckMounts] is called after changes of mounts, so that the mount
	// points of attached filesystems must be kept.
	Mounts bool
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
	all []*entity
	// mounted holds the attachments of filesystems that this worker has mounted, with their
	// mount points, in an arbitrary but deterministic order.
	mounted []mounted
	// mountReadings counts the readings of mounts.
	mountReadings uint32
	// mountsChanged is when a change of mounts was last reported.
	mountsChanged time.Time
	hosts         map[string]*host
	devices       byid.Map[device]
	// watched are the devices that something waits for or has used; lookups are those of them
	// that must be looked up; devicesChanged says that all of them must be.
	watched, lookups []*device
	devicesChanged   bool

	queues  []*queue
	sources map[Source]*queue
	// lastQueue is the queue that was last looked up, usually also the next.
	lastQueue *queue
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
	// contexts holds what sources need to attach volumes that are made, beside their IDs. Few sources need
	// anything.
	contexts map[*entity]map[string]string
	// planned holds the sizes, in MiB, of the volumes whose plans act on growth.
	planned map[*entity]uint64
	out     Output
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
		contexts:        make(map[*entity]map[string]string),
		planned:         make(map[*entity]uint64),
	}
}

// At sets the time of the facts that follow.
func (c *Core) At(now time.Time) {
	c.now = now
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
			v.work.failures.due = time.Time{}
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
	case !e.failed().due.IsZero():
		c.makeIdle(e)
		e.phase = scheduled
		c.options.Timetable.Add(e, e, e.work.failures.due)
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
	f := e.failed()
	return f.attempts+f.transient > 0
}

// refresh forgets the failures of an entity's operation, so that the operation may start at
// once.
func (c *Core) refresh(e *entity) {
	c.makeIdle(e)
	e.stalled = notStalled
	if e.work != nil {
		e.work.failures = nil
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
