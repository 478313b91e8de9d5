package state

import (
	"encoding/binary"
	"encoding/json"
	"time"

	"github.com/juju/errors"
)

// Records are kept in a form of their own: reading one takes a tenth of what it would
// as JSON, and nearly all that is asked of the state reads records. A record describes
// itself once, for both ways; what its description does not say the form does not
// have, so a change of a description is a change of [schemaVersion].

// coder writes a record, or reads one: every method does for what it points to what
// its coder is for. After something that cannot be read all else is empty.
type coder struct {
	reading bool
	// written is the record so far.
	written []byte
	// rest is what is still to be read. The texts of a record that was read are parts
	// of one string.
	rest string
	err  error
}

// coded is a record of type T, or a part of one.
type coded[T any] interface {
	*T
	// code goes through all that the record has, in the same order both ways.
	code(*coder)
}

func encode[T any, P coded[T]](record P) ([]byte, error) {
	c := coder{}
	record.code(&c)
	return c.written, c.err
}

func decode[T any, P coded[T]](data string) (record T, err error) {
	c := coder{reading: true, rest: data}
	P(&record).code(&c)
	if c.rest != "" {
		c.fail()
	}
	return record, c.err
}

const errUnreadable = errors.ConstError("the record is damaged")

func (c *coder) fail() { c.rest, c.err = "", errUnreadable }

func (c *coder) number(n *uint64) {
	if !c.reading {
		c.written = binary.AppendUvarint(c.written, *n)
		return
	}
	*n = 0
	for shift := 0; len(c.rest) > 0 && shift < 64; shift += 7 {
		b := c.rest[0]
		c.rest = c.rest[1:]
		*n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return
		}
	}
	c.fail()
}

// counter is a record that is a number.
type counter uint64

func (n *counter) code(c *coder) { c.number((*uint64)(n)) }

func (c *coder) flag(b *bool) {
	var n uint64
	if *b {
		n = 1
	}
	c.number(&n)
	*b = n != 0
}

func text[S ~string](c *coder, s *S) {
	n := uint64(len(*s))
	c.number(&n)
	switch {
	case !c.reading:
		c.written = append(c.written, *s...)
	case n > uint64(len(c.rest)):
		c.fail()
		*s = ""
	default:
		*s, c.rest = S(c.rest[:n]), c.rest[n:]
	}
}

// time keeps the moment, and no place.
func (c *coder) time(t *time.Time) {
	seconds, nanoseconds := uint64(t.Unix()), uint64(t.Nanosecond())
	c.number(&seconds)
	c.number(&nanoseconds)
	if c.reading {
		*t = time.Unix(int64(seconds), int64(nanoseconds)).UTC()
	}
}

// attributes keeps values as JSON does. An empty map comes back as nil.
func attributes[V any](c *coder, values *map[string]V) {
	var encoded string
	if !c.reading && len(*values) > 0 {
		data, err := json.Marshal(*values)
		if err != nil {
			c.err = err
		}
		encoded = string(data)
	}
	text(c, &encoded)
	if c.reading {
		*values = nil
		if encoded != "" && json.Unmarshal([]byte(encoded), values) != nil {
			c.fail()
		}
	}
}

// optional is for what may be nil.
func optional[T any, P coded[T]](c *coder, part *P) {
	there := *part != nil
	c.flag(&there)
	if c.reading && there {
		*part = new(T)
	}
	if there {
		(*part).code(c)
	}
}

func list[T any, P coded[T]](c *coder, parts *[]T) {
	each(c, parts, func(c *coder, part *T) { P(part).code(c) })
}

func texts(c *coder, all *[]string) { each(c, all, text[string]) }

func each[T any](c *coder, parts *[]T, code func(*coder, *T)) {
	count := uint64(len(*parts))
	c.number(&count)
	switch {
	case c.reading && count > uint64(len(c.rest)): // each part takes a byte at least
		c.fail()
		return
	case c.reading && count > 0:
		*parts = make([]T, count)
	}
	for i := range *parts {
		code(c, &(*parts)[i])
	}
}
