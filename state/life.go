package state

import (
	"fmt"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

// The rules of life are functions on one instance. They read no store and no clock, so that
// tests can drive them through any history.

// atLeastDying returns Dying for Alive, and other values as they are.
func atLeastDying(l life.Value) life.Value {
	if l == life.Alive {
		return life.Dying
	}
	return l
}

// top returns the entity that attaching and detaching begins with: the filesystem, or the
// volume if there is no filesystem.
func (i *instance) top() *entity {
	if i.Filesystem != nil {
		return i.Filesystem
	}
	return i.Volume
}

// attach attaches the instance to the machine, in the given generation of the state.
func (i *instance) attach(machine machineTag, generation uint64, now time.Time) error {
	if i.Life != life.Alive {
		return errors.NewNotValid(nil, "it is being removed")
	}
	for _, e := range i.entities() {
		if scope := e.Tag.scope(); scope != environScope && scope != string(machine) {
			return errors.NewNotValid(nil, e.Tag.String()+" cannot leave its machine")
		}
	}
	for _, e := range i.entities() {
		if e.Life != life.Alive {
			return errors.NewNotYetAvailable(nil, e.Tag.String()+" is still leaving its machine: try again when it has")
		}
		if a := e.Attachment; a != nil && a.detaching() {
			return errors.NewNotYetAvailable(nil, "it is still being detached from "+a.Machine.String()+": try again when it is detached")
		}
	}
	if a := i.top().Attachment; a != nil {
		if a.Machine != machine {
			return errors.NewAlreadyExists(nil, "it is attached to "+a.Machine.String()+": detach it first")
		}
		return nil
	}
	for _, e := range i.entities() {
		e.Attachment = &attachment{Machine: machine, Life: life.Alive, Attempted: e.mayBeAttached(generation)}
		if e.Info == nil {
			e.Status.set(status.Pending, "", now)
		} else {
			e.Status.set(status.Attaching, "", now)
		}
	}
	return nil
}

// resize sets the wanted size of the instance, in MiB. It may be less than the last request,
// which may be more than the provider can supply, but not less than the provisioned size.
func (i *instance) resize(size uint64) error {
	least := i.Size
	if info := i.top().Info; info != nil && info.Size != 0 {
		least = min(least, info.Size)
	}
	switch {
	case i.Life != life.Alive:
		return errors.NewNotValid(nil, "it is being removed")
	case size < least:
		return errors.NewNotValid(nil, fmt.Sprintf(
			"it has %d MiB and cannot shrink to %d MiB: add smaller storage, copy the data to it, and remove this storage",
			least, size))
	}
	i.Size = size
	return nil
}

// mayBeAttached reports whether the entity may be attached although the state does not record
// it: the state's knowledge is of an older generation, and the entity was attached after the
// backup, or the attachment was lost with the state.
func (e *entity) mayBeAttached(generation uint64) bool {
	return e.Attachment == nil && (e.Info != nil && e.AttachmentGeneration < generation || e.mayExist(generation))
}

// mayExist reports whether the entity may have been made although the state does not record
// it: it was requested in an older generation, and made after the backup.
func (e *entity) mayExist(generation uint64) bool {
	return e.Info == nil && e.Generation < generation
}

// assumeAttempted makes workers look for an entity that may have been made. It records the
// attempt as ended, since no worker is making the entity.
func (e *entity) assumeAttempted() {
	if !e.Attempted {
		e.Attempted, e.AttemptEnded = true, true
	}
}

// assumeAttached makes workers look for entities that may have been made, and attaches
// entities that may be attached, so that they are detached. It does not attach an entity that
// can leave its machine, because the machine is not known.
func (i *instance) assumeAttached(generation uint64) {
	if i.Life != life.Alive {
		return
	}
	machine := environScope
	for _, e := range i.entities() {
		if e.mayExist(generation) {
			e.assumeAttempted()
		}
		if scope := e.Tag.scope(); scope != environScope {
			machine = scope
		}
	}
	if machine == environScope {
		return
	}
	for _, e := range i.entities() { // the volume first
		if a := e.Attachment; a != nil && a.Info == nil && e.mayExist(generation) {
			a.Attempted = true
		}
		on := e == i.Filesystem && i.Volume != nil
		if e.mayBeAttached(generation) && !(on && i.Volume.Attachment == nil) {
			e.Attachment = &attachment{Machine: machineTag(machine), Life: life.Alive, Attempted: true}
		}
	}
}

// detaching reports whether the attachment is being detached.
func (a *attachment) detaching() bool {
	return a.Life != life.Alive || a.Plan != nil && a.Plan.Life != life.Alive
}

// beginDetach begins to detach the entity from its machine. A plan is undone first.
func (e *entity) beginDetach(now time.Time) {
	a := e.Attachment
	if a == nil || a.detaching() {
		return
	}
	if a.Plan != nil {
		a.Plan.Life, a.Plan.Status = life.Dying, nil
	} else {
		a.Life = life.Dying
	}
	e.Status.set(status.Detaching, "", now)
}

// plan returns what the entity's machine has to do to attach it, or nil if there is nothing to
// do.
func (e *entity) plan() *attachmentPlan {
	if e.Attachment == nil {
		return nil
	}
	return e.Attachment.Plan
}

// removePlan removes a plan that the machine has undone.
func (e *entity) removePlan() error {
	if e.Attachment.Plan.Life == life.Alive {
		return errors.NewNotValid(nil, "it is not being detached")
	}
	e.Attachment.Plan, e.Attachment.Life = nil, life.Dying
	return nil
}

// removeAttachment removes an attachment that a worker has undone.
func (e *entity) removeAttachment(now time.Time) error {
	if e.Attachment.Life == life.Alive {
		return errors.NewNotValid(nil, "it is not being detached")
	}
	e.Attachment = nil
	if e.Status.Status != status.Error {
		e.Status.set(status.Detached, "", now)
	}
	return nil
}

// remove removes an entity that a worker has destroyed or released.
func (i *instance) remove(e *entity) error {
	switch {
	case e.Attachment != nil:
		return &params.Error{Message: "it is attached to " + e.Attachment.Machine.String(), Code: params.CodeStorageAttached}
	case e.Life != life.Dead:
		return errors.NewNotValid(nil, "it is "+string(e.Life)+", not dead")
	case e == i.Filesystem:
		i.Filesystem = nil
	default:
		i.Volume = nil
	}
	return nil
}

// mayMake reports whether a worker may set out to make the entity. It may make a filesystem on
// a volume only while the volume stays attached.
func (i *instance) mayMake(e *entity) bool {
	return e != i.Filesystem || i.Volume == nil || e.Info != nil || i.Volume.Attachment != nil && !i.Volume.Attachment.detaching()
}

// beingMade reports whether a worker may be making the entity, even if it is dead: the worker
// may not know that yet.
func (e *entity) beingMade() bool { return e.Attempted && !e.AttemptEnded && e.Info == nil }

// settle moves the lives of the instance and its parts as far as the rules allow. It is
// applied after every change.
func (i *instance) settle(now time.Time) {
	if i.Life != life.Alive {
		for _, e := range i.entities() {
			e.Life = atLeastDying(e.Life)
		}
		if top := i.top(); top != nil {
			top.beginDetach(now)
		}
	}
	if i.Volume != nil && i.Filesystem != nil && i.Filesystem.Attachment == nil && !i.Filesystem.beingMade() {
		i.Volume.beginDetach(now)
	}
	for _, e := range i.entities() {
		backing := e == i.Volume && i.Filesystem != nil
		if e.Life == life.Dying && e.Attachment == nil && !backing {
			e.Life = life.Dead
			e.Status.set(status.Destroying, "", now)
		}
	}
}
