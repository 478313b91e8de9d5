package csi

import (
	"context"
	"fmt"
	"syscall"

	"github.com/juju/errors"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
)

// fail returns an error with a code.
func fail(code codes.Code, format string, args ...any) error {
	return status.Error(code, fmt.Sprintf(format, args...))
}

// failure returns the error of a call that was doing something. An error that has a code keeps it.
func failure(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Internal
	switch {
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, errStopping), errors.Is(err, asked.ErrFailing), errors.Is(err, asked.ErrUnreachable):
		code = codes.Unavailable
	case errors.Is(err, asked.ErrNoSpace), errors.Is(err, asked.ErrElsewhere), errors.Is(err, syscall.ENOSPC):
		code = codes.ResourceExhausted
	case errors.Is(err, asked.ErrTooSmall):
		code = codes.OutOfRange
	case errors.Is(err, errors.AlreadyExists):
		code = codes.AlreadyExists
	case errors.Is(err, errors.NotYetAvailable):
		code = codes.Aborted
	case errors.Is(err, errors.NotFound):
		code = codes.NotFound
	case errors.Is(err, syscall.EBUSY), errors.Is(err, errors.NotSupported):
		code = codes.FailedPrecondition
	case errors.Is(err, errors.NotValid):
		code = codes.InvalidArgument
	}
	return fail(code, "%s: %v", fmt.Sprintf(format, args...), err)
}

// errStopping is the cause for which calls end when the server ends.
const errStopping = errors.ConstError("stowage is stopping: repeat the call when it runs again")

// noVolume is the error of a volume that does not exist.
func noVolume(id string) error {
	return fail(codes.NotFound, "volume %q does not exist here: list the volumes with ListVolumes or `stowage status`", id)
}
