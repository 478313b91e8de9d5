package csi

import (
	"context"
	"fmt"
	"strings"

	"github.com/juju/errors"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stowage-io/stowage/internal/run"
	"github.com/stowage-io/stowage/storage"
)

// outcome is what the code of a failed call says about the operation.
type outcome int

const (
	// ended: the operation has ended, and has made nothing. It is the outcome of all codes that the
	// table does not have.
	ended outcome = iota
	// goesOn: the operation may be going on. It is repeated until it ends.
	goesOn
	// unknown: the operation may have been carried out, or may be going on. It is repeated with
	// backoff.
	unknown
	// final: the operation has ended, and the same call cannot succeed later.
	final
	// gone: what the operation is about does not exist.
	gone
)

// outcomes has the outcome of each code. The CSI specification gives the meanings of the codes, and
// the external-provisioner of Kubernetes draws the same line between those after which a volume may
// exist and the others.
var outcomes = map[codes.Code]outcome{
	codes.Aborted:          goesOn,
	codes.Canceled:         goesOn,
	codes.DeadlineExceeded: goesOn,

	codes.ResourceExhausted: unknown,
	codes.Unavailable:       unknown,

	codes.AlreadyExists:   final,
	codes.InvalidArgument: final,
	codes.OutOfRange:      final,
	codes.Unimplemented:   final,

	codes.NotFound: gone,
}

// callError is a failed call of the driver.
type callError struct {
	method string
	code   codes.Code
	text   string
}

// Error implements error.
func (e *callError) Error() string {
	return fmt.Sprintf("%s: the driver says %s: %s", e.method, e.code, e.text)
}

// outcomeOf returns the outcome of a call that has failed. An error that is not the driver's means
// that it was not called.
func outcomeOf(err error) outcome {
	var failed *callError
	switch {
	case errors.As(err, &failed):
		return outcomes[failed.code]
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return goesOn
	}
	return ended
}

// mark marks the error of a call so that the caller of the source knows what it means.
func mark(err error) error {
	switch outcomeOf(err) {
	case goesOn:
		return storage.InProgress(err)
	case final:
		return storage.Permanent(err)
	case unknown:
		var failed *callError
		if errors.As(err, &failed) && failed.code == codes.Unavailable {
			return storage.Transient(err) // the driver is starting, or is restarted
		}
	}
	return err
}

// ignoreGone returns nil if the error says that what was to be undone does not exist.
func ignoreGone(err error) error {
	if err != nil && outcomeOf(err) == gone {
		return nil
	}
	return err
}

// maxMessage limits the length of a driver's message, in bytes.
const maxMessage = 1024

// failure returns the error of a call of the driver, without the secrets that it was made with.
func failure(ctx context.Context, method string, err error, secrets map[string]string) error {
	if ctx.Err() != nil {
		return errors.Annotate(ctx.Err(), method) // the caller ends the call, not the driver
	}
	said := status.Convert(err)
	return &callError{method, said.Code(), sanitize(said.Message(), secrets)}
}

// sanitize returns a text of the driver's, fit to be shown.
func sanitize(text string, secrets map[string]string) string {
	for _, secret := range secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "…")
		}
	}
	if text = run.Printable(text); len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	if text == "" {
		return "no reason given"
	}
	return text
}
