// Package etcdkv implements [kv.Store] in an etcd cluster, for several processes at once.
//
// A store keeps a copy of all its keys in memory, which a watch keeps up to date. Snapshots,
// feeds and the reads of transactions use the copy, so reading costs no round trip, and a store
// needs memory in proportion to its keys. A transaction is optimistic: it commits if none of the
// keys that it has read has changed, and runs again otherwise.
//
// The copy of a process that is cut off from the cluster is out of date. Snapshots and feeds
// then show the past, until the connection is back; [Store.Lag] says how old they may be.
// Transactions are never based on it.
//
// Do not use this package for one process on one machine: package boltkv needs no server, and
// its snapshots need no memory.
package etcdkv

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/google/btree"
	"github.com/juju/errors"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stowage-io/stowage/state/kv"
)

// Config is the configuration of a [Store].
type Config struct {
	// Client is the connection to the cluster, for example made by [Dial]. The caller keeps
	// ownership, and closes it after the Store.
	Client *clientv3.Client

	// Prefix is the beginning of all keys of the store in etcd. It ends in a slash.
	Prefix string

	// Name identifies the process. No other open store with the same Prefix may have it. A
	// process should use the same name whenever it opens the store, because each name that was
	// ever used costs 64 small keys.
	Name string

	// RequestTimeout is how long etcd may take to answer one request. Zero: 5 seconds.
	RequestTimeout time.Duration

	// LeaseTTL is the duration of leases, in whole seconds. Zero: 15 seconds.
	LeaseTTL time.Duration

	// SyncInterval is the time between two checks that the copy is complete. Zero: 1 second.
	SyncInterval time.Duration
}

// withDefaults returns the configuration with a value for each field that may be zero.
func (c Config) withDefaults() Config {
	c.RequestTimeout = cmp.Or(c.RequestTimeout, 5*time.Second)
	c.LeaseTTL = cmp.Or(c.LeaseTTL, 15*time.Second)
	c.SyncInterval = cmp.Or(c.SyncInterval, time.Second)
	return c
}

// Validate returns an error that satisfies errors.IsNotValid and names the field, if a field is
// missing or malformed.
func (c Config) Validate() error {
	switch {
	case c.Client == nil:
		return errors.NotValidf("etcd store: nil Client")
	case !strings.HasSuffix(c.Prefix, "/"):
		return errors.NotValidf("etcd store: Prefix %q, which does not end in a slash,", c.Prefix)
	case c.Name == "" || strings.Contains(c.Name, "/"):
		return errors.NotValidf("etcd store: Name %q, which is empty or has a slash,", c.Name)
	case c.RequestTimeout < 0:
		return errors.NotValidf("etcd store: RequestTimeout %v", c.RequestTimeout)
	case c.LeaseTTL < 0 || c.LeaseTTL%time.Second != 0:
		return errors.NotValidf("etcd store: LeaseTTL %v", c.LeaseTTL)
	case c.SyncInterval < 0:
		return errors.NotValidf("etcd store: SyncInterval %v", c.SyncInterval)
	}
	return nil
}

// Store implements [kv.Store], [kv.Bounded] and [kv.Leaser].
type Store struct {
	config Config
	client *clientv3.Client
	feeds  kv.Feeds

	// ctx ends when the store is closed or fails; its cause is then the error of all calls.
	// running counts goroutines and calls.
	ctx     context.Context
	cancel  context.CancelCauseFunc
	running sync.WaitGroup

	// slots holds the slots that no transaction uses.
	slots chan *slot

	// settling has a value while somebody determines the outcome of transactions.
	settling chan struct{}

	mu sync.Mutex
	// keys is the copy, as of revision. It had everything that was committed before current.
	keys     *btree.BTreeG[entry]
	revision int64
	current  time.Time
	// advanced is closed, and replaced, when revision increases.
	advanced chan struct{}
	// unsettled are the attempts whose outcome is not known.
	unsettled []*attempt
}

// entry is a key of the copy.
type entry struct {
	key      string
	value    []byte
	revision int64 // of the last change of the key
}

func newKeys() *btree.BTreeG[entry] {
	const degree = 32
	return btree.NewG(degree, func(a, b entry) bool { return a.key < b.key })
}

// Open opens the store with the prefix, which may have no keys yet. ctx bounds the call. It
// returns an error that satisfies errors.IsNotSupported and says what to set, if etcd does not
// accept transactions that are large enough.
func Open(ctx context.Context, config Config) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	s := &Store{
		config:   config.withDefaults(),
		client:   config.Client,
		slots:    make(chan *slot, slotCount),
		settling: make(chan struct{}, 1),
		keys:     newKeys(),
		advanced: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	err := s.checkLimits(ctx)
	if err == nil {
		err = s.openSlots(ctx)
	}
	if err == nil {
		err = s.load(ctx)
	}
	if err != nil {
		s.cancel(err)
		return nil, errors.Annotatef(err, "opening %s in etcd", config.Prefix)
	}
	s.running.Go(s.follow)
	s.running.Go(s.keepSyncing)
	return s, nil
}

