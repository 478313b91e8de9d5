package etcdkv

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/google/btree"
	"github.com/google/uuid"
	"github.com/juju/errors"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stowage-io/stowage/state/kv"
)

// A transaction compares the revision of each key that it has read. It also writes a token into
// a slot, a key of the store's own that only one transaction uses at a time, and compares the
// slot's revision. If etcd does not answer, the slot tells the outcome: settle writes another
// token under the same condition. If that succeeds, the transaction was not committed, and never
// will be, even if the request is still under way. Otherwise the slot has the token of the
// transaction, and with it the revision at which it was committed.

// slotCount is the number of transactions that a store can commit at the same time.
const slotCount = 64

// slot is a key that shows whether a transaction was committed. One transaction at a time uses it.
type slot struct {
	key      string
	revision int64 // of its last change, 0 if it does not exist
}

// attempt is one attempt to commit a transaction.
type attempt struct {
	slot  *slot
	token string
	// committed is the revision of the transaction, once it is known to be committed.
	committed int64
}

// openSlots reads the slots that earlier stores of the same name have left. A request of theirs
// that is still under way fails once the slot is used again.
func (s *Store) openSlots(ctx context.Context) error {
	prefix := s.slotPrefix() + s.config.Name + "/"
	request, cancel := s.request(ctx)
	defer cancel()
	existing, err := s.client.Get(request, prefix, clientv3.WithPrefix())
	if err != nil {
		return errors.Annotate(err, "reading slots")
	}
	revisions := make(map[string]int64)
	for _, pair := range existing.Kvs {
		revisions[string(pair.Key)] = pair.ModRevision
	}
	for i := range slotCount {
		key := prefix + strconv.Itoa(i)
		s.slots <- &slot{key: key, revision: revisions[key]}
	}
	return nil
}

// reads is the [kv.Reader] of a transaction, which keeps what was read.
type reads struct {
	keys *btree.BTreeG[entry]
	seen map[string]int64 // revisions of keys, 0 for those that do not exist
}

func (r *reads) Get(key string) ([]byte, error) {
	found, ok := r.keys.Get(entry{key: key})
	if !ok {
		r.seen[key] = 0
		return nil, nil
	}
	r.seen[key] = found.revision
	return found.value, nil
}

// Update implements [kv.Store].
func (s *Store) Update(ctx context.Context, fn func(kv.Tx) error) error {
	end, err := s.begin(&ctx)
	if err != nil {
		return err
	}
	defer end()
	losses := 0
	for conflicts := 0; ; conflicts++ {
		keys, revision := s.snapshot()
		tx := &reads{keys, make(map[string]int64)}
		buffer := kv.NewBuffer(tx)
		fnErr := fn(buffer)
		if fnErr != nil {
			buffer = kv.NewBuffer(tx) // there is nothing to write, but what was read must be current
		}
		patience := s.config.RequestTimeout
		if losses == 0 {
			patience = patience * 2 / 5 // a member that leads and ends loses what it was about to commit
		}
		committed, err := s.commit(ctx, tx, buffer, revision, patience)
		switch {
		case errors.Is(err, errLost) && losses < maxLosses && ctx.Err() == nil:
			losses++
			continue
		case err != nil:
			return s.ended(err)
		case committed:
			return fnErr
		}
		if err := s.awaitConflict(ctx, revision, conflicts); err != nil {
			return err
		}
	}
}

// errLost is the type of the error of a transaction that was not committed, and has not been
// refused: the member that led may have ended with it, or the connection.
const errLost = errors.ConstError("the transaction was lost")

// maxLosses is how often a transaction that was lost is tried again.
const maxLosses = 2

// awaitConflict waits for the change that kept a transaction from being committed. It has read the
// copy at the revision. After several conflicts, awaitConflict also pauses at random, so that one
// of several processes succeeds.
func (s *Store) awaitConflict(ctx context.Context, revision int64, conflicts int) error {
	if err := s.await(ctx, revision+1); err != nil {
		return err
	}
	if conflicts < 3 {
		return nil
	}
	select {
	case <-time.After(rand.N(time.Millisecond << min(conflicts, 8))):
		return nil
	case <-ctx.Done():
		return s.ended(ctx.Err())
	}
}

