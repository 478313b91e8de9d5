package plan

import (
	"context"
	"fmt"
	"reflect"

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
	// Deferred says that the operation has not been tried: its source asks to be
	// asked again when the entity changes.
	Deferred bool
	// ID is the provider's id of what was created.
	ID string
	// Info is what to record of what was created or attached.
	Info any
	// Size is that of what was created or has grown, in MiB.
	Size uint64
	// Remark is what the user should be told of what was attached.
	Remark string
	// Attached is the attachment that the provider made along with a creation,
	// if any, and AttachedInfo what to record of it.
	Attached     Key
	AttachedInfo any
}

// Finished takes in how a batch ended: a result for each of its items. The
// source is free for another from here on.
func (c *Core) Finished(source Source, results []Result) {
	q := c.queue(source)
	q.calls--
	for i := range results {
		q.leave(results[i].Key.Storage())
	}
	for i := range results {
		c.finish(c.entities[results[i].Key], &results[i])
	}
}

func (c *Core) finish(e *entity, r *Result) {
	switch {
	case r.Err == nil && !r.Deferred:
		e.unresolved = false
		e.uncertain = false
		e.item = Item{}
		c.succeed(e, r)
	case e.fact.Life == Gone && !e.mayGoOn(r.Err):
		e.phase = idle
		c.forget(e)
	default:
		c.fail(e, r)
	}
	c.wake(r.Key)
}

func (c *Core) succeed(e *entity, r *Result) {
	switch {
	case e.op == Create && r.AttachedInfo == nil:
		c.status(e, status.Attaching, "")
	case e.op == Create || e.op == Attach:
		c.rest(e, status.Attached, r.Remark)
	case e.op == Resize:
		c.stand(e, e.remark)
	case e.op == Detach:
		e.attached = false
		if e.fact.Key.Kind != Plan {
			// With its plan undone a volume is still to be detached.
			c.rest(e, status.Detached, "")
		}
		c.release(e)
		c.moved(e)
	}
	if e.op == Create {
		e.fact.ID = r.ID
		c.release(e)
	}
	switch {
	case e.makes() && (e.orphan || e.fact.Life == Gone):
		c.undo(e, r)
	case e.op == Resize && (e.fact.Life == Gone || !e.fact.Recorded):
		// The state has dropped it, and may have it anew: that is another.
		c.drop(e)
	case e.orphan:
		c.forget(e)
		c.out.Unread = append(c.out.Unread, r.Key)
	default:
		e.result = r
		c.publish(e)
	}
}

// undo takes back what has been made for an entity that the state no longer has.
func (c *Core) undo(e *entity, r *Result) {
	if r.AttachedInfo != nil {
		a := c.attachedAlong(e.fact.Source, r)
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
	if r.Deferred {
		e.stalled, e.deferred = true, true
	} else {
		c.failed(e, r)
	}
	if !e.unresolved {
		if e.op == Create {
			c.release(e)
		}
		same := reflect.DeepEqual(e.item.Args, e.fact.Args)
		if e.doubted() {
			same = e.item.Repeat
		}
		if e.outdated || !same {
			// What was tried is not what would be tried now.
			c.refresh(e)
		}
		if !e.uncertain {
			e.item = Item{}
		}
	}
	c.settle(e)
}

func (c *Core) failed(e *entity, r *Result) {
	e.attempts++
	e.failure = r.Err.Error()
	e.unresolved = e.mayGoOn(r.Err)
	switch {
	case e.unresolved:
	case final(r.Err):
		e.stalled = true
	case c.options.Retry.exhausted(e.op, e.attempts):
		e.stalled = true
		e.failure = fmt.Sprintf("%s (gave up after %d attempts)", e.failure, e.attempts)
	}
	if e.makes() {
		e.uncertain = r.Unknown && !final(r.Err)
	}
	if !e.stalled {
		e.due = c.now.Add(c.options.Retry.delay(e.attempts))
	}
	switch {
	case errors.Is(r.Err, storage.ErrIgnored):
	case e.op == Resize:
		c.stand(e, e.info())
	case e.stalled:
		c.status(e, status.Error, e.explain())
	default:
		c.status(e, retrying[e.op], e.explain())
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
		return e.failure
	case e.fact.Key.Kind == Filesystem:
		return "removing filesystem: " + e.failure
	case e.fact.Release:
		return "releasing volume: " + e.failure
	}
	return "destroying volume: " + e.failure
}

// mayGoOn reports whether the entity's operation may be going on after this error:
// once it may, any but a final error leaves it so. What only grows leaves nothing
// behind: any failure ends that, so that the entity can go.
func (e *entity) mayGoOn(err error) bool {
	return MayGoOn(err) || e.unresolved && !final(err) && e.op != Resize
}

// MayGoOn reports whether an operation with this error may be going on.
func MayGoOn(err error) bool {
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
		c.out.Publish.Records = append(c.out.Publish.Records, Record{e.fact.Key, e.result.Info})
	} else {
		c.out.Publish.Removals = append(c.out.Publish.Removals, e.fact.Key)
	}
}