// Close implements [kv.Store]. It interrupts calls that wait for etcd.
func (s *Store) Close() error {
	s.mu.Lock()
	s.cancel(kv.ErrClosed)
	s.mu.Unlock()
	s.feeds.Close()
	s.running.Wait()
	return nil
}

// View implements [kv.Store].
func (s *Store) View(ctx context.Context, fn func(kv.Snapshot) error) error {
	end, err := s.begin(&ctx)
	if err != nil {
		return err
	}
	defer end()
	keys, _ := s.snapshot()
	return fn(snapshot{keys})
}

// Watch implements [kv.Store].
func (s *Store) Watch(ctx context.Context, prefix string, from kv.Start) (kv.Feed, error) {
	end, err := s.begin(&ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	s.mu.Lock()
	defer s.mu.Unlock()
	var existing kv.Changes
	if from == kv.FromScratch {
		_ = snapshot{s.keys}.Scan(prefix, func(key string, _ []byte) error {
			existing.Put(key, false)
			return nil
		})
	}
	return s.feeds.Add(prefix, existing)
}

// MaxKeys implements [kv.Bounded].
func (s *Store) MaxKeys() int { return MaxTxnOps - reservedOps }

// reservedOps is the number of operations of a transaction that are not the caller's: those of
// its slot and of its lease.
const reservedOps = 2

// Lag returns how old the copy may be: it has everything that was committed before that time.
func (s *Store) Lag() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.current)
}

// Sync waits until the copy has everything that was committed before the call.
func (s *Store) Sync(ctx context.Context) error {
	end, err := s.begin(&ctx)
	if err != nil {
		return err
	}
	defer end()
	return s.sync(ctx)
}

// begin begins a call of the store, unless the store is closed or has failed, and makes sure
// that the copy has all transactions of the store. It replaces ctx by one that ends with the
// store, too. The caller calls end after the call.
func (s *Store) begin(ctx *context.Context) (end func(), err error) {
	s.mu.Lock()
	err = context.Cause(s.ctx)
	if err == nil {
		err = (*ctx).Err()
	}
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	s.running.Add(1)
	s.mu.Unlock()
	bound, cancel := context.WithCancel(*ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	end = func() { stop(); cancel(); s.running.Done() }
	if err := s.settle(bound); err != nil {
		end()
		return nil, err
	}
	*ctx = bound
	return end, nil
}

// snapshot returns the copy and its revision.
func (s *Store) snapshot() (*btree.BTreeG[entry], int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys.Clone(), s.revision
}

// await waits until the copy has the revision.
func (s *Store) await(ctx context.Context, revision int64) error {
	for {
		s.mu.Lock()
		have, advanced := s.revision, s.advanced
		s.mu.Unlock()
		if have >= revision {
			return nil
		}
		select {
		case <-advanced:
		case <-ctx.Done():
			return s.ended(ctx.Err())
		}
	}
}

// request returns the context of one request to etcd.
func (s *Store) request(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.config.RequestTimeout)
}

// ended returns why the store was closed or has failed, instead of an error that says that its
// context has ended.
func (s *Store) ended(err error) error {
	if s.ctx.Err() != nil && errors.Is(err, context.Canceled) && !errors.Is(err, kv.ErrUnknown) {
		return context.Cause(s.ctx)
	}
	return err
}

// fail ends all calls, and makes further ones fail. It returns their error, which is that of the
// first failure.
func (s *Store) fail(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil {
		s.cancel(err)
		s.feeds.Fail(err)
	}
	return context.Cause(s.ctx)
}

// advance wakes those who wait for a revision. The caller holds mu.
func (s *Store) advance() {
	close(s.advanced)
	s.advanced = make(chan struct{})
}

// In etcd, the store's own keys are beside the data.

func (s *Store) dataPrefix() string  { return s.config.Prefix + "data/" }
func (s *Store) slotPrefix() string  { return s.config.Prefix + "slot/" }
func (s *Store) leasePrefix() string { return s.config.Prefix + "lease/" }

// snapshot implements [kv.Snapshot].
type snapshot struct{ keys *btree.BTreeG[entry] }

func (s snapshot) Get(key string) ([]byte, error) {
	found, _ := s.keys.Get(entry{key: key})
	return found.value, nil
}

func (s snapshot) Scan(prefix string, fn func(key string, value []byte) error) (err error) {
	s.keys.AscendGreaterOrEqual(entry{key: prefix}, func(e entry) bool {
		if !strings.HasPrefix(e.key, prefix) {
			return false
		}
		err = fn(e.key, e.value)
		return err == nil
	})
	return err
}
