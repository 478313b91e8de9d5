package state

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/watcher"
)

// FormatStorage asks that the filesystems of the named instances be made on their volumes
// whatever is on these, all or none. A name that is not there is an error, satisfying
// errors.IsNotFound; one that has no filesystem to be made on a device that is known is an
// error, satisfying errors.IsNotValid. It is asked for one attempt: only workers that run now
// are told, and nothing of it is in the state later.
func (st *State) FormatStorage(names []string) error {
	return st.update(func(tx *txn) error {
		for _, name := range names {
			i, ok := read[instance](&tx.reader, storageKey(name))
			if !ok {
				return errors.NotFoundf("storage %q", name)
			}
			if err := tx.checkFormattable(name, &i); err != nil {
				return err
			}
			for _, entry := range i.index(nil, name) {
				if key := entry.formatKey(); key != "" {
					tx.increment(key)
				}
			}
		}
		return nil
	})
}

// checkFormattable returns an error unless the filesystem of an instance is to be made on a
// device that its machine has.
func (tx *txn) checkFormattable(name string, i *instance) error {
	if i.Volume == nil || i.Filesystem == nil {
		return errors.NewNotValid(nil, "storage "+name+" is no filesystem on a volume")
	}
	if i.Filesystem.Info != nil {
		return errors.NewNotValid(nil, "storage "+name+" has its filesystem, which is not made again: remove the storage, and add it again")
	}
	if i.Filesystem.Life != life.Alive || i.Volume.Life != life.Alive {
		return errors.NewNotValid(nil, "storage "+name+" is going away")
	}
	if _, ok := tx.findDevice(i.Volume); !ok {
		return errors.NewNotValid(nil, "storage "+name+" has no block device that is known: attach it first")
	}
	return nil
}

// formatKey has a count, which goes up when the filesystem with this key is to be made on its
// volume whatever is on that. It is empty for other keys.
func (k indexKey) formatKey() string {
	if k.kind != filesystemIndex {
		return ""
	}
	return formatPrefix(entityTag(k.id).scope()) + k.id
}

// WatchFormats tells of the scope's filesystems that are to be made on their volumes whatever
// is on these, by their tags.
func (a *Accessor) WatchFormats() (watcher.StringsWatcher, error) {
	return a.watchRequests(formatPrefix(a.scope))
}
