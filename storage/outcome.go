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
	ErrInProgress = errors.ConstError("operation in progress")

	// ErrIgnored means that the entity is none of this provider's. The caller
	// does not try again, and shows no error.
	ErrIgnored = errors.ConstError("operation ignored")

	// ErrPermanent means that the same call cannot succeed later. The caller
	// shows the error, and tries again only when something has changed.
	ErrPermanent = errors.ConstError("permanent failure")

	// ErrBusy means that all that is in the way is in use elsewhere, as a rule for
	// moments. The caller tries again within a second, and with growing delays then.
	ErrBusy = errors.ConstError("in use at the moment")
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

// Busy marks err with [ErrBusy]. It returns nil for nil.
func Busy(err error) error {
	return errors.WithType(err, ErrBusy)
}

// IsPermanent reports whether repeating the call that returned err cannot help:
// err is marked with [ErrPermanent], or is "not valid" or "not supported". An
// operation marked as in progress or ignored is not permanent, whatever the
// error beneath the mark.
func IsPermanent(err error) bool {
	if errors.Is(err, ErrInProgress) || errors.Is(err, ErrIgnored) {
		return false
	}
	return errors.Is(err, ErrPermanent) || errors.Is(err, errors.NotValid) || errors.Is(err, errors.NotSupported)
}
