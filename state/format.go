package state

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/watcher"
)

// FormatStorage requests that the filesystems of the named instances be made on their volumes,
// whatever the volumes contain. Either all requests are recorded, or none. If a name does not
// exist, the error satisfies errors.IsNotFound; if an instance has no filesystem to be made on
// a known device, it satisfies errors.IsNotValid. The request is for one attempt: it reaches
// only workers that are running now, and does not remain in the state.
func (st *State) FormatStorage(names []string) error {
	return st.Apply(Changes{Format: names})
}

func (tx *txn) formatEach(names []string) error {
	for _, name := range names {
		i, ok := read[instance](&tx.reader, storageKey(name))
		if !ok {
			return errors.NotFoundf("storage %q", name)
		}
		if err := tx.checkFormattable(name, &i); err != nil {
			return err
		}
		tx.recordEvents(name, []eventRecord{EventFormatWanted.record(eventRecord{By: tx.by})})
		for _, entry := range i.index(nil, name) {
			if key := entry.formatKey(); key != "" {
				tx.increment(key)
			}
		}
	}
	return nil
}

// checkFormattable returns an error unless the filesystem of an instance is still to be made,
// on a device that its machine has.
func (tx *txn) checkFormattable(name string, i *instance) error {
	if i.Volume == nil || i.Filesystem == nil {
		return errors.NewNotValid(nil, "storage "+name+" is not a filesystem on a volume")
	}
	if i.Filesystem.Info != nil {
		return errors.NewNotValid(nil, "storage "+name+" already has its filesystem: to make a new one, remove the storage and add it again")
	}
	if i.Filesystem.Life != life.Alive || i.Volume.Life != life.Alive {
		return errors.NewNotValid(nil, "storage "+name+" is being removed")
	}
	if _, ok := tx.findDevice(i.Volume); !ok {
		return errors.NewNotValid(nil, "storage "+name+" has no block device on its machine: attach it first")
	}
	return nil
}

// formatKey returns the key of a count. Incrementing it requests that the filesystem with this
// index key be made on its volume, whatever the volume contains. It returns "" for other kinds
// of keys.
func (k indexKey) formatKey() string {
	if k.kind != filesystemIndex {
		return ""
	}
	return formatPrefix(entityTag(k.id).scope()) + k.id
}

// WatchFormats returns a watcher that reports the tags of the scope's filesystems that are to
// be made on their volumes, whatever the volumes contain.
func (a *Accessor) WatchFormats() (watcher.StringsWatcher, error) {
	return a.watchRequests(formatPrefix(a.scope))
}
