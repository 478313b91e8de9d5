package plan

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
)

// Result is how one operation ended.
type Result struct {
	Key Key
	Err error
	// Unknown says that the error is of the call: what it did to the entity is
	// not known.
	Unknown bool
	// Untried says that the error came before the source was called: nothing has been
	// done.
	Untried bool
	// Deferred says that the operation has not been tried: its source asks to be
	// asked again when the entity changes.
	Deferred bool
	// ID is the provider's id of what was created.
	ID string
	// Info is what to record of what was created or attached.
	Info any
	// Size is that of what was created or has grown, in MiB.
	Size uint64
	// Remark is what the source has to say to the user about what was attached.
	Remark string
	// Attached is the attachment that the provider made along with a creation,
	// if any, and AttachedInfo what to record of it.
	Attached     Key
	AttachedInfo any
	// Ownership is what has come of asking the source whose it is.
	Ownership Ownership
	// entity is that of the item.
	entity *entity
}

// Finished takes in how a batch ended: a result for each of its items. The
// source is free for another from here on.
func (c *Core) Finished(source Source, results []Result) {
	c.queue(source).calls--
	if len(results) > 0 {
		c.makeRoom(results)
	}
	for i := range results {
		e := results[i].entity
		if e == nil {
			e = c.find(results[i].Key)
		}
		e.storage.calls--
		if o := results[i].Ownership; o != NotAsked && c.has(e.storage) {
			c.ownership[e.storage] = o
		}
		c.finish(e, &results[i])
	}
}

// Overdue takes in that a batch has been under way for so long, and is to end: until it is
// Finished, what it does to its items goes on.
func (c *Core) Overdue(batch Batch, taken time.Duration) {
	since := c.now.Add(-taken).UTC().Format(time.RFC3339)
	for i := range batch.Items {
		e := batch.Items[i].entity
		if e.phase != running || e.op != batch.Op || e.orphan || e.life == Gone {
			continue
		}
		e.work.failure = fmt.Sprintf("under way since %s, longer than its time limit of %s", since, taken)
		if e.op == Resize {
			c.stand(e, fmt.Sprintf("growing to %d MiB: %s", e.wanted, e.work.failure))
		} else {
			c.status(e, retrying[e.op], e.explain())
		}
	}
}

// makeRoom makes room for what there is to publish of the results, which are many.
func (c *Core) makeRoom(results []Result) {
	p := &c.out.Publish
	p.Statuses = slices.Grow(p.Statuses, len(results))
	if results[0].Info != nil {
		p.Records = slices.Grow(p.Records, len(results))
	} else {
		p.Removals = slices.Grow(p.Removals, len(results))
	}
}

func (c *Core) finish(e *entity, r *Result) {
	switch {
	case e.op == Check:
		c.checked(e, r)
	case r.Err == nil && !r.Deferred:
		c.attachedBefore(e, r)
		e.unresolved = false
		e.left = nothingLeft
		e.work.item = nil
		c.succeed(e, r)
	case e.life == Gone && !e.mayGoOn(r.Err):
		c.forget(e)
	default:
		c.fail(e, r)
	}
	c.wake(e)
}

// checked takes in whether what was attached still is as it was attached. It is not attached
// again before a user asks for that: who has taken it away may have had a reason, and what
// was in it may be lost.
func (c *Core) checked(e *entity, r *Result) {
	w := e.work
	w.item = nil
	switch {
	case e.life != Alive, c.IsToldAmiss(*r):
	case r.Err != nil && (r.Unknown || r.Untried || !storage.IsPermanent(r.Err)):
		// It could not be looked at, and is later.
		w.failure = r.Err.Error()
		w.attempts++
		w.due = c.now.Add(c.options.Retry.Delay(w.attempts))
		e.ties.set(unchecked, true)
	case r.Err != nil && e.ties.has(asked):
		c.attachAgain(e)
	case r.Err != nil:
		e.ties.set(amiss, true)
		c.status(e, status.Error, r.Err.Error())
	case e.ties.has(amiss):
		e.ties.set(amiss, false)
		c.rest(e, attached, e.storage.remark())
	}
	if r.Err == nil {
		e.ties.set(asked, false)
	}
	c.leaveOff(e)
	c.wake(e.storage) // which grows while it is attached, and nothing is done about that
}

// IsToldAmiss reports whether a result says of what is attached that something is wrong with it,
// which users have been told already.
func (c *Core) IsToldAmiss(r Result) bool {
	e := c.find(r.Key)
	return e != nil && e.op == Check && e.ties.has(amiss) && r.Err != nil && e.storage.told == unrest && e.storage.message() == r.Err.Error()
}

// attachedBefore has the attachment of a created volume looked into if an attempt before this
// one may have made it: a source that finds the volume there does not say whether it is attached.
func (c *Core) attachedBefore(e *entity, r *Result) {
	if e.op != Create || !e.uncertain() || r.AttachedInfo != nil || e.host == nil {
		return
	}
	if a := e.attachments.find(VolumeAttachment, e.host.tag); a != nil && !a.recorded {
		a.left = max(a.left, e.left)
	}
}

