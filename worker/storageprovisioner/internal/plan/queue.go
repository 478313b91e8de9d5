package plan

import (
	"math"

	"github.com/stowage-io/stowage/storage"
)

// Batch is what one source is asked to do in one call.
type Batch struct {
	Source Source
	Op     Op
	Items  []Item
}

// Item is one operation of a batch.
type Item struct {
	Subject
	// ID is the provider's ID of the volume or filesystem; empty for one that is to be
	// created.
	ID string
	// Context is what the source needs to attach the volume, beside the ID.
	Context map[string]string
	// Instance is the machine's instance ID, if a machine takes part.
	Instance string
	// Release says that the removal is a release.
	Release bool
	// Noted says that the state has noted the attempt, or need not note it.
	Noted bool
	// Repeat says that the operation may be done already, or still be going on. It is repeated
	// to learn how it ended.
	Repeat bool
	// Args are those of the entity's [Fact].
	Args any
	// Owner is that of the entity's [Fact], if the source must be asked for the owner first.
	Owner *storage.Owner
	// Ownership is the source's answer.
	Ownership Ownership
}

// Ended returns r as the result of the item.
func (i *Item) Ended(r Result) Result {
	r.Subject, r.Ownership = i.Subject, i.Ownership
	return r
}

// Ownership is what a source says about the owner of storage.
type Ownership uint8

const (
	// NotAsked means that the source has not said anything.
	NotAsked Ownership = iota
	// Owned means that the storage belongs to the state.
	Owned
	// OwnerUnknown means that the source does not know the owner.
	OwnerUnknown
)

// queue holds the operations that are due for one source, while the source is busy or until
// the next call of Batches.
type queue struct {
	source Source
	// calls counts the calls under way; limit is how many concurrent calls the source allows.
	calls, limit int
	due          [ops][]*entity
	issuer       *issuer
}

// enqueue adds an entity to its source's queue.
func (c *Core) enqueue(e *entity) {
	e.phase = queued
	c.queued[e.kind][e.op]++
	q := c.source(e)
	q.due[e.op] = append(q.due[e.op], e)
}

func (c *Core) queue(source Source) *queue {
	if q := c.lastQueue; q != nil && q.source == source {
		return q
	}
	q, ok := c.sources[source]
	if !ok {
		q = &queue{source: source, limit: 1, issuer: c.issuer(source)}
		c.sources[source] = q
		c.queues = append(c.queues, q)
	}
	c.lastQueue = q
	return q
}

// SetLimit sets how many concurrent calls a source allows, at least one. The default is one.
func (c *Core) SetLimit(source Source, calls int) {
	c.queue(source).limit = max(calls, 1)
}

// Queued returns how many operations op on entities of a kind are due and wait for their
// source to be free.
func (c *Core) Queued(kind Kind, op Op) int {
	return c.queued[kind][op]
}

// Batches returns what may be handed to providers now: for each free source, the operations
// that are due, one kind of operation in a batch. A batch keeps its source busy until
// [Core.Finished].
func (c *Core) Batches() []Batch {
	var batches []Batch
	for _, q := range c.queues {
		for op := Destroy; op < ops; op++ {
			if op == Create && !c.mayCreate(q.source) {
				continue
			}
			for q.calls < q.limit {
				items := c.nextBatch(q, op)
				if len(items) == 0 {
					break
				}
				q.calls++
				batches = append(batches, Batch{Source: q.source, Op: op, Items: items})
			}
		}
	}
	return batches
}

// nextBatch takes the next batch out of a queue. The facts of a queued entity may have
// changed: if they no longer call for its operation, the entity is settled again. An
// entity whose volume or filesystem has a call under way keeps its place.
func (c *Core) nextBatch(q *queue, op Op) []Item {
	due := q.due[op]
	if len(due) == 0 {
		return nil
	}
	most := min(len(due), c.maxBatch(q.source, op))
	items := make([]Item, 0, most)
	var waiting []*entity
	taken := 0
	for _, e := range due {
		if len(items) == most {
			break
		}
		taken++
		if e.phase != queued || e.op != op || c.source(e) != q {
			continue
		}
		if now, need := c.decide(e); now != op || need != nil {
			c.makeIdle(e)
			c.settle(e)
			continue
		}
		if e.common.calls > 0 {
			waiting = append(waiting, e)
			continue
		}
		items = append(items, c.start(e))
		e.work.item = &items[len(items)-1]
	}
	// Only one call at a time may concern a volume or filesystem. It may contain several
	// operations on the storage and its attachments.
	for _, item := range items {
		item.entity.common.calls++
	}
	// Settling may have appended to the queue.
	due = q.due[op]
	taken -= len(waiting)
	copy(due[taken:], waiting)
	clear(due[:taken])
	q.due[op] = due[taken:]
	if len(q.due[op]) == 0 {
		q.due[op] = nil
	}
	return items
}

// maxBatch returns the maximum number of operations in one call of a source. Making or growing
// a managed filesystem waits for its device, and a device that hangs must not hold up others.
func (c *Core) maxBatch(source Source, op Op) int {
	switch {
	case source.Managed && (op == Create || op == Resize):
		return 1
	case c.options.MaxBatch > 0:
		return c.options.MaxBatch
	}
	return math.MaxInt
}

// start marks an entity as handed to a provider and returns its item. An operation that may be
// going on is repeated unchanged.
func (c *Core) start(e *entity) Item {
	if e.op == Attach || e.op == Create {
		c.hold(e)
	}
	c.makeIdle(e)
	e.phase = running
	e.flags.set(checkDue, false)
	// What goes on is repeated unchanged, whatever the environment's configuration says.
	e.outdated = e.outdated && e.unresolved
	if item := e.work.item; item != nil && (e.unresolved || e.mustRepeatCreate()) {
		again := *item
		again.Repeat = true
		return again
	}
	if e.op == Attach {
		e.flags.set(withoutUUID, e.heldBacking == nil || !e.heldBacking.hasUUID)
	}
	if e.storage.made == recorded {
		e.id = e.storage.id
	}
	item := Item{Subject: e.subject(), ID: e.id, Release: e.release, Args: e.work.args, Repeat: e.mustRepeatCreate()}
	if item.Ownership = c.ownership[e.storage]; item.Ownership == NotAsked {
		item.Owner = e.work.owner
	}
	item.Noted = !c.options.Attempts || e.made == recorded || !e.makes() || item.Repeat
	if e.op == Attach {
		item.Context = c.contexts[e.storage]
	}
	if e.host != nil {
		item.Instance = e.host.instance
	}
	return item
}