// commit commits the transaction, which has read the copy as of the revision, and waits until the
// copy has it. It returns false if what the transaction has read has changed. patience is how long etcd
// may take to answer.
func (s *Store) commit(ctx context.Context, tx *reads, buffer *kv.Buffer, asOf int64, patience time.Duration) (bool, error) {
	held, err := s.leaseIn(ctx)
	if err != nil {
		return false, err
	}
	writes, err := s.writes(buffer)
	if err != nil {
		return false, errors.Trace(err)
	}
	conditions := make([]clientv3.Cmp, 0, len(tx.seen)+2)
	for key, revision := range tx.seen {
		conditions = append(conditions, unchanged(s.dataPrefix()+key, revision))
	}
	var lookups []clientv3.Op
	if held != nil {
		conditions = append(conditions, unchanged(held.key, held.revision))
		lookups = append(lookups, clientv3.OpGet(held.key))
	}
	if len(writes) > 0 {
		return s.write(ctx, conditions, writes, lookups, held, asOf, patience)
	}
	if len(conditions) == 0 {
		return true, nil
	}
	request, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// Without a read, a member answers from what it has, which may be old.
	read := clientv3.OpGet(s.dataPrefix())
	response, err := s.client.Txn(request).If(conditions...).Then(read).Else(append(lookups, read)...).Commit()
	if err != nil {
		err = errors.Annotate(err, "reading from etcd")
		if !isDenied(err) {
			err = errors.WithType(err, errLost)
		}
		return false, err
	}
	return response.Succeeded, s.checkResponse(response, held, asOf)
}

