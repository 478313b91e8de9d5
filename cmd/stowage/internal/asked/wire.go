package asked

import (
	"syscall"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
)

// WireVolume returns a volume as it is sent to an agent, whose [Volume] it becomes by conversion.
func WireVolume(v Volume) params.AskedVolume { return params.AskedVolume(v) }

// wireErrors pairs the errors of this package that agents see with their codes on the wire.
var wireErrors = [...]struct {
	err  errors.ConstError
	code string
}{
	{ErrNoSpace, params.CodeNoSpace},
	{ErrElsewhere, params.CodeElsewhere},
}

// WireError returns an error as it is sent to an agent.
func WireError(err error) *params.Error {
	if errors.Is(err, syscall.ENOSPC) {
		err = errors.WithType(err, ErrNoSpace)
	}
	for _, known := range wireErrors {
		if errors.Is(err, known.err) {
			return &params.Error{Message: err.Error(), Code: known.code}
		}
	}
	return params.ServerError(err)
}

// ParseError is the inverse of [WireError].
func ParseError(wire *params.Error) error {
	if wire == nil {
		return nil
	}
	for _, known := range wireErrors {
		if wire.Code == known.code {
			return errors.WithType(wire, known.err)
		}
	}
	return params.TranslateWellKnownError(wire)
}
