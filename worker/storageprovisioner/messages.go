package storageprovisioner

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// longest is how long a message of somebody else's may be, in bytes. Of a longer one
// the beginning is kept.
const longest = 4 << 10

// told is an error whose message is not the one that it was given.
type told struct {
	error
	message string
}

func (t *told) Error() string { return t.message }
func (t *told) Unwrap() error { return t.error }

// heard returns an error of somebody else's as the worker tells it: it can be asked
// what it is, and says that in valid UTF-8 and no more than so many bytes. What panics
// when it is asked does so here.
func heard(err error) error {
	if err == nil {
		return nil
	}
	plan.MayGoOn(err)
	storage.IsPermanent(err)
	message := err.Error()
	if short := cut(message); short != message {
		return &told{err, short}
	}
	return err
}

// cut returns a message without what is too much of it, or not UTF-8.
func cut(message string) string {
	return cutAt(message, longest)
}

func cutAt(message string, most int) string {
	if len(message) <= most {
		return strings.ToValidUTF8(message, "?")
	}
	mark := fmt.Sprintf("… (%d bytes in all)", len(message))
	end := max(most-len(mark), 0)
	for back := 0; back < utf8.UTFMax && end > 0 && !utf8.RuneStart(message[end]); back++ {
		end--
	}
	return strings.ToValidUTF8(message[:end], "?") + mark
}

// line returns a message as one line of a log, without anything that a terminal acts on.
func line(message string) string {
	message = cut(message)
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

// lines is a logger that is told each message in one line.
type lines struct{ to Logger }

func (l lines) Tracef(message string, args ...any) {
	l.to.Tracef("%s", line(fmt.Sprintf(message, args...)))
}

func (l lines) Debugf(message string, args ...any) {
	l.to.Debugf("%s", line(fmt.Sprintf(message, args...)))
}

func (l lines) Warningf(message string, args ...any) {
	l.to.Warningf("%s", line(fmt.Sprintf(message, args...)))
}

func (l lines) Errorf(message string, args ...any) {
	l.to.Errorf("%s", line(fmt.Sprintf(message, args...)))
}

// mostNamed is how many entities a message names, and how many have a message each.
const mostNamed = 10

// someOf names entities in a message, the first few of many.
func someOf(keys []plan.Key) string {
	var names []string
	for _, key := range keys[:min(len(keys), mostNamed)] {
		names = append(names, key.String())
	}
	if more := len(keys) - mostNamed; more > 0 {
		names[mostNamed-1] = fmt.Sprintf("%s and %d more", names[mostNamed-1], more)
	}
	return strings.Join(names, ", ")
}

// complaints are what is wrong with entities. Many with which the same is wrong share a
// message: there may be thousands.
type complaints struct {
	errors []string
	about  map[string][]plan.Key
}

func (c *complaints) add(key plan.Key, err error) {
	if c.about == nil {
		c.about = make(map[string][]plan.Key)
	}
	message := err.Error()
	if c.about[message] == nil {
		c.errors = append(c.errors, message)
	}
	c.about[message] = append(c.about[message], key)
}

// each calls f with the names of entities, and what is wrong with them.
func (c *complaints) each(f func(of, err string)) {
	for _, err := range c.errors {
		keys := c.about[err]
		if len(keys) > mostNamed {
			f(someOf(keys), err)
			continue
		}
		for _, key := range keys {
			f(key.String(), err)
		}
	}
}
