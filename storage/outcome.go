package storage

import "github.com/juju/errors"

// These sentinels, found with errors.Is, say what the error of an operation means to the
// caller. Errors that satisfy errors.IsNotValid or errors.IsNotSupported are permanent too.
// All others are temporary: the caller tries again later, with backoff.
//
// A provider marks an error with the functions of the same names, which keep the error and its
// text.
const (
	// ErrInProgress means that the operation continues in the background. The caller repeats
	// the same call until the operation ends, and keeps track of it even if the entity is no
	// longer wanted.
	//
	// If the caller never receives this answer, because the call as a whole failed or the
	// caller was killed, it does not know that an operation is running. It may then ask for
	// the opposite, for example to detach a volume that is being attached. The provider must
	// complete or abort the first operation before it answers the second request.
	ErrInProgress = errors.ConstError("operation in progress")

	// ErrIgnored means that the entity does not belong to this provider. The caller does not
	// try again, and does not report an error.
	ErrIgnored = errors.ConstError("operation ignored")

	// ErrPermanent means that the same call cannot succeed later. The caller reports the
	// error, and tries again only after something has changed.
	ErrPermanent = errors.ConstError("permanent failure")

	// ErrNothingMade means that a creation or an attachment has ended and that nothing of what
	// it was to make exists: no call, this one or an earlier one, has left anything behind or
	// is still running. The caller tries again with backoff, and need not undo anything if the
	// entity is no longer wanted. After any other error that is neither permanent nor ignored,
	// something may be left.
	ErrNothingMade = errors.ConstError("nothing made")

	// ErrRefused means that this call of a creation has ended and has made nothing, and that the
	// source does not know what earlier calls have made, because it keeps no records. If there were
	// any whose outcome is not known, the caller still looks for what they made before it removes
	// the entity. An error may be marked with [ErrPermanent] too.
	ErrRefused = errors.ConstError("creation refused")

	// ErrIncomplete means that a creation or an attachment lacks parameters that will be
	// available later. Nothing of what it was to make exists, as with [ErrNothingMade]. The
	// caller asks again when the entity changes, or when it reads everything again, and does
	// not report an error.
	ErrIncomplete = errors.ConstError("parameters incomplete")

	// ErrTransient means that the obstacle goes away by itself, usually within moments: for
	// example, something is in use elsewhere, or a device has not appeared yet. The caller
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

// Refused marks err with [ErrRefused]. It returns nil for nil.
func Refused(err error) error {
	return errors.WithType(err, ErrRefused)
}

// Incomplete marks err with [ErrIncomplete]. It returns nil for nil.
func Incomplete(err error) error {
	return errors.WithType(err, ErrIncomplete)
}

// Transient marks err with [ErrTransient]. It returns nil for nil.
func Transient(err error) error {
	return errors.WithType(err, ErrTransient)
}

// IsNothingMade reports whether err means that its operation has ended and that nothing of
// what it was to make exists: err is marked with [ErrNothingMade] or [ErrIncomplete], and not
// with [ErrInProgress].
func IsNothingMade(err error) bool {
	return (errors.Is(err, ErrNothingMade) || errors.Is(err, ErrIncomplete)) && !errors.Is(err, ErrInProgress)
}

// IsRefused reports whether err means that this call of a creation has ended and has made
// nothing: err is marked with [ErrRefused], and not with [ErrInProgress].
func IsRefused(err error) bool {
	return errors.Is(err, ErrRefused) && !errors.Is(err, ErrInProgress)
}

// IsIncomplete reports whether err means that its operation lacks parameters: err is marked
// with [ErrIncomplete], and not with [ErrInProgress].
func IsIncomplete(err error) bool {
	return errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrInProgress)
}

// IsPermanent reports whether repeating the call that returned err cannot help: err is marked
// with [ErrPermanent], or is "not valid" or "not supported". An error marked with
// [ErrInProgress], [ErrIgnored] or [ErrIncomplete] is not permanent, whatever error is marked.
func IsPermanent(err error) bool {
	if errors.Is(err, ErrInProgress) || errors.Is(err, ErrIgnored) || errors.Is(err, ErrIncomplete) {
		return false
	}
	return errors.Is(err, ErrPermanent) || errors.Is(err, errors.NotValid) || errors.Is(err, errors.NotSupported)
}
