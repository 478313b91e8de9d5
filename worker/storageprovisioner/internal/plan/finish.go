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
	Subject
	Err error
	// Unknown says that the error is that of a whole call, so that its effect on the entity is
	// not known.
	Unknown bool
	// Untried says that the error occurred before the source was called: nothing has been
	// done.
	Untried bool
	// Deferred says that the operation has not been tried, because the source holds it back
	// until the entity changes.
	Deferred bool
	// ID is the provider's ID of what was created.
	ID string
	// Context is what the source needs to attach what was created, beside its ID.
	Context map[string]string
	// Info is what the state must record about what was created or attached.
	Info any
	// Size is the size of what was created or has grown, in MiB; of a plan that was carried out, that of
	// the volume.
	Size uint64
	// Remark is the source's remark to the user about what was attached.
	Remark string
	// MountPoint is where the provider mounted a filesystem that it attached; empty if it did
	// not say.
	MountPoint string
	// Attached is the attachment that the provider made along with a creation, or nil.
	Attached *Attached
	// Ownership is the source's answer about the owner.
	Ownership Ownership
}

// Attached is an attachment that a provider has made along with a creation.
type Attached struct {
	Key Key
	// Info is what the state must record about it.
	Info any
}

// Finished handles the end of a batch; results has a result for each item. The source is then
// free for another batch.
func (c *Core) Finished(source Source, results []Result) {
	c.queue(source).calls--
	if len(results) > 0 {
		c.growPublication(results)
	}
	for i := range results {
		e := c.findSubject(results[i].Subject)
		e.common.calls--
		if o := results[i].Ownership; o != NotAsked && c.has(e.storage) {
			c.ownership[e.storage] = o
		}
		c.finish(e, &results[i])
	}
}

// Overdue notes that a batch has been under way for taken, its time limit, and has been
// cancelled. Its operations stay under way until Finished is called.
func (c *Core) Overdue(batch Batch, taken time.Duration) {
	since := c.now.Add(-taken).UTC().Format(time.RFC3339)
	for i := range batch.Items {
		e := batch.Items[i].entity
		if e.phase != running || e.op != batch.Op || e.orphan || e.life == Gone {
			continue
		}
		e.work.ensureFailures().message = fmt.Sprintf("under way since %s, longer than its time limit of %s", since, taken)
		if e.op == Resize {
			c.reportGrowth(e, fmt.Sprintf("growing to %d MiB: %s", e.common.wanted, e.failed().message))
		} else {
			c.reportStatus(e, retryStatus[e.op], e.failureMessage())
		}
	}
}

// growPublication preallocates the lists for publishing results, which may be many.
func (c *Core) growPublication(results []Result) {
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
		c.finishCheck(e, r)
	case r.Err == nil && !r.Deferred:
		c.noteEarlierAttachment(e, r)
		e.unresolved = false
		e.madeNothing()
		e.work.item = nil
		c.succeed(e, r)
	case e.life == Gone && !e.mayStillRun(r.Err):
		c.forget(e)
	default:
		c.fail(e, r)
	}
	c.wake(e)
}

// finishCheck handles the result of checking an attachment. After a failed check the storage
// is attached again only if a user asks for that: it may have been detached for a reason, and
// its data may be lost.
func (c *Core) finishCheck(e *entity, r *Result) {
	w := e.work
	w.item = nil
	switch {
	case e.life != Alive, c.CheckFailureReported(*r):
	case !e.flags.has(attachedHere):
		// It is to be attached again, since a user has asked for that during the check.
	case r.Err != nil && (r.Unknown || r.Untried || !storage.IsPermanent(r.Err)):
		// The check itself failed, and is repeated later.
		f := w.ensureFailures()
		f.message = r.Err.Error()
		f.attempts++
		f.due = c.now.Add(c.options.Retry.Delay(f.attempts))
		e.flags.set(checkDue, true)
	case r.Err != nil && e.flags.has(repairRequested):
		c.reattach(e)
	case r.Err != nil:
		e.flags.set(checkFailed, true)
		c.reportStatus(e, status.Error, r.Err.Error())
	case e.flags.has(checkFailed):
		e.flags.set(checkFailed, false)
		c.reportAttachment(e, statusAttached, e.storage.remark())
	}
	if r.Err == nil {
		e.flags.set(repairRequested, false)
	}
	c.finishWithoutRecord(e)
	c.wake(e.storage) // a filesystem grows only while nothing is done about its attachment
}

