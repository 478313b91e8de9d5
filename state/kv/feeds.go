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

// Changes are the effects of one or several transactions on keys, each key once and in order.
// Stores build them to publish to [Feeds], and must add keys in order.
type Changes []change

// change is the effect on one key.
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

// Put records that the key was put, and whether it existed before.
func (c *Changes) Put(key string, existed bool) {
	if existed {
		*c = append(*c, change{key, updated})
	} else {
		*c = append(*c, change{key, created})
	}
}

// Delete records that the key, which existed before, was deleted.
func (c *Changes) Delete(key string) { *c = append(*c, change{key, deleted}) }

// merge returns the joint effect of before and after.
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

// combine returns the joint effect of both changes on the key, or false if they cancel out.
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

// Feeds manages the feeds of a store whose transactions all pass through this process. The
// zero value has no feeds. Its methods are safe for concurrent use.
type Feeds struct {
	mu sync.Mutex
	// err is the error that has ended all feeds, or nil.
	err error

	// byPrefix groups feeds by prefix, so that publishing costs one lookup for each prefix of
	// the changed keys, however many feeds there are.
	byPrefix map[string]map[*localFeed]struct{}
}

// Add returns a new feed that begins with the given changes. The store must make sure that no
// transaction is committed or published between reading them and the return of Add.
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

// Publish reports a committed transaction to the feeds. The store calls it in the order of its
// transactions.
func (f *Feeds) Publish(changes Changes) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.publish("", changes)
}

// publish reports changes of keys that begin with prefix to the feeds of that prefix and of
// all longer ones.
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
		// Keys with a common prefix are adjacent.
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

// Fail ends all feeds, and any later Add, with the error. Only the first call has an effect.
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
	// pending holds the changes that have not been taken, oldest first. Each element is more
	// than twice as long as the next, so that merging is cheap however many small changes
	// arrive.
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
	// Clone, so that the feed does not retain the whole transaction.
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

// signal does not block: a signal that has not been received yet covers this one too.
func (f *localFeed) signal() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}
