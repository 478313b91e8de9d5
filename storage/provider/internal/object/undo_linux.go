package object

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// Creation is the creation of one object, which may fail.
type Creation struct {
	call *Call
	id   string
	// before is what there was of it.
	before remains
}

// remains is what there is of an object before it is made.
type remains int

const (
	// unknownRemains: its record cannot be read.
	unknownRemains remains = iota
	// noRemains: there is nothing, or nothing that anybody has.
	noRemains
	// incomplete: an earlier call has begun to make it, or to destroy it.
	incomplete
	// complete: it was made, or is being imported, and stays.
	complete
)

// BeginCreation looks at what there is of an object before anything is done to make it.
func (c *Call) BeginCreation(id string) Creation {
	var rec ownedRecord
	_, err := c.Load(id, &rec)
	before := unknownRemains
	switch {
	case errors.Is(err, errors.NotFound):
		before = noRemains
	case err != nil:
	case rec.Phase == PhaseReleased:
		before = noRemains
	case rec.Phase.Exists(), rec.Phase == PhaseImporting:
		before = complete
	default:
		before = incomplete
	}
	return Creation{call: c, id: id, before: before}
}

// Failed returns the error of the creation, which has failed, after destroying what it
// has made so far. It says whether nothing is left; what could not be destroyed is for
// the next call to finish, whether it is wanted then or not. What cannot be completed for
// good is left to be looked at.
func (cr Creation) Failed(failure error, destroy func() error) error {
	if cr.before == unknownRemains || cr.before == complete || cr.before == incomplete && storage.IsPermanent(failure) {
		return failure
	}
	var rec ownedRecord
	_, err := cr.call.Load(cr.id, &rec)
	switch {
	case errors.Is(err, errors.NotFound), err == nil && rec.Phase == PhaseReleased:
		// There is nothing, or nothing but what is nobody's.
		return storage.NothingMade(failure)
	case err == nil:
		err = destroy()
	}
	if err != nil {
		return storage.InProgress(errors.Annotatef(failure, "(undoing it: %v)", err))
	}
	return storage.NothingMade(failure)
}