// CheckFailureReported reports whether a result is a failed check whose error is already the
// last reported status.
func (c *Core) CheckFailureReported(r Result) bool {
	e := c.findSubject(r.Subject)
	return e != nil && e.op == Check && e.flags.has(checkFailed) && r.Err != nil && e.common.lastStatus == statusOther && e.storage.lastMessage() == r.Err.Error()
}

// noteEarlierAttachment notes that an earlier attempt to create a volume may have attached it
// as well. A source that finds the volume there does not say whether it is attached.
func (c *Core) noteEarlierAttachment(e *entity, r *Result) {
	if e.op != Create || !e.mayHaveLeftover() || r.Attached != nil || e.host == nil {
		return
	}
	if a := e.common.attachments.find(VolumeAttachment, e.host.tag); a != nil {
		a.made = max(a.made, e.made)
	}
}

func (c *Core) succeed(e *entity, r *Result) {
	switch {
	case e.op == Create && r.Attached == nil:
		c.reportStatus(e, status.Attaching, "")
	case e.op == Create || e.op == Attach:
		c.reportAttachment(e, statusAttached, r.Remark)
	case e.op == Resize:
		c.reportGrowth(e, e.remark())
	case e.op == Detach:
		e.flags.set(attachedHere, false)
		if e.kind != Plan {
			// A volume whose plan is undone must still be detached.
			c.reportAttachment(e, statusDetached, "")
		}
		c.unhold(e)
		c.attachmentChanged(e)
	}
	if e.op == Create {
		e.id = r.ID
		c.setContext(e, r.Context)
		c.unhold(e)
	}
	switch {
	case e.makes() && (e.orphan || e.life == Gone):
		c.undo(e, r)
	case e.op == Resize && (e.life == Gone || e.made != recorded):
		// The state has removed the entity. If it has an entity with the same ID again, that
		// is another one, which has not grown.
		c.finishWithoutRecord(e)
	case e.orphan:
		c.requestRead(e)
		c.forget(e)
	default:
		e.work.result = r
		c.publish(e)
	}
}

// undo takes back what a result made, including the attachment, for an entity that the state
// no longer has.
func (c *Core) undo(e *entity, r *Result) {
	if r.Attached != nil {
		a := c.createdAttachment(e.queue, r)
		a.orphan = true
		if !a.busy() {
			c.removeOrphan(a)
		}
	}
	c.removeOrphan(e)
}

// fail handles an operation that has failed or has been deferred.
func (c *Core) fail(e *entity, r *Result) {
	e.phase = idle
	switch {
	case r.Deferred:
		e.stalled = deferred
	case e.makes() && storage.IsIncomplete(r.Err):
		e.stalled, e.unresolved = deferred, false
		e.madeNothing()
		e.work.ensureFailures().message = r.Err.Error()
	default:
		c.noteFailure(e, r)
	}
	c.noteAttemptEnd(e)
	if !e.unresolved {
		if e.op == Create {
			c.unhold(e)
		}
		same := reflect.DeepEqual(e.work.item.Args, e.work.args)
		if e.mustRepeatCreate() {
			same = e.work.item.Repeat
		}
		if e.outdated || !same {
			// The next attempt would not use what this one used.
			c.refresh(e)
		}
		if !e.mayHaveLeftover() {
			e.work.item = nil
		}
	}
	if item := e.work.item; item != nil {
		// Keep a copy of the item, so that the batch can be freed.
		kept := *item
		e.work.item = &kept
	}
	c.settle(e)
}

