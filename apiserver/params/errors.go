package params

import "github.com/juju/errors"

// Error is an error on the wire.
type Error struct {
	Message string         `json:"message"`
	Code    string         `json:"code"`
	Info    map[string]any `json:"info,omitempty"`
}

// Error implements error.
func (e Error) Error() string {
	return e.Message
}

// ErrorCode returns the error's code; see [ErrCode].
func (e Error) ErrorCode() string {
	return e.Code
}

// The codes of errors on the wire.
const (
	CodeNotFound        = "not found"
	CodeNotProvisioned  = "not provisioned"
	CodeUnauthorized    = "unauthorized access"
	CodeNotImplemented  = "not implemented"
	CodeNotSupported    = "not supported"
	CodeNotValid        = "not valid"
	CodeAlreadyExists   = "already exists"
	CodeTryAgain        = "try again"
	CodeStorageAttached = "storage is attached"
	CodeDead            = "dead"
	CodeStopped         = "stopped"
	CodeNoSpace         = "no space"
	CodeElsewhere       = "on another machine"
)

// ErrCode returns the code of the outermost error in err's chain that has a
// method ErrorCode() string, or the empty string.
func ErrCode(err error) string {
	type coder interface{ ErrorCode() string }
	if err == nil {
		return ""
	}
	if c, ok := err.(coder); ok {
		return c.ErrorCode()
	}
	var c coder
	if errors.As(err, &c) || errors.As(errors.Cause(err), &c) {
		return c.ErrorCode()
	}
	return ""
}

// IsCodeNotFound reports whether the error's code is [CodeNotFound].
func IsCodeNotFound(err error) bool { return ErrCode(err) == CodeNotFound }

// IsCodeNotProvisioned reports whether the error's code is [CodeNotProvisioned].
func IsCodeNotProvisioned(err error) bool { return ErrCode(err) == CodeNotProvisioned }

// IsCodeUnauthorized reports whether the error's code is [CodeUnauthorized].
func IsCodeUnauthorized(err error) bool { return ErrCode(err) == CodeUnauthorized }

// IsCodeNotImplemented reports whether the error's code is [CodeNotImplemented].
func IsCodeNotImplemented(err error) bool { return ErrCode(err) == CodeNotImplemented }

// IsCodeNotSupported reports whether the error's code is [CodeNotSupported].
func IsCodeNotSupported(err error) bool { return ErrCode(err) == CodeNotSupported }

// IsCodeNotValid reports whether the error's code is [CodeNotValid].
func IsCodeNotValid(err error) bool { return ErrCode(err) == CodeNotValid }

// IsCodeAlreadyExists reports whether the error's code is [CodeAlreadyExists].
func IsCodeAlreadyExists(err error) bool { return ErrCode(err) == CodeAlreadyExists }

// IsCodeTryAgain reports whether the error's code is [CodeTryAgain].
func IsCodeTryAgain(err error) bool { return ErrCode(err) == CodeTryAgain }

// IsCodeStorageAttached reports whether the error's code is
// [CodeStorageAttached].
func IsCodeStorageAttached(err error) bool { return ErrCode(err) == CodeStorageAttached }

// IsCodeDead reports whether the error's code is [CodeDead].
func IsCodeDead(err error) bool { return ErrCode(err) == CodeDead }

// IsCodeStopped reports whether the error's code is [CodeStopped].
func IsCodeStopped(err error) bool { return ErrCode(err) == CodeStopped }

// wellKnownErrors pairs the error kinds that cross the wire with their codes. A code without a
// kind has only its IsCode function.
var wellKnownErrors = [...]struct {
	kind errors.ConstError
	code string
}{
	{errors.NotFound, CodeNotFound},
	{errors.NotProvisioned, CodeNotProvisioned},
	{errors.Unauthorized, CodeUnauthorized},
	{errors.NotImplemented, CodeNotImplemented},
	{errors.NotSupported, CodeNotSupported},
	{errors.NotValid, CodeNotValid},
	{errors.AlreadyExists, CodeAlreadyExists},
	{errors.NotYetAvailable, CodeTryAgain},
}

// ServerError converts err to its form on the wire: nil for nil, a *Error unchanged, and
// otherwise the text of err with its code or the code of its kind.
func ServerError(err error) *Error {
	if err == nil {
		return nil
	}
	var wire *Error
	if errors.As(err, &wire) || errors.As(errors.Cause(err), &wire) {
		if wire.Message == err.Error() {
			return wire
		}
		return &Error{Message: err.Error(), Code: wire.Code, Info: wire.Info}
	}
	result := &Error{Message: err.Error(), Code: ErrCode(err)}
	if result.Code != "" {
		return result
	}
	for _, known := range wellKnownErrors {
		if errors.Is(err, known.kind) {
			result.Code = known.code
			break
		}
	}
	return result
}

// TranslateWellKnownError is the inverse of [ServerError]: if the error's code stands for a
// kind of juju/errors, it returns the error with that kind, so that errors.IsNotFound and the
// like hold. Text, code and cause stay the same. It returns all other errors unchanged.
func TranslateWellKnownError(err error) error {
	code := ErrCode(err)
	for _, known := range wellKnownErrors {
		if code == known.code {
			return errors.WithType(err, known.kind)
		}
	}
	return err
}

// ErrorResult is the result of one item of a bulk call that returns only errors.
type ErrorResult struct {
	Error *Error `json:"error,omitempty"`
}

// ErrorResults holds the results of a bulk call.
type ErrorResults struct {
	Results []ErrorResult `json:"results"`
}
