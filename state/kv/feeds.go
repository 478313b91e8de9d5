package kv

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/juju/errors"
)

// CheckPrefix returns an error that satisfies errors.IsNotValid unless the prefix can
// be watched: it is empty, or ends in a slash.
func CheckPrefix(prefix string) error {
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		return errors.NewNotValid(nil, "prefix "+strconv.Quote(prefix)+" does not end in a slash")
	}
	return nil
}

// Changes are what one or several transactions did to keys, in the order of keys, each
// once: for stores to feed [Feeds] with. Keys are added in that order.
type Changes []change

// change is what became of a key.
type change struct {
	key string
	op  operation
}

type operation int

const (
	created operation = iota
	updated
	deleted
)

// Put notes that the key was put, and whether it was there before.
func (c *Changes) Put(key string, existed bool) {
	if existed {
		*c = append(*c, change{key, updated})
	} else {
		*c = append(*c, change{key, created})
	}
}

// Delete notes that the key was deleted. It was there before.
func (c *Changes) Delete(key string) { *c = append(*c, change{key, deleted}) }

// merge returns what changes and those after them did together.
func merge(before, after Changes) Changes {
	merged := make(Changes, 0, len(before)+len(after))
	for len(before) > 0 && len(after) > 0 {
		switch order := strings.Compare(before[0].key, after[0].key); {
		case order < 0:
			merged, before = append(merged, before[0]), before[1:]
		case order > 0:
			merged, after = append(merged, after[0]), after[1:]
		default:
			if c, ok := before[0].combine(after[0].op); ok {
				merged = append(merged, c)
			}
			before, after = before[1:], after[1:]
		}
	}
	return append(append(merged, before...), after...)
}

// combine returns what both changes did to the key, and false if that is nothing.
func (c change) combine(next operation) (change, bool) {
	switch {
	case c.op == created && next == deleted:
		return c, false
	case c.op == created:
		// The key is still new to a reader that has not seen it.
	case c.op == deleted:
		c.op = updated
	default:
		c.op = next
	}
	return c, true
}

// Feeds are the feeds of a store whose transactions all pass through this process.
// The zero value has none. Its methods are safe for concurrent use.
type Feeds struct {
	mu sync.Mutex
	// err is why there are no feeds any more.
	err error

	// byPrefix lets changes cost one look-up for each prefix that their keys have,
	// however many feeds there are.
	byPrefix map[string]map[*localFeed]struct{}
}

// Add returns a new feed that begins with the changes given. The store makes sure that
// no transaction is committed or published between reading those and Add's return.
func (f *Feeds) Add(prefix string, existing Changes) (Feed, error) {
	if err := CheckPrefix(prefix); err != nil {
		return nil, err
	}
	feed := &localFeed{
		feeds:   f,
		prefix:  prefix,
		changed: make(chan struct{}, 1),
	}
	feed.add(existing)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	if f.byPrefix == nil {
		f.byPrefix = make(map[string]map[*localFeed]struct{})
	}
	if f.byPrefix[prefix] == nil {
		f.byPrefix[prefix] = make(map[*localFeed]struct{})
	}
	f.byPrefix[prefix][feed] = struct{}{}
	return feed, nil
}

// Publish tells the feeds of a committed transaction. The store calls it in the order
// of its transactions.
func (f *Feeds) Publish(changes Changes) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.publish("", changes)
}

// publish tells the feeds of a prefix, and of all that are longer, of changes of keys
// that begin with it.
func (f *Feeds) publish(prefix string, changes Changes) {
	for feed := range f.byPrefix[prefix] {
		feed.add(changes)
	}
	for len(changes) > 0 {
		slash := strings.IndexByte(changes[0].key[len(prefix):], '/')
		if slash < 0 {
			changes = changes[1:]
			continue
		}
		// Keys with a prefix in common are beside each other.
		longer, n := changes[0].key[:len(prefix)+slash+1], 1
		for n < len(changes) && strings.HasPrefix(changes[n].key, longer) {
			n++
		}
		f.publish(longer, changes[:n])
		changes = changes[n:]
	}
}

// Close ends all feeds with [ErrClosed].
func (f *Feeds) Close() { f.Fail(ErrClosed) }

// Fail ends all feeds, and those that are asked for later, with the error. The first
// error stays.
func (f *Feeds) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return
	}
	f.err = err
	for _, feeds := range f.byPrefix {
		for feed := range feeds {
			feed.fail(err)
		}
	}
	f.byPrefix = nil
}

// localFeed implements [Feed].
type localFeed struct {
	feeds   *Feeds
	prefix  string
	changed chan struct{}

	mu sync.Mutex
	// pending is what has not been taken, oldest first. Each is more than twice as
	// long as the next: so however many small changes come, few are merged often.
	pending []Changes
	err     error
}

func (f *localFeed) Changed() <-chan struct{} { return f.changed }

func (f *localFeed) Take() ([]string, error) {
	f.mu.Lock()
	pending, err := f.pending, f.err
	f.pending = nil
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var all Changes
	for _, changes := range slices.Backward(pending) {
		all = merge(changes, all)
	}
	keys := make([]string, len(all))
	for i, c := range all {
		keys[i] = c.key
	}
	return keys, nil
}

func (f *localFeed) Close() {
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	delete(f.feeds.byPrefix[f.prefix], f)
	if len(f.feeds.byPrefix[f.prefix]) == 0 {
		delete(f.feeds.byPrefix, f.prefix)
	}
}

// add merges the changes of one transaction.
func (f *localFeed) add(changes Changes) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// What is kept does not keep the whole transaction.
	changes = slices.Clone(changes)
	last := len(f.pending) - 1
	for ; last >= 0 && len(f.pending[last]) <= 2*len(changes); last-- {
		changes = merge(f.pending[last], changes)
	}
	f.pending = append(f.pending[:last+1], changes)
	f.signal()
}

func (f *localFeed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
	f.signal()
}

// signal does not wait: a signal that nobody has received yet stands for this one
// too.
func (f *localFeed) signal() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}