func (c *Core) noteFailure(e *entity, r *Result) {
	f := e.work.ensureFailures()
	f.message = r.Err.Error()
	wasUnresolved := e.unresolved
	e.unresolved = e.mayStillRun(r.Err)
	var delay time.Duration
	quick := errors.Is(r.Err, storage.ErrTransient) && !e.unresolved && !isFinal(r.Err)
	if quick {
		delay, quick = c.options.Retry.delayTransient(f.transient + 1)
	}
	granted := f.granted
	f.granted = false
	if quick {
		f.transient++
	} else {
		if !granted {
			f.attempts++
		}
		delay = c.options.Retry.Delay(f.attempts)
	}
	switch {
	case e.unresolved:
	case isFinal(r.Err):
		e.stalled = givenUp
	case !quick && c.options.Retry.exhausted(e.op, f.attempts):
		e.stalled = givenUp
		f.message = fmt.Sprintf("%s (gave up after %d attempts)", f.message, f.attempts)
	}
	if e.makes() && !r.Untried {
		c.noteMade(e, r, wasUnresolved)
	}
	if e.stalled == notStalled {
		f.due = c.now.Add(delay)
	}
	switch {
	case errors.Is(r.Err, storage.ErrIgnored), granted && e.givenUpReported():
	case e.op == Resize:
		c.reportGrowth(e, e.atRestMessage())
	case e.stalled != notStalled:
		c.reportStatus(e, status.Error, e.failureMessage())
	default:
		c.reportStatus(e, retryStatus[e.op], e.failureMessage())
	}
}

// noteMade notes whether a failed attempt to make something may have left anything. If the
// state remembers attempts, the attempt may have, unless the source says that it has not. If
// the state does not, there are only two reasons to look for leftovers: the whole call failed,
// or the attempt may have been going on until this failure.
func (c *Core) noteMade(e *entity, r *Result, wasUnresolved bool) {
	refused := e.op == Create && storage.IsRefused(r.Err)
	switch {
	case refused && !wasUnresolved:
		// This attempt made nothing; that says nothing about earlier ones.
	case refused:
		e.made = max(e.made, unknownMade)
	case storage.IsNothingMade(r.Err), e.op == Create && isFinal(r.Err):
		// A creation that fails for good says the same of the attempts before it.
		e.madeNothing()
	case isFinal(r.Err):
		// As with a refusal.
	case r.Unknown, wasUnresolved && !e.unresolved:
		e.made = max(e.made, unknownMade)
	case c.options.Attempts && !e.unresolved:
		e.made = max(e.made, maybeMade)
	}
}

// retryStatus is the status of an entity whose operation is tried again.
var retryStatus = [ops]status.Status{
	Destroy: status.Error,
	Create:  status.Pending,
	Detach:  status.Detaching,
	Attach:  status.Attaching,
}

// failureMessage returns the message of the last failure. It names the operation if the status
// does not.
func (e *entity) failureMessage() string {
	switch {
	case e.op != Destroy:
		return e.failed().message
	case e.kind == Filesystem:
		return "removing filesystem: " + e.failed().message
	case e.release:
		return "releasing volume: " + e.failed().message
	}
	return "destroying volume: " + e.failed().message
}

// mayStillRun reports whether the entity's operation may be going on after an error. Once that
// is so, only an error that says that the operation has ended changes it, with two exceptions:
// any failure ends a resize, which leaves nothing behind, and any failure ends an operation on
// a volume whose device is gone, so that the entity can be removed.
func (e *entity) mayStillRun(err error) bool {
	ended := isFinal(err) || storage.IsNothingMade(err) || storage.IsRefused(err)
	return MayStillRun(err) || e.unresolved && !ended && e.op != Resize && !e.lostDevice()
}

// lostDevice reports whether the entity has a backing device that is not known, because it has
// gone since the operation began.
func (e *entity) lostDevice() bool {
	d := e.heldBacking
	if d == nil {
		d = e.backing
	}
	return d != nil && !d.known
}