// write commits a transaction that writes something.
func (s *Store) write(ctx context.Context, conditions []clientv3.Cmp, writes, lookups []clientv3.Op, held *lease, asOf int64, patience time.Duration) (bool, error) {
	var free *slot
	select {
	case free = <-s.slots:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	try := &attempt{slot: free, token: uuid.NewString()}
	conditions = append(conditions, unchanged(free.key, free.revision))
	writes = append(writes, clientv3.OpPut(free.key, try.token))
	lookups = append(lookups, clientv3.OpGet(free.key))
	request, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	response, err := s.client.Txn(request).If(conditions...).Then(writes...).Else(lookups...).Commit()
	switch {
	case err != nil && wasRefused(err):
		s.slots <- free
		return false, errors.Annotatef(err, "writing %d keys to etcd, having read %d", len(writes)-1, len(conditions)-1)
	case err != nil:
		s.unknown(try)
		unsettled := s.settle(ctx)
		if unsettled != nil {
			unsettled = s.settle(ctx) // that request can be lost as well
		}
		if unsettled != nil {
			return false, unknownOutcome(err)
		}
		if try.committed == 0 {
			return false, errors.WithType(errors.Annotate(err, "writing to etcd"), errLost)
		}
		return true, nil
	}
	if err := s.outcome(try, response); err != nil {
		return false, err
	}
	if try.committed == 0 {
		s.slots <- free
		return false, s.checkResponse(response, held, asOf)
	}
	if err := s.await(ctx, try.committed); err != nil {
		s.unknown(try)
		return false, unknownOutcome(err)
	}
	s.slots <- free
	return true, nil
}

// outcome reads from a response whether the attempt was committed. The last lookup of the
// response is that of the slot.
// The client repeats a request if it thinks that etcd has not received it, so the conditions may
// not hold because the transaction itself was committed.
func (s *Store) outcome(try *attempt, response *clientv3.TxnResponse) error {
	if response.Succeeded {
		try.slot.revision, try.committed = response.Header.Revision, response.Header.Revision
		return nil
	}
	found := response.Responses[len(response.Responses)-1].GetResponseRange().Kvs
	switch {
	case len(found) == 0 && try.slot.revision == 0:
		return nil
	case len(found) == 0:
		// Nobody else deletes slots.
	case found[0].ModRevision == try.slot.revision:
		return nil
	case string(found[0].Value) == try.token:
		try.slot.revision, try.committed = found[0].ModRevision, found[0].ModRevision
		return nil
	case string(found[0].Value) == settled:
		try.slot.revision = found[0].ModRevision
		return nil
	}
	return s.fail(errors.Errorf("the store %s is opened twice with the name %q", s.config.Prefix, s.config.Name))
}

// writes returns the operations that write the contents of the buffer.
func (s *Store) writes(buffer *kv.Buffer) (writes []clientv3.Op, err error) {
	_, err = buffer.Flush(
		func(key string, value []byte) error {
			writes = append(writes, clientv3.OpPut(s.dataPrefix()+key, string(value)))
			return nil
		},
		func(key string) error {
			writes = append(writes, clientv3.OpDelete(s.dataPrefix()+key))
			return nil
		},
	)
	return writes, err
}

// checkResponse returns an error if the transaction cannot be committed by trying again: because
// the lease is lost, or etcd was restored from a backup.
func (s *Store) checkResponse(response *clientv3.TxnResponse, held *lease, asOf int64) error {
	if response.Header.Revision < asOf {
		return s.fail(wentBack(response.Header.Revision, asOf))
	}
	if response.Succeeded || held == nil {
		return nil
	}
	if found := response.Responses[0].GetResponseRange().Kvs; len(found) == 0 || found[0].ModRevision != held.revision {
		return errors.Trace(kv.ErrLeaseLost)
	}
	return nil
}

// settled is the token with which settle replaces that of a transaction.
const settled = ""

// unchanged is the condition that the key is as it was at the revision.
func unchanged(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

// unknown keeps an attempt whose outcome is not known, and with it the slot.
func (s *Store) unknown(try *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsettled = append(s.unsettled, try)
}

func unknownOutcome(err error) error {
	return errors.WithType(errors.Annotate(err, "the outcome of the transaction is not known"), kv.ErrUnknown)
}

// wasRefused reports whether etcd, or the client, has answered that it did not accept the
// transaction.
func wasRefused(err error) bool {
	switch codeOf(err) {
	case codes.ResourceExhausted, codes.InvalidArgument:
		return true
	}
	return isDenied(err)
}

// isDenied reports whether etcd has answered that the client may not do that.
func isDenied(err error) bool {
	code := codeOf(err)
	return code == codes.PermissionDenied || code == codes.Unauthenticated
}

func codeOf(err error) codes.Code {
	if refused, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return refused.Code()
	}
	return status.Code(err)
}

// settle determines the outcome of transactions whose outcome is not known, and waits until the
// copy has those that are committed.
func (s *Store) settle(ctx context.Context) error {
	if !s.hasUnsettled() {
		return nil
	}
	select {
	case s.settling <- struct{}{}:
		defer func() { <-s.settling }()
	case <-ctx.Done():
		return s.ended(ctx.Err())
	}
	for {
		s.mu.Lock()
		if len(s.unsettled) == 0 {
			s.mu.Unlock()
			return nil
		}
		try := s.unsettled[0]
		s.mu.Unlock()
		if err := s.settleAttempt(ctx, try); err != nil {
			return s.ended(errors.Annotate(err, "determining the outcome of an earlier transaction"))
		}
		s.mu.Lock()
		s.unsettled = s.unsettled[1:]
		s.mu.Unlock()
		s.slots <- try.slot
	}
}

func (s *Store) hasUnsettled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.unsettled) > 0
}

// settleAttempt makes sure that the attempt is either committed, and in the copy, or never will
// be.
func (s *Store) settleAttempt(ctx context.Context, try *attempt) error {
	if try.committed > 0 {
		return s.await(ctx, try.committed)
	}
	request, cancel := s.request(ctx)
	defer cancel()
	response, err := s.client.Txn(request).
		If(unchanged(try.slot.key, try.slot.revision)).
		Then(clientv3.OpPut(try.slot.key, settled)).
		Else(clientv3.OpGet(try.slot.key)).
		Commit()
	if err != nil {
		return err
	}
	if response.Succeeded {
		try.slot.revision = response.Header.Revision
		return nil
	}
	if err := s.outcome(try, response); err != nil || try.committed == 0 {
		return err
	}
	return s.await(ctx, try.committed)
}
