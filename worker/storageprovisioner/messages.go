package storageprovisioner

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// maxMessage is how long a message from code outside the worker may be, in bytes. Of a
// longer one the beginning is kept.
const maxMessage = 4 << 10

// sanitizedError is an error with another message than its own.
type sanitizedError struct {
	error
	message string
}

func (e *sanitizedError) Error() string { return e.message }
func (e *sanitizedError) Unwrap() error { return e.error }

// sanitizeError returns an error from code outside the worker with a message that is valid
// UTF-8 of at most maxMessage bytes. It calls the methods by which the worker examines the
// error: one that panics does so here, inside the shelter.
func sanitizeError(err error) error {
	if err == nil {
		return nil
	}
	plan.MayStillRun(err)
	storage.IsPermanent(err)
	message := err.Error()
	if short := truncate(message); short != message {
		return &sanitizedError{err, short}
	}
	return err
}

// truncate returns a message as valid UTF-8 of at most maxMessage bytes.
func truncate(message string) string {
	return truncateTo(message, maxMessage)
}

func truncateTo(message string, limit int) string {
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

// singleLine returns a message as one line of a log, without anything that a terminal acts on.
func singleLine(message string) string {
	message = truncate(message)
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

// lineLogger logs each message in one line.
type lineLogger struct{ to Logger }

func (l lineLogger) Tracef(message string, args ...any) {
	l.to.Tracef("%s", singleLine(fmt.Sprintf(message, args...)))
}

func (l lineLogger) Debugf(message string, args ...any) {
	l.to.Debugf("%s", singleLine(fmt.Sprintf(message, args...)))
}

func (l lineLogger) Warningf(message string, args ...any) {
	l.to.Warningf("%s", singleLine(fmt.Sprintf(message, args...)))
}

func (l lineLogger) Errorf(message string, args ...any) {
	l.to.Errorf("%s", singleLine(fmt.Sprintf(message, args...)))
}

// maxNamed is how many entities a message names, and how many have a message each.
const maxNamed = 10

// joinKeys names entities in a message, the first few of many.
func joinKeys(keys []plan.Key) string {
	var names []string
	for _, key := range keys[:min(len(keys), maxNamed)] {
		names = append(names, key.String())
	}
	if more := len(keys) - maxNamed; more > 0 {
		names[maxNamed-1] = fmt.Sprintf("%s and %d more", names[maxNamed-1], more)
	}
	return strings.Join(names, ", ")
}

// errorGroups are the errors of entities, grouped by message. Many entities with the same
// error share one line of the log: there may be thousands.
type errorGroups struct {
	errors      []string
	keysByError map[string][]plan.Key
}

func (g *errorGroups) add(key plan.Key, err error) {
	if g.keysByError == nil {
		g.keysByError = make(map[string][]plan.Key)
	}
	message := err.Error()
	if g.keysByError[message] == nil {
		g.errors = append(g.errors, message)
	}
	g.keysByError[message] = append(g.keysByError[message], key)
}

// each calls f with the names of entities, and what is wrong with them.
func (g *errorGroups) each(f func(of, err string)) {
	for _, err := range g.errors {
		keys := g.keysByError[err]
		if len(keys) > maxNamed {
			f(joinKeys(keys), err)
			continue
		}
		for _, key := range keys {
			f(key.String(), err)
		}
	}
}
