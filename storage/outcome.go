package storage

import "github.com/juju/errors"

// What the error of an operation means to the caller is told by these sentinels,
// found with errors.Is. Errors that satisfy errors.IsNotValid or
// errors.IsNotSupported are permanent too. All others are transient: the caller
// tries again later, with backoff.
//
// A provider marks an error with the functions of the same names, which keep the
// error and its text.
const (
	// ErrInProgress means that the operation goes on in the background. The
	// caller repeats the same call until it ends, and does not forget the
	// operation even if the entity is no longer wanted.
	//
	// Where the answer got lost, because the call as a whole failed or its caller was
	// killed, the caller does not know that anything goes on, and may ask for the
	// opposite next: to detach what is being attached. A provider brings the former
	// operation to its end, or gives it up, before it answers that.
	ErrInProgress = errors.ConstError("operation in progress")

	// ErrIgnored means that the entity does not belong to this provider. The
	// caller does not try again, and shows no error.
	ErrIgnored = errors.ConstError("operation ignored")

	// ErrPermanent means that the same call cannot succeed later. The caller
	// shows the error, and tries again only when something has changed.
	ErrPermanent = errors.ConstError("permanent failure")

	// ErrNothingMade means that the operation, a creation or an attachment, has ended,
	// and that nothing is there of what it was to make: neither this call nor one
	// before it has left anything, nor is one going on. The caller tries again with
	// backoff, and need not undo anything if the entity is no longer wanted. With any
	// other error that is neither permanent nor ignored, something may be left.
	ErrNothingMade = errors.ConstError("nothing made")

	// ErrIncomplete means of a creation or an attachment that its parameters lack something
	// which they are to have later. Nothing is there of what was to be made, as with
	// [ErrNothingMade]. The caller asks again when the entity changes, or when it reads
	// everything again, and shows no error.
	ErrIncomplete = errors.ConstError("parameters incomplete")

	// ErrTransient means that what is in the way passes by itself, as a rule within
	// moments: something is in use elsewhere, or a device has not appeared yet. The caller
	// tries again within a second, and then with growing delays.
	ErrTransient = errors.ConstError("cannot be done at the moment")
)

// InProgress marks err with [ErrInProgress]. It returns nil for nil.
func InProgress(err error) error {
	return errors.WithType(err, ErrInProgress)
}

// Ignored marks err with [ErrIgnored]. It returns nil for nil.
func Ignored(err error) error {
	return errors.WithType(err, ErrIgnored)
}

// Permanent marks err with [ErrPermanent]. It returns nil for nil.
func Permanent(err error) error {
	return errors.WithType(err, ErrPermanent)
}

// NothingMade marks err with [ErrNothingMade]. It returns nil for nil.
func NothingMade(err error) error {
	return errors.WithType(err, ErrNothingMade)
}

// Incomplete marks err with [ErrIncomplete]. It returns nil for nil.
func Incomplete(err error) error {
	return errors.WithType(err, ErrIncomplete)
}

// Transient marks err with [ErrTransient]. It returns nil for nil.
func Transient(err error) error {
	return errors.WithType(err, ErrTransient)
}

// IsNothingMade reports whether err says that its operation has ended and that nothing is
// there of what was to be made: it is marked with [ErrNothingMade] or [ErrIncomplete], and
// not as in progress.
func IsNothingMade(err error) bool {
	return (errors.Is(err, ErrNothingMade) || errors.Is(err, ErrIncomplete)) && !errors.Is(err, ErrInProgress)
}

// IsIncomplete reports whether err says that its operation lacks parameters: it is marked
// with [ErrIncomplete], and not as in progress.
func IsIncomplete(err error) bool {
	return errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrInProgress)
}

// IsPermanent reports whether repeating the call that returned err cannot help:
// err is marked with [ErrPermanent], or is "not valid" or "not supported". An
// operation marked as in progress, ignored or incomplete is not permanent, whatever
// the error that is marked.
func IsPermanent(err error) bool {
	if errors.Is(err, ErrInProgress) || errors.Is(err, ErrIgnored) || errors.Is(err, ErrIncomplete) {
		return false
	}
	return errors.Is(err, ErrPermanent) || errors.Is(err, errors.NotValid) || errors.Is(err, errors.NotSupported)
}