// Published takes in whether the state has taken the result of an entity. A
// result that it has not taken is kept, and published again. What is not there
// any more needs no removal; what was made for it is undone.
func (c *Core) Published(key Key, err error) {
	e := c.entities[key]
	missing := errors.Is(err, errors.NotFound)
	refused := err != nil && !missing
	// What is alive again by now is another of the same id: it stays. How large
	// something is that goes need not be known.
	moot := e.fact.Life == Alive
	if e.records() {
		moot = e.op == Resize && e.fact.Life != Alive
	}
	if refused && !moot && !e.orphan {
		attempts := e.refused.attempts + 1
		e.refused = refusal{attempts, err.Error(), c.now.Add(c.options.Retry.delay(attempts))}
		c.options.Timetable.Add(e, e, e.refused.due)
		return
	}
	r := e.result
	e.result = nil
	e.refused = refusal{}
	e.phase = idle
	switch {
	case e.orphan:
		c.adrift(e)
	case refused:
		c.drop(e)
	case missing && e.makes():
		c.undo(e, r)
	case missing || !e.records():
		c.forget(e)
	default:
		c.refresh(e)
		e.fact.Recorded = true
		if r.Size > 0 {
			e.fact.Size = r.Size
		}
		e.attached = e.op == Attach && !(e.unmarked && c.devices[e.beneath].marked)
		if e.observed && e.fact.Life != Alive {
			// How to remove it could not be read before it was recorded; or it was
			// gone then, and is there anew.
			c.reread(e)
		}
		if e.op == Create && e.fact.Wanted > e.fact.Size {
			// So could how to make it larger than it was first wanted.
			c.reread(e)
		}
		if r.AttachedInfo != nil {
			c.adopt(e.fact.Source, r)
		}
		c.moved(e)
		c.settle(e)
		c.wake(key.Storage())
	}
}

// reread has an entity read before anything else is done about it.
func (c *Core) reread(e *entity) {
	e.stale = true
	c.out.Unread = append(c.out.Unread, e.fact.Key)
}

// drop ends an operation of which there is nothing to record.
func (c *Core) drop(e *entity) {
	e.phase = idle
	if e.fact.Life == Gone {
		c.forget(e)
		return
	}
	c.settle(e)
}

// moved notes that a volume has been attached or detached here.
func (c *Core) moved(e *entity) {
	if e.fact.Key.Kind.Storage() == Volume && e.fact.Key.Host == c.options.Host {
		c.deviceChanged(e.fact.Key.ID)
	}
}

// adopt takes in the attachment that came with a creation: it has only to be
// recorded. One that is being given up is undone.
func (c *Core) adopt(source Source, r *Result) {
	e := c.attachedAlong(source, r)
	if e.underway() {
		e.orphan = e.op != Attach
		return
	}
	c.refresh(e)
	e.orphan = false
	e.op = Attach
	e.result = &Result{Info: r.AttachedInfo}
	c.publish(e)
}

// attachedAlong returns the record of the attachment that came with a creation.
func (c *Core) attachedAlong(source Source, r *Result) *entity {
	e := c.entity(r.Attached)
	e.fact.Source = source
	e.fact.Host = r.Attached.Host
	e.fact.ID = r.ID
	c.hold(e)
	return e
}
