// Package kv defines the store of the durable model: an ordered map from string keys to
// values, changed by transactions and watched by prefix.
//
// The interface is narrow, so that both an embedded file and a cluster can implement it. A
// transaction reads and writes only keys that it names: scans are for snapshots, and anything
// that a transaction must find has an index key. Package kvtest has the suite that every
// implementation must pass; package boltkv is the embedded implementation, and package etcdkv the
// one for several processes.
//
// A store is not meant for large values, nor for data that changes many times a second: every
// transaction is made durable before it returns.
package kv

import (
	"context"

	"github.com/juju/errors"
)

// Store is a durable ordered map. Its methods are safe for concurrent use. They must not be
// called from within a transaction or snapshot of the same store.
//
// Several processes can share a store in a cluster. Then a snapshot and a feed may lag behind
// the transactions of other processes, but never behind those of their own.
//
// When ctx ends, a method that waits returns an error that satisfies errors.Is(err, ctx.Err()),
// or in the case of Update [ErrUnknown].
type Store interface {
	// Update runs fn in a transaction, and commits unless fn returns an error, which Update
	// then returns unchanged. When Update returns nil, the changes are durable. Transactions
	// behave as if they ran one after the other. fn may run more than once: only its last run
	// counts.
	//
	// All that fn reads was true at the same moment, which is later than the call of Update: in
	// a shared store, an error of fn that rests on older data is discarded, and fn runs again.
	//
	// If Update returns an error other than fn's, nothing has changed, unless that error
	// satisfies errors.Is(err, [ErrUnknown]).
	Update(ctx context.Context, fn func(Tx) error) error

	// View runs fn on the store as it was between two transactions, and returns fn's error
	// unchanged. Everything that fn reads is durable. fn runs at most once.
	View(ctx context.Context, fn func(Snapshot) error) error

	// Watch returns a feed of the keys that begin with prefix, which must be empty or end in a
	// slash. ctx bounds the call, not the feed.
	Watch(ctx context.Context, prefix string, from Start) (Feed, error)

	// Close closes the store, and ends its feeds with [ErrClosed]. It waits for transactions
	// and snapshots.
	Close() error
}

// SpaceChecker is an optional capability of a [Store] on a disk that can be full.
type SpaceChecker interface {
	// CheckSpace returns an error unless the store can grow. Callers call it before a
	// transaction that adds something, and not from within one. Transactions that change or
	// remove what exists are not refused, and use the disk space that the store has reserved
	// for them. An error for lack of space satisfies errors.Is(err, syscall.ENOSPC), and says
	// where and how much is missing.
	CheckSpace() error
}

// Bounded is an optional capability of a [Store] whose transactions cannot be arbitrarily large.
type Bounded interface {
	// MaxKeys returns how many keys a transaction may read, and how many it may write.
	MaxKeys() int
}

// ErrUnknown is the error of an Update whose transaction may or may not have been committed:
// the store cannot know, because its disk has failed or its server does not answer. The next
// View shows the outcome. Until the store knows the outcome, the transaction is not visible:
// View, Watch and Update try to determine it, and wait or fail. Feeds report the transaction
// once it is known to be committed.
const ErrUnknown = errors.ConstError("the outcome of the transaction is not known")

// ErrClosed is the error of operations on a closed store.
const ErrClosed = errors.ConstError("store is closed")

// Reader reads single keys.
type Reader interface {
	// Get returns the value of the key, or nil if the key does not exist. The value is valid
	// until the transaction or snapshot ends, and must not be written to.
	Get(key string) ([]byte, error)
}

// Tx is a transaction. It sees its own changes. Only one goroutine may use it, and only until
// the function that it was passed to returns.
type Tx interface {
	Reader

	// Put sets the value of the key, which must not be empty. The store keeps the slice, so
	// the caller must not write to it any more.
	Put(key string, value []byte) error

	// Delete removes the key. Deleting a key that does not exist is not an error.
	Delete(key string) error
}

// Snapshot is the store at one moment. Only one goroutine may use it, and only until the
// function that it was passed to returns.
type Snapshot interface {
	Reader

	// Scan calls fn for each key that begins with prefix, in bytewise order. An error of fn
	// ends the scan and is returned unchanged. The value has the same validity as that of Get.
	Scan(prefix string, fn func(key string, value []byte) error) error
}

// Start says where a feed begins.
type Start int

const (
	// FromNow reports changes after Watch has returned.
	FromNow Start = iota
	// FromScratch reports first all existing keys, as if each had just been put, and then
	// changes.
	FromScratch
)

// Feed reports which keys committed transactions have changed: when Update has returned nil,
// Take returns its keys. Changes that the reader has not taken are merged, so a feed costs at
// most one entry for each key, however slow the reader is. The caller of Watch closes the
// feed.
type Feed interface {
	// Changed receives when Take may have something to return, or an error.
	Changed() <-chan struct{}

	// Take returns the keys that were put or deleted since the last Take, each once, in
	// bytewise order. It omits a key that was put for the first time and deleted again in
	// between, since the reader has not seen it. It never splits the keys of one transaction.
	// An error means that the feed has failed; every later Take returns it too.
	Take() ([]string, error)

	// Close ends the feed. It may be called more than once.
	Close()
}
