package object

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// Creation is an attempt to create one object.
type Creation struct {
	call *Call
	id   string
	// before is what existed of the object before.
	before priorState
}

// priorState is what exists of an object before it is made.
type priorState int

const (
	// unknownState: the record of the object cannot be read.
	unknownState priorState = iota
	// notMade: nothing exists, or only an object that was released.
	notMade
	// partlyMade: an earlier call has begun to make or to destroy the object.
	partlyMade
	// completelyMade: the object was made, or is being imported, and must stay.
	completelyMade
)

// BeginCreation determines what exists of an object, before anything is done to make it.
func (c *Call) BeginCreation(id string) Creation {
	var rec ownedRecord
	_, err := c.Load(id, &rec)
	before := unknownState
	switch {
	case errors.Is(err, errors.NotFound):
		before = notMade
	case err != nil:
	case rec.Phase == PhaseReleased:
		before = notMade
	case rec.Phase.Exists(), rec.Phase == PhaseImporting:
		before = completelyMade
	default:
		before = partlyMade
	}
	return Creation{call: c, id: id, before: before}
}

// Failed destroys what a failed creation has made and returns its error, which says whether
// nothing is left. If destroying fails, the next call finishes it, whether the object is
// wanted then or not. Failed destroys nothing that was complete before, or whose state was
// unknown. It also keeps an incomplete object that can never be completed (a permanent
// failure), so that it can be examined.
func (cr Creation) Failed(failure error, destroy func() error) error {
	if cr.before == unknownState || cr.before == completelyMade || cr.before == partlyMade && storage.IsPermanent(failure) {
		return failure
	}
	var rec ownedRecord
	_, err := cr.call.Load(cr.id, &rec)
	switch {
	case errors.Is(err, errors.NotFound), err == nil && rec.Phase == PhaseReleased:
		// Nothing exists, or only an object without an owner.
		return storage.NothingMade(failure)
	case err == nil:
		err = destroy()
	}
	if err != nil {
		return storage.InProgress(errors.Annotatef(failure, "(undoing it: %v)", err))
	}
	return storage.NothingMade(failure)
}