func (c *Core) succeed(e *entity, r *Result) {
	switch {
	case e.op == Create && r.AttachedInfo == nil:
		c.status(e, status.Attaching, "")
	case e.op == Create || e.op == Attach:
		c.rest(e, attached, r.Remark)
	case e.op == Resize:
		c.stand(e, e.remark())
	case e.op == Detach:
		e.ties.set(attachedHere, false)
		if e.kind != Plan {
			// With its plan undone a volume is still to be detached.
			c.rest(e, detached, "")
		}
		c.release(e)
		c.moved(e)
	}
	if e.op == Create {
		e.id = r.ID
		c.release(e)
	}
	switch {
	case e.makes() && (e.orphan || e.life == Gone):
		c.undo(e, r)
	case e.op == Resize && (e.life == Gone || !e.recorded):
		// The state has dropped the entity. What it may have again under the same id is
		// another entity, which has not grown.
		c.leaveOff(e)
	case e.orphan:
		c.read(e)
		c.forget(e)
	default:
		e.work.result = r
		c.publish(e)
	}
}

// undo takes back what has been made for an entity that the state no longer has.
func (c *Core) undo(e *entity, r *Result) {
	if r.AttachedInfo != nil {
		a := c.attachedAlong(e.queue, r)
		a.orphan = true
		if !a.busy() {
			c.adrift(a)
		}
	}
	c.adrift(e)
}

// fail sees to an operation that has failed, by what its error means, or that has
// been deferred.
func (c *Core) fail(e *entity, r *Result) {
	e.phase = idle
	switch {
	case r.Deferred:
		e.stalled = deferred
	case e.makes() && storage.IsIncomplete(r.Err):
		e.stalled, e.unresolved, e.left = deferred, false, nothingLeft
		e.work.failure = r.Err.Error()
	default:
		c.failed(e, r)
	}
	c.unmade(e)
	if !e.unresolved {
		if e.op == Create {
			c.release(e)
		}
		same := reflect.DeepEqual(e.work.item.Args, e.work.args)
		if e.doubted() {
			same = e.work.item.Repeat
		}
		if e.outdated || !same {
			// What was tried is not what would be tried now.
			c.refresh(e)
		}
		if !e.uncertain() {
			e.work.item = nil
		}
	}
	if item := e.work.item; item != nil {
		// It is kept, the batch is not.
		kept := *item
		e.work.item = &kept
	}
	c.settle(e)
}

func (c *Core) failed(e *entity, r *Result) {
	w := e.work
	w.failure = r.Err.Error()
	wentOn := e.unresolved
	e.unresolved = e.mayGoOn(r.Err)
	var delay time.Duration
	soon := errors.Is(r.Err, storage.ErrTransient) && !e.unresolved && !final(r.Err)
	if soon {
		delay, soon = c.options.Retry.soon(w.transient + 1)
	}
	granted := w.granted
	w.granted = false
	if soon {
		w.transient++
	} else {
		if !granted {
			w.attempts++
		}
		delay = c.options.Retry.Delay(w.attempts)
	}
	switch {
	case e.unresolved:
	case final(r.Err):
		e.stalled = givenUp
	case !soon && c.options.Retry.exhausted(e.op, w.attempts):
		e.stalled = givenUp
		w.failure = fmt.Sprintf("%s (gave up after %d attempts)", w.failure, w.attempts)
	}
	if e.makes() && !r.Untried {
		c.doubt(e, r, wentOn)
	}
	if e.stalled == notStalled {
		w.due = c.now.Add(delay)
	}
	switch {
	case errors.Is(r.Err, storage.ErrIgnored), granted && e.givenUpReported():
	case e.op == Resize:
		c.stand(e, e.info())
	case e.stalled != notStalled:
		c.status(e, status.Error, e.explain())
	default:
		c.status(e, retrying[e.op], e.explain())
	}
}

// doubt notes whether a failed attempt to make something may have left anything. A state
// that remembers attempts has that looked into whenever the source does not say that it
// has not; for any other only a failure of the whole call is a reason to.
func (c *Core) doubt(e *entity, r *Result, wentOn bool) {
	switch {
	case storage.IsNothingMade(r.Err), e.op == Create && final(r.Err):
		// Creation also tells of the attempts before this one, by what cannot be created.
		e.left = nothingLeft
	case final(r.Err):
		// So this attempt made nothing.
	case r.Unknown, wentOn && !e.unresolved:
		e.left = notKnown
	case c.options.Attempts && !e.unresolved:
		e.left = max(e.left, somethingLeft)
	}
}

// retrying tells the status of an entity whose operation is tried again.
var retrying = [ops]status.Status{
	Destroy: status.Error,
	Create:  status.Pending,
	Detach:  status.Detaching,
	Attach:  status.Attaching,
}

// explain returns the message of a failure, which names the operation where the
// status does not tell.
func (e *entity) explain() string {
	switch {
	case e.op != Destroy:
		return e.work.failure
	case e.kind == Filesystem:
		return "removing filesystem: " + e.work.failure
	case e.released:
		return "releasing volume: " + e.work.failure
	}
	return "destroying volume: " + e.work.failure
}

