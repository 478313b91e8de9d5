package etcdkv

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/btree"
	"github.com/juju/errors"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stowage-io/stowage/state/kv"
)

// The copy follows etcd by a watch from the revision that it has. After a lost connection, the
// watch continues where it was. If etcd no longer has the changes since then (it was compacted),
// the copy is loaded again, and the difference is reported to the feeds, deletions included.

// pageSize is the number of keys that load reads in one request.
const pageSize = 1000

// retryPause is the time between two attempts to watch or to load.
const retryPause = 200 * time.Millisecond

// ErrRestored is the error of all calls of a store whose etcd was restored from a backup: what
// was read and committed before may be gone. Open the store again.
const ErrRestored = errors.ConstError("etcd was restored from a backup")

// wentBack is the error of a revision that is less than an earlier one.
func wentBack(revision, before int64) error {
	return errors.WithType(errors.Errorf("etcd is at revision %d, and was at %d before", revision, before), ErrRestored)
}

// load replaces the copy by the contents of etcd, and reports the difference to the feeds.
func (s *Store) load(ctx context.Context) error {
	asked := time.Now()
	keys, prefix, revision := newKeys(), s.dataPrefix(), int64(0)
	end := clientv3.GetPrefixRangeEnd(prefix)
	for from, more := prefix, true; more; {
		options := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(pageSize)}
		if revision > 0 {
			options = append(options, clientv3.WithRev(revision))
		}
		request, cancel := s.request(ctx)
		page, err := s.client.Get(request, from, options...)
		cancel()
		if err != nil {
			return errors.Annotate(err, "reading all keys")
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, pair := range page.Kvs {
			keys.ReplaceOrInsert(s.entry(pair))
			from = string(pair.Key) + "\x00"
		}
		more = page.More
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if revision < s.revision {
		return wentBack(revision, s.revision)
	}
	changes := difference(s.keys, keys)
	s.keys, s.revision, s.current = keys, revision, asked
	s.feeds.Publish(changes)
	s.advance()
	return nil
}

func (s *Store) entry(pair *mvccpb.KeyValue) entry {
	value := pair.Value
	if value == nil {
		value = []byte{}
	}
	return entry{strings.TrimPrefix(string(pair.Key), s.dataPrefix()), value, pair.ModRevision}
}

// difference returns the changes that lead from one copy to another.
func difference(before, after *btree.BTreeG[entry]) kv.Changes {
	var changes kv.Changes
	old := make([]entry, 0, before.Len())
	before.Ascend(func(e entry) bool { old = append(old, e); return true })
	after.Ascend(func(e entry) bool {
		for len(old) > 0 && old[0].key < e.key {
			changes.Delete(old[0].key)
			old = old[1:]
		}
		switch {
		case len(old) == 0 || old[0].key != e.key:
			changes.Put(e.key, false)
		default:
			if old[0].revision != e.revision {
				changes.Put(e.key, true)
			}
			old = old[1:]
		}
		return true
	})
	for _, e := range old {
		changes.Delete(e.key)
	}
	return changes
}

// follow keeps the copy up to date until the store is closed, or fails.
func (s *Store) follow() {
	for {
		err := s.watch()
		if errors.Is(err, rpctypes.ErrCompacted) {
			err = s.load(s.ctx)
		}
		if errors.Is(err, ErrRestored) {
			_ = s.fail(err)
			return
		}
		// The next attempt is the remedy of all other errors. Lag shows how long it takes.
		if !s.pause(retryPause) {
			return
		}
	}
}

// keepSyncing checks the copy until the store is closed or fails.
func (s *Store) keepSyncing() {
	for s.pause(s.config.SyncInterval) {
		request, cancel := s.request(s.ctx)
		_ = s.sync(request) // Lag shows the consequence
		cancel()
	}
}

// sync waits until the copy has everything that was committed before the call. Each transaction
// writes a slot, so the slot that was changed last has the revision to wait for. (The watch can
// also be asked for its progress, but etcd before 3.4.25 and 3.5.8 then claims to have sent what
// it has not.)
func (s *Store) sync(ctx context.Context) error {
	asked := time.Now()
	request, cancel := s.request(ctx)
	defer cancel()
	last, err := s.client.Get(request, s.slotPrefix(), clientv3.WithLastRev()...)
	if err != nil {
		return s.ended(errors.Annotate(err, "asking etcd for its last transaction"))
	}
	for _, slot := range last.Kvs {
		if err := s.await(request, slot.ModRevision); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Before(asked) {
		s.current = asked
	}
	return nil
}

// pause returns true after the duration, or false when the store is closed or fails.
func (s *Store) pause(d time.Duration) bool {
	select {
	case <-s.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// watch applies changes until the watch ends.
func (s *Store) watch() error {
	// A member that is cut off from the others ends the watch.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.ctx))
	defer cancel()
	s.mu.Lock()
	from := s.revision + 1
	s.mu.Unlock()
	changes := s.client.Watch(ctx, s.config.Prefix, clientv3.WithPrefix(), clientv3.WithRev(from))
	for response := range changes {
		if err := response.Err(); err != nil {
			return err
		}
		s.apply(response.Events)
	}
	return ctx.Err()
}

// apply applies the changes of one response of the watch, which has all changes of each of its
// revisions, those of slots and leases included.
func (s *Store) apply(events []*clientv3.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(events) > 0 {
		revision, n := events[0].Kv.ModRevision, 1
		for n < len(events) && events[n].Kv.ModRevision == revision {
			n++
		}
		s.applyRevision(events[:n])
		s.revision = revision
		events = events[n:]
	}
	s.advance()
}

// applyRevision applies the changes of one transaction.
func (s *Store) applyRevision(events []*clientv3.Event) {
	slices.SortFunc(events, func(a, b *clientv3.Event) int { return bytes.Compare(a.Kv.Key, b.Kv.Key) })
	prefix, changes := s.dataPrefix(), make(kv.Changes, 0, len(events))
	for _, event := range events {
		if !strings.HasPrefix(string(event.Kv.Key), prefix) {
			continue
		}
		e := s.entry(event.Kv)
		if event.Type == clientv3.EventTypeDelete {
			if _, existed := s.keys.Delete(e); existed {
				changes.Delete(e.key)
			}
			continue
		}
		_, existed := s.keys.ReplaceOrInsert(e)
		changes.Put(e.key, existed)
	}
	s.feeds.Publish(changes)
}
