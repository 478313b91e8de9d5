// Package kv is what the durable model stands on: an ordered map from string keys
// to values, changed by transactions and watched by prefix.
//
// The interface is narrow, so that an embedded file and a cluster serve alike. A
// transaction reads and writes keys that it names, and nothing else: scans are for
// snapshots, and what has to be found inside a transaction has an index key. Package
// kvtest has the suite that every implementation passes, boltkv the embedded
// implementation.
//
// It is no place for large values, nor for what changes many times a second: every
// transaction is made durable before it returns.
package kv

import "github.com/juju/errors"

// Store is an ordered map that survives its process. Its methods are safe for
// concurrent use. They must not be called from within a transaction or snapshot of
// the same store.
type Store interface {
	// Update runs fn in a transaction, and commits unless fn returns an error,
	// which Update then returns as it is. When Update returns nil the changes are
	// durable. Transactions behave as if they ran one after the other. fn may run
	// more than once: only its last run counts.
	//
	// When Update returns another error than fn's, nothing has changed, unless that error
	// satisfies errors.Is(err, [ErrUnknown]).
	Update(fn func(Tx) error) error

	// View runs fn on the store as it was between two transactions, and returns
	// fn's error as it is. All that it shows is durable.
	View(fn func(Snapshot) error) error

	// Watch follows the keys that begin with prefix, which is empty or ends in a
	// slash.
	Watch(prefix string, from Start) (Feed, error)

	// Close ends the store and its feeds, with [ErrClosed]. It waits for transactions
	// and snapshots.
	Close() error
}

// SpaceChecker is an optional capability of a [Store] on a disk that can be full.
type SpaceChecker interface {
	// CheckSpace returns an error unless the store can grow. It is called before what
	// makes something: other transactions, which change and remove what is there, are
	// not refused, and use the disk space that the store has kept for them. It is not
	// called from within a transaction. An error for the lack of space satisfies
	// errors.Is(err, syscall.ENOSPC), and says where how much is missing.
	CheckSpace() error
}

// ErrUnknown is the kind of the error of an Update whose transaction may or may not have
// been committed: the store cannot tell, for its disk has failed or its server does not
// answer. What has become of the transaction is what View shows next. Until the store
// knows, nobody sees the transaction: View, Watch and Update try to find out, and wait or
// fail. Feeds tell of it once it is known to be committed.
const ErrUnknown = errors.ConstError("the outcome of the transaction is not known")

// ErrClosed is the error of what is asked of a closed store.
const ErrClosed = errors.ConstError("store is closed")

// Reader reads single keys.
type Reader interface {
	// Get returns the value of the key, or nil if the key is not there. The value is
	// valid until the transaction or snapshot ends, and not to be written to.
	Get(key string) ([]byte, error)
}

// Tx is a transaction. It sees its own changes. It is used by one goroutine, until
// the function that it was given to returns.
type Tx interface {
	Reader

	// Put sets the value of the key, which is not empty. The store keeps the slice,
	// which is not written to any more.
	Put(key string, value []byte) error

	// Delete removes the key. One that is not there is no error.
	Delete(key string) error
}

// Snapshot is the store at one moment. It is used by one goroutine, until the
// function that it was given to returns.
type Snapshot interface {
	Reader

	// Scan calls fn for each key that begins with prefix, in bytewise order. An
	// error of fn ends the scan and is returned as it is. The value is as in Get.
	Scan(prefix string, fn func(key string, value []byte) error) error
}

// Start is where a feed begins.
type Start int

const (
	// FromNow feeds what is changed after Watch has returned.
	FromNow Start = iota
	// FromScratch feeds first all keys that there are, as if each had just been
	// put, and then what is changed.
	FromScratch
)

// Feed tells which keys committed transactions have changed: when Update has returned nil,
// Take has its keys. What its reader does
// not take is merged, so a feed costs no more than one entry for each key, however
// slow the reader is. Every feed is closed by who asked for it.
type Feed interface {
	// Changed receives when Take may have something to return, or an error.
	Changed() <-chan struct{}

	// Take returns the keys that were put or deleted since the last Take, each
	// once, in bytewise order. A key that was put for the first time and deleted
	// again in between is not among them: nobody has seen it. The keys of one
	// transaction are never split. The error says that the feed has failed, and
	// stays.
	Take() ([]string, error)

	// Close ends the feed. It may be called more than once.
	Close()
}
