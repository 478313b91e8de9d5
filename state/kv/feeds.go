package kv

import (
	"maps"
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

// Changes are what one or several transactions did to keys, for stores to feed
// [Feeds] with. Several changes of a key are merged into one.
type Changes map[string]change

type change int

const (
	created change = iota
	updated
	deleted
)

// Put notes that the key was put, and whether it was there before.
func (c Changes) Put(key string, existed bool) {
	if existed {
		c.merge(key, updated)
	} else {
		c.merge(key, created)
	}
}

// Delete notes that the key was deleted. It was there before.
func (c Changes) Delete(key string) {
	c.merge(key, deleted)
}

func (c Changes) merge(key string, next change) {
	before, ok := c[key]
	switch {
	case !ok:
		c[key] = next
	case before == created && next == deleted:
		delete(c, key)
	case before == created:
		// It is still new to whoever has not seen it.
	case before == deleted:
		c[key] = updated
	default:
		c[key] = next
	}
}

// Feeds are the feeds of a store whose transactions all pass through this process.
// The zero value has none. Its methods are safe for concurrent use.
type Feeds struct {
	mu     sync.Mutex
	closed bool

	// byPrefix lets a change cost one look-up for each slash in its key, however
	// many feeds there are.
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
		pending: make(Changes),
	}
	feed.add(existing)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, ErrClosed
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
	concerned := make(map[*localFeed]Changes)
	note := func(prefix, key string, c change) {
		for feed := range f.byPrefix[prefix] {
			if concerned[feed] == nil {
				concerned[feed] = make(Changes)
			}
			concerned[feed][key] = c
		}
	}
	for key, c := range changes {
		note("", key, c)
		for end, char := range key {
			if char == '/' {
				note(key[:end+1], key, c)
			}
		}
	}
	for feed, changes := range concerned {
		feed.add(changes)
	}
}

// Close ends all feeds with [ErrClosed].
func (f *Feeds) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, feeds := range f.byPrefix {
		for feed := range feeds {
			feed.fail(ErrClosed)
		}
	}
	f.byPrefix = nil
}

// localFeed implements [Feed].
type localFeed struct {
	feeds   *Feeds
	prefix  string
	changed chan struct{}

	mu      sync.Mutex
	pending Changes
	err     error
}

func (f *localFeed) Changed() <-chan struct{} { return f.changed }

func (f *localFeed) Take() ([]string, error) {
	f.mu.Lock()
	pending, err := f.pending, f.err
	f.pending = make(Changes)
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(pending)), nil
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
	for key, c := range changes {
		f.pending.merge(key, c)
	}
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
