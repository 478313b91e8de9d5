package guard

import (
	"context"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// maxMessage is the length limit, in bytes, of a message from code outside the worker. The end
// of a longer message is cut off.
const maxMessage = 4 << 10

// sanitizedError is an error with a message other than its own.
type sanitizedError struct {
	error
	message string
}

func (e *sanitizedError) Error() string { return e.message }
func (e *sanitizedError) Unwrap() error { return e.error }

// SanitizeError returns an error from code outside the worker with a message that is valid
// UTF-8 of bounded length. It calls the methods by which the worker examines errors: one that
// panics does so here, where a guard catches it.
func SanitizeError(err error) error {
	if err == nil {
		return nil
	}
	for _, target := range []error{storage.ErrInProgress, storage.ErrIgnored, context.Canceled, context.DeadlineExceeded} {
		_ = errors.Is(err, target)
	}
	_ = storage.IsNothingMade(err)
	_ = storage.IsRefused(err)
	_ = storage.IsPermanent(err)
	message := err.Error()
	if short := Truncate(message); short != message {
		return &sanitizedError{err, short}
	}
	return err
}

// Truncate returns a message as valid UTF-8 of bounded length.
func Truncate(message string) string {
	return TruncateTo(message, maxMessage)
}

// TruncateTo returns a message as valid UTF-8 of at most limit bytes.
func TruncateTo(message string, limit int) string {
	if len(message) <= limit {
		return strings.ToValidUTF8(message, "?")
	}
	mark := fmt.Sprintf("… (%d bytes in all)", len(message))
	end := max(limit-len(mark), 0)
	for back := 0; back < utf8.UTFMax && end > 0 && !utf8.RuneStart(message[end]); back++ {
		end--
	}
	return strings.ToValidUTF8(message[:end], "?") + mark
}

// SingleLine returns a message as one line of a log, with everything escaped that could
// control a terminal.
func SingleLine(message string) string {
	message = Truncate(message)
	if strings.IndexFunc(message, unprintable) < 0 {
		return message
	}
	var b strings.Builder
	for _, r := range message {
		switch {
		case !unprintable(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// Logger is what the worker logs to.
type Logger interface {
	Tracef(message string, args ...any)
	Debugf(message string, args ...any)
	Warningf(message string, args ...any)
	Errorf(message string, args ...any)
}

// LineLogger logs each message to another logger as a single line.
type LineLogger struct{ To Logger }

// line is a message that is formatted only if it is logged.
type line struct {
	message string
	args    []any
}

func (l line) String() string { return SingleLine(fmt.Sprintf(l.message, l.args...)) }

// Tracef implements Logger.
func (l LineLogger) Tracef(message string, args ...any) {
	l.To.Tracef("%s", line{message, args})
}

// Debugf implements Logger.
func (l LineLogger) Debugf(message string, args ...any) {
	l.To.Debugf("%s", line{message, args})
}

// Warningf implements Logger.
func (l LineLogger) Warningf(message string, args ...any) {
	l.To.Warningf("%s", SingleLine(fmt.Sprintf(message, args...)))
}

// Errorf implements Logger.
func (l LineLogger) Errorf(message string, args ...any) {
	l.To.Errorf("%s", SingleLine(fmt.Sprintf(message, args...)))
}
