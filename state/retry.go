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

// retryAskedAgain has what has failed of instances tried again: the user has asked for them
// as they are to be, which may not be the first time.
func (tx *txn) retryAskedAgain(names []string) error {
	for _, name := range names {
		if err := tx.retry(name, (*instance).failing); err != nil {
			return err
		}
	}
	return nil
}

// retry has what has failed of an instance tried again, if it is one of those that are wanted.
func (tx *txn) retry(name string, wanted func(*instance) bool) error {
	i, ok := read[instance](&tx.reader, storageKey(name))
	if !ok {
		return errors.NotFoundf("storage %q", name)
	}
	if !wanted(&i) {
		return nil
	}
	for _, entry := range i.index(nil, name) {
		if key := entry.retryKey(); key != "" {
			tx.next(key)
		}
	}
	return tx.change(name, &i, func() error {
		for _, e := range i.entities() {
			e.tryAgain(tx.now)
		}
		return nil
	})
}

// tryAgain takes back the status "error" of an entity that is to be attached: who waits for
// it then waits for what comes of the next attempt.
func (e *entity) tryAgain(now time.Time) {
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
		s := e.shown()
		atRest := s.Status == status.Attached || s.Status == status.Detached
		grows := e.Info != nil && e.Info.Size < i.Size
		return s.Status == status.Error || s.Message != "" && (!atRest || grows)
	})
}

// retryKey has a count, which goes up when what is in this place is to be tried again. It is
// empty where the place of the volume or filesystem itself stands for this one. A plan has its
// own: it may be another worker's.
func (p place) retryKey() string {
	switch p.kind {
	case volumeIndex, filesystemIndex:
		return retryPrefix(entityTag(p.of).scope()) + p.of
	case planIndex:
		return retryPrefix(p.at) + p.of
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
