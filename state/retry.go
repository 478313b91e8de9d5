package state

import (
	"slices"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/watcher"
)

// RetryStorage requests that failed operations of the named instances be retried at once,
// including those that had failed permanently. Either all requests are recorded, or none. If a
// name does not exist, the error satisfies errors.IsNotFound. The request reaches only workers
// that are running now; a worker that starts tries everything.
func (st *State) RetryStorage(names []string) error {
	return st.Apply(Changes{Retry: names})
}

func (tx *txn) retryEach(names []string) error {
	for _, name := range names {
		if err := tx.retry(name, func(*instance) bool { return true }); err != nil {
			return err
		}
	}
	return nil
}

// retryFailing retries failed operations of instances. The user has just requested the
// instances, possibly not for the first time.
func (tx *txn) retryFailing(names []string) error {
	for _, name := range names {
		if err := tx.retry(name, (*instance).failing); err != nil {
			return err
		}
	}
	return nil
}

// retry requests that failed operations of an instance be retried, if match returns true for
// the instance.
func (tx *txn) retry(name string, match func(*instance) bool) error {
	i, ok := read[instance](&tx.reader, storageKey(name))
	if !ok {
		return errors.NotFoundf("storage %q", name)
	}
	if !match(&i) {
		return nil
	}
	if i.failing() {
		tx.recordEvents(name, []eventRecord{EventRetryWanted.record(eventRecord{By: tx.by})})
	}
	for _, entry := range i.index(nil, name) {
		if key := entry.retryKey(); key != "" {
			tx.increment(key)
		}
	}
	return tx.change(name, &i, func() error {
		for _, e := range i.entities() {
			e.clearError(tx.now)
		}
		return nil
	})
}

// clearError replaces the status "error" of an entity that is to be attached, so that a user
// who waits for it waits for the result of the next attempt.
func (e *entity) clearError(now time.Time) {
	if e.Attachment == nil || e.Attachment.Life != life.Alive {
		return
	}
	next := status.Attaching
	if e.Info == nil {
		next = status.Pending
	}
	statuses := []*StatusInfo{&e.Status}
	if plan := e.plan(); plan != nil && plan.Status != nil {
		statuses = append(statuses, plan.Status)
	}
	for _, s := range statuses {
		if s.Status == status.Error {
			s.set(next, "trying again: "+s.Message, now)
		}
	}
}

// failing reports whether the status of the volume or filesystem is a failure. A message about
// an entity that is attached or detached and need not grow is a remark, not a failure.
func (i *instance) failing() bool {
	return slices.ContainsFunc(i.entities(), func(e *entity) bool {
		s := e.displayStatus()
		stable := s.Status == status.Attached || s.Status == status.Detached
		mustGrow := e.Info != nil && e.Info.Size < i.Size
		return s.Status == status.Error || s.Message != "" && (!stable || mustGrow)
	})
}

// retryKey returns the key of a count. Incrementing it requests a retry for the entity of this
// index key. It returns "" for an attachment, which the key of its volume or filesystem
// covers. A plan has its own key, since another worker may carry it out.
func (k indexKey) retryKey() string {
	switch k.kind {
	case volumeIndex, filesystemIndex:
		return retryPrefix(entityTag(k.id).scope()) + k.id
	case planIndex:
		return retryPrefix(k.owner) + k.id
	}
	return ""
}

// WatchRetries returns a watcher that reports the tags of the scope's volumes and filesystems
// that are to be retried.
func (a *Accessor) WatchRetries() (watcher.StringsWatcher, error) {
	return a.watchRequests(retryPrefix(a.scope))
}

// watchRequests returns a watcher of the requests that are made from now on under a prefix. It
// reports the tags of the entities that they are about.
func (a *Accessor) watchRequests(prefix string) (watcher.StringsWatcher, error) {
	w, err := watch(a.st, prefix, kv.FromNow, func(keys []string) ([]string, error) {
		tags := make([]string, len(keys))
		for i, key := range keys {
			tags[i] = lastComponent(key)
		}
		return tags, nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}