// MayStillRun reports whether an operation with this error may be going on.
func MayStillRun(err error) bool {
	if storage.IsNothingMade(err) || storage.IsRefused(err) {
		return false
	}
	return errors.Is(err, storage.ErrInProgress) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// isFinal reports whether an error means that the operation has ended and that repeating it
// does not help.
func isFinal(err error) bool {
	return errors.Is(err, storage.ErrIgnored) || storage.IsPermanent(err)
}

// makes reports whether the entity's operation makes or attaches something.
func (e *entity) makes() bool {
	return e.op == Create || e.op == Attach
}

// records reports whether the entity's operation ends with a record in the state, rather than
// a removal.
func (e *entity) records() bool {
	return e.makes() || e.op == Resize
}

// publish adds an entity's result to the next publication.
func (c *Core) publish(e *entity) {
	e.phase = publishing
	if e.records() {
		c.out.Publish.Records = append(c.out.Publish.Records, Record{e.subject(), e.work.result.Info})
	} else {
		c.out.Publish.Removals = append(c.out.Publish.Removals, e.subject())
	}
}

// Published handles the state's answer to the result of an entity. A result that the state
// refuses is kept and published again. If the state no longer has the entity, its removal is
// done, and what was made for it is undone.
func (c *Core) Published(s Subject, err error) {
	e := c.findSubject(s)
	missing := errors.Is(err, errors.NotFound)
	refused := err != nil && !missing
	// A removal is moot if the entity is alive: it is another one with the same ID, and stays.
	// A new size is moot if the entity is being removed.
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
		c.removeOrphan(e)
	case refused:
		c.finishWithoutRecord(e)
	case missing && e.makes():
		c.undo(e, r)
	case missing || !e.records():
		c.forget(e)
	default:
		c.finishRecorded(e, r)
	}
}

// finishRecorded ends an operation whose result the state has recorded.
func (c *Core) finishRecorded(e *entity, r *Result) {
	c.refresh(e)
	e.made = recorded
	e.flags.set(checkFailed, false)
	if r.Size > 0 && e.kind != Plan {
		e.common.size = r.Size
	}
	e.flags.set(attachedHere, e.op == Attach && !(e.flags.has(withoutUUID) && e.heldBacking != nil && e.heldBacking.hasUUID))
	if e.kind == Plan && e.op == Attach && r.Size < c.planned[e] {
		// The volume has grown since the plan began to be carried out.
		e.flags.set(attachedHere, false)
		c.requestRead(e) // clearWork discards the arguments
	}
	if e.kind == FilesystemAttachment && e.op == Attach && c.options.Mounts {
		c.noteMounted(e, r.MountPoint)
	}
	if e.known != neverRead && e.life != Alive {
		// How to remove the entity could not be read before the entity was recorded. Or the
		// state had removed the entity before, and has it again.
		c.requireRead(e)
	}
	if e.op == Create && e.common.wanted > e.common.size {
		// How to grow the entity could not be read before the entity was recorded either.
		c.requireRead(e)
	}
	if r.Attached != nil {
		c.adopt(e.queue, r)
	}
	c.attachmentChanged(e)
	c.settle(e)
	c.wake(e.storage)
}

// requireRead marks an entity to be read before anything else is done about it.
func (c *Core) requireRead(e *entity) {
	e.known = stale
	c.requestRead(e)
}

// finishWithoutRecord ends an operation that has nothing to record.
func (c *Core) finishWithoutRecord(e *entity) {
	e.phase = idle
	if e.life == Gone {
		c.forget(e)
		return
	}
	c.settle(e)
}

// attachmentChanged notes that a volume has been attached or detached here.
func (c *Core) attachmentChanged(e *entity) {
	if e.storage.kind == Volume && e.kind.Attachment() && e.host.tag == c.options.Host {
		c.deviceChanged(e.common.name)
	}
}

// adopt handles an attachment that came with a creation: it only has to be recorded. An
// attachment that is no longer wanted is undone.
func (c *Core) adopt(source *queue, r *Result) {
	e := c.createdAttachment(source, r)
	if e.underway() {
		e.orphan = e.op != Attach
		return
	}
	c.refresh(e)
	e.orphan = false
	e.op = Attach
	e.ensureWork().result = &Result{Info: r.Attached.Info}
	c.publish(e)
}

// createdAttachment returns the record of the attachment that came with a creation.
func (c *Core) createdAttachment(source *queue, r *Result) *entity {
	e := c.entity(r.Attached.Key)
	e.queue = source
	e.id = r.ID
	c.hold(e)
	return e
}
