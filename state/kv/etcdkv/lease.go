package etcdkv

import (
	"context"
	"time"

	"github.com/juju/errors"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stowage-io/stowage/state/kv"
)

// lease implements [kv.Lease]: a key that etcd deletes when it is not kept alive. The revision
// that created the key is the term, and a transaction with the lease compares it.
type lease struct {
	store    *Store
	key      string
	id       clientv3.LeaseID
	revision int64

	// done is closed at the end of the lease; renew closes it. stop makes renew return.
	done chan struct{}
	stop context.CancelFunc
}

// Acquire implements [kv.Leaser].
func (s *Store) Acquire(ctx context.Context, name string) (kv.Lease, error) {
	end, err := s.begin(&ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	key := s.leasePrefix() + name
	for {
		_, asOf := s.snapshot()
		l, held, err := s.tryAcquire(ctx, key)
		if l != nil && l.revision <= asOf {
			_ = l.Release(context.WithoutCancel(ctx)) // it is one of another etcd
			return nil, s.fail(wentBack(l.revision, asOf))
		}
		if l != nil {
			// The holder sees what earlier ones have committed.
			if err := s.await(ctx, l.revision); err != nil {
				_ = l.Release(context.WithoutCancel(ctx)) // it ends by itself
				return nil, errors.Annotatef(err, "acquiring the lease %q", name)
			}
			return l, nil
		}
		if err == nil {
			err = s.awaitDeletion(ctx, key, held)
		}
		if isDenied(err) {
			return nil, errors.Annotatef(err, "acquiring the lease %q", name)
		}
		if err != nil {
			// The next attempt is the remedy.
			select {
			case <-ctx.Done():
			case <-time.After(retryPause):
			}
		}
		if ctx.Err() != nil {
			return nil, errors.Annotatef(s.ended(ctx.Err()), "acquiring the lease %q", name)
		}
	}
}

// LeaseNames returns what follows the prefix in the names of the leases that are held at the moment.
func (s *Store) LeaseNames(ctx context.Context, prefix string) ([]string, error) {
	end, err := s.begin(&ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	request, cancel := s.request(ctx)
	defer cancel()
	key := s.leasePrefix() + prefix
	held, err := s.client.Get(request, key, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, errors.Annotatef(s.ended(err), "listing the leases %q", prefix)
	}
	names := make([]string, len(held.Kvs))
	for i, lease := range held.Kvs {
		names[i] = string(lease.Key[len(key):])
	}
	return names, nil
}

// tryAcquire returns the lease, or the revision at which another process holds it.
func (s *Store) tryAcquire(ctx context.Context, key string) (_ *lease, held int64, err error) {
	request, cancel := s.request(ctx)
	defer cancel()
	granted := time.Now()
	grant, err := s.client.Grant(request, int64(s.config.LeaseTTL/time.Second))
	if err != nil {
		return nil, 0, err
	}
	response, err := s.client.Txn(request).
		If(unchanged(key, 0)).
		Then(clientv3.OpPut(key, s.config.Name, clientv3.WithLease(grant.ID))).
		Commit()
	if err != nil || !response.Succeeded {
		s.revoke(ctx, grant.ID)
		if err != nil {
			return nil, 0, err
		}
		return nil, response.Header.Revision, nil
	}
	renewing, stop := context.WithCancel(s.ctx)
	l := &lease{s, key, grant.ID, response.Header.Revision, make(chan struct{}), stop}
	s.running.Go(func() { l.renew(renewing, granted) })
	return l, 0, nil
}

// revoke ends a lease of etcd, which ends by itself if that fails.
func (s *Store) revoke(ctx context.Context, id clientv3.LeaseID) error {
	request, cancel := s.request(context.WithoutCancel(ctx))
	defer cancel()
	_, err := s.client.Revoke(request, id)
	return err
}

// awaitDeletion waits until the key is deleted after the revision.
func (s *Store) awaitDeletion(ctx context.Context, key string, revision int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for response := range s.client.Watch(ctx, key, clientv3.WithRev(revision+1), clientv3.WithFilterPut()) {
		if err := response.Err(); err != nil {
			return err
		}
		if len(response.Events) > 0 {
			return nil
		}
	}
	return ctx.Err()
}

// renew renews the lease until ctx ends, or until it has not been renewed for two thirds of its
// duration. Only what was sent counts: the answer may have taken long.
func (l *lease) renew(ctx context.Context, renewed time.Time) {
	defer close(l.done)
	ttl := l.store.config.LeaseTTL
	for {
		limit, cancel := context.WithDeadline(ctx, renewed.Add(ttl*2/3))
		select {
		case <-limit.Done():
			cancel()
			return
		case <-time.After(ttl / 5):
		}
		sent := time.Now()
		_, err := l.store.client.KeepAliveOnce(limit, l.id)
		cancel()
		switch {
		case err == nil:
			renewed = sent
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			return
		}
	}
}

func (l *lease) Term() uint64 { return uint64(l.revision) }

func (l *lease) Done() <-chan struct{} { return l.done }

func (l *lease) Grace() time.Duration { return l.store.config.LeaseTTL / 3 }

func (l *lease) Release(ctx context.Context) error {
	l.stop()
	<-l.done
	err := l.store.revoke(ctx, l.id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return errors.Annotatef(err, "releasing %s", l.key)
}

// leaseIn returns the lease of the context, which must be of this store, or nil.
func (s *Store) leaseIn(ctx context.Context) (*lease, error) {
	found := kv.LeaseOf(ctx)
	if found == nil {
		return nil, nil
	}
	l, ok := found.(*lease)
	if !ok || l.store != s {
		return nil, errors.NotValidf("a lease of another store")
	}
	return l, nil
}
