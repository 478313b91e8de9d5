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

// RetryStorage asks that what has failed of the named instances be tried again at once, all
// or none, and takes back that it has failed for good. A name that is not there is an error,
// satisfying errors.IsNotFound. Only workers that run now are told: one that starts tries
// everything.
func (st *State) RetryStorage(names []string) error {
	return st.update(func(tx *txn) error {
		for _, name := range names {
			if err := tx.retry(name, func(*instance) bool { return true }); err != nil {
				return err
			}
		}
		return nil
	})
}

// retryFailing has what has failed of instances tried again: the user has asked for them
// as they are to be, which may not be the first time.
func (tx *txn) retryFailing(names []string) error {
	for _, name := range names {
		if err := tx.retry(name, (*instance).failing); err != nil {
			return err
		}
	}
	return nil
}

// retry has what has failed of an instance tried again, if match returns true for it.
func (tx *txn) retry(name string, match func(*instance) bool) error {
	i, ok := read[instance](&tx.reader, storageKey(name))
	if !ok {
		return errors.NotFoundf("storage %q", name)
	}
	if !match(&i) {
		return nil
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

// clearError takes back the status "error" of an entity that is to be attached: who waits for
// it then waits for what comes of the next attempt.
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

// failing reports whether the status of anything of the instance tells of a failure. What is
// said of something at rest that need not grow is a remark.
func (i *instance) failing() bool {
	return slices.ContainsFunc(i.entities(), func(e *entity) bool {
		s := e.displayStatus()
		stable := s.Status == status.Attached || s.Status == status.Detached
		mustGrow := e.Info != nil && e.Info.Size < i.Size
		return s.Status == status.Error || s.Message != "" && (!stable || mustGrow)
	})
}

// retryKey has a count, which goes up when what this key is of is to be tried again. It is
// empty where the key of the volume or filesystem itself stands for this one. A plan has its
// own: it may be another worker's.
func (k indexKey) retryKey() string {
	switch k.kind {
	case volumeIndex, filesystemIndex:
		return retryPrefix(entityTag(k.id).scope()) + k.id
	case planIndex:
		return retryPrefix(k.owner) + k.id
	}
	return ""
}

// WatchRetries tells of the scope's volumes and filesystems that are to be tried again, by
// their tags.
func (a *Accessor) WatchRetries() (watcher.StringsWatcher, error) {
	return a.watchRequests(retryPrefix(a.scope))
}

// watchRequests tells of the requests that are made from now on under a prefix, by the tags
// that they are about.
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