// mayGoOn reports whether the entity's operation may be going on after this error:
// once it may, any leaves it so but one that says that it has ended. What only grows leaves nothing
// behind, and what is done on a volume that is not there any more is over: any failure
// ends that, so that the entity can go.
func (e *entity) mayGoOn(err error) bool {
	ended := final(err) || storage.IsNothingMade(err)
	return MayGoOn(err) || e.unresolved && !ended && e.op != Resize && !e.stranded()
}

// stranded reports whether the block device that backs a filesystem or its attachment has
// gone since the operation began.
func (e *entity) stranded() bool {
	d := e.heldBacking
	if d == nil {
		d = e.backing
	}
	return d != nil && !d.known
}

// MayGoOn reports whether an operation with this error may be going on.
func MayGoOn(err error) bool {
	if storage.IsNothingMade(err) {
		return false
	}
	return errors.Is(err, storage.ErrInProgress) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// final reports whether an operation with this error has ended, and repeating it
// does not help.
func final(err error) bool {
	return errors.Is(err, storage.ErrIgnored) || storage.IsPermanent(err)
}

// makes reports whether there is something after the entity's operation that was
// not there before.
func (e *entity) makes() bool {
	return e.op == Create || e.op == Attach
}

// records reports whether the end of the entity's operation is something to
// record, rather than a removal.
func (e *entity) records() bool {
	return e.makes() || e.op == Resize
}

// publish has an entity's result recorded in the state.
func (c *Core) publish(e *entity) {
	e.phase = publishing
	if e.records() {
		c.out.Publish.Records = append(c.out.Publish.Records, Record{e.subject(), e.work.result.Info})
	} else {
		c.out.Publish.Removals = append(c.out.Publish.Removals, e.subject())
	}
}

// Published takes in whether the state has taken the result of an entity. A
// result that it has not taken is kept, and published again. What is not there
// any more needs no removal; what was made for it is undone.
func (c *Core) Published(s Subject, err error) {
	e := c.known(s)
	missing := errors.Is(err, errors.NotFound)
	refused := err != nil && !missing
	// An entity that is alive again is another one with the same id: it stays. The new
	// size of an entity that is going need not be known.
	moot := e.life == Alive
	if e.records() {
		moot = e.op == Resize && e.life != Alive
	}
	w := e.work
	if refused && !moot && !e.orphan {
		if w.refused == nil {
			w.refused = &refusal{}
		}
		attempts := w.refused.attempts + 1
		*w.refused = refusal{attempts, err.Error(), c.now.Add(c.options.Retry.Delay(attempts))}
		c.options.Timetable.Add(e, e, w.refused.due)
		return
	}
	r := w.result
	w.result, w.refused = nil, nil
	e.phase = idle
	switch {
	case e.orphan:
		c.adrift(e)
	case refused:
		c.leaveOff(e)
	case missing && e.makes():
		c.undo(e, r)
	case missing || !e.records():
		c.forget(e)
	default:
		c.took(e, r)
	}
}

// took takes in that the state has taken what there is of an entity.
func (c *Core) took(e *entity, r *Result) {
	c.refresh(e)
	e.recorded = true
	e.ties.set(amiss, false)
	if r.Size > 0 {
		e.size = r.Size
	}
	e.ties.set(attachedHere, e.op == Attach && !(e.unmarked && e.heldBacking != nil && e.heldBacking.marked))
	if e.observed && e.life != Alive {
		// How to remove the entity could not be read before it was recorded; or the
		// state had dropped it then, and has it again.
		c.reread(e)
	}
	if e.op == Create && e.wanted > e.size {
		// How to grow the entity could not be read before it was recorded either.
		c.reread(e)
	}
	if r.AttachedInfo != nil {
		c.adopt(e.queue, r)
	}
	c.moved(e)
	c.settle(e)
	c.wake(e.storage)
}

// reread has an entity read before anything else is done about it.
func (c *Core) reread(e *entity) {
	e.stale = true
	c.read(e)
}

// leaveOff ends an operation that has nothing to record.
func (c *Core) leaveOff(e *entity) {
	e.phase = idle
	if e.life == Gone {
		c.forget(e)
		return
	}
	c.settle(e)
}

// moved notes that a volume has been attached or detached here.
func (c *Core) moved(e *entity) {
	if e.storage.kind == Volume && e.kind.Attachment() && e.host.tag == c.options.Host {
		c.deviceChanged(e.name)
	}
}

// adopt takes in the attachment that came with a creation: it has only to be
// recorded. One that is being given up is undone.
func (c *Core) adopt(source *queue, r *Result) {
	e := c.attachedAlong(source, r)
	if e.underway() {
		e.orphan = e.op != Attach
		return
	}
	c.refresh(e)
	e.orphan = false
	e.op = Attach
	e.toDo().result = &Result{Info: r.AttachedInfo}
	c.publish(e)
}

// attachedAlong returns the record of the attachment that came with a creation.
func (c *Core) attachedAlong(source *queue, r *Result) *entity {
	e := c.entity(r.Attached)
	e.queue = source
	e.onMachine = true
	e.id = r.ID
	c.hold(e)
	return e
}
