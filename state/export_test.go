package state

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/stowage-io/stowage/state/kv"
)

// CheckStore returns what does not hang together in the store: index entries,
// histories and counts that are not those of the instances.
func CheckStore(store kv.Store) (problems []string) {
	index := make(map[string]indexEntry)
	histories := make(map[string]bool)
	counts := make(map[string]int)
	found := make(map[string]indexEntry)
	err := store.View(func(snapshot kv.Snapshot) error {
		return snapshot.Scan("", func(key string, data []byte) error {
			switch {
			case strings.HasPrefix(key, storagePrefix):
				i, err := decodeAt[instance](key, data)
				if err != nil {
					return err
				}
				for _, indexed := range i.index(nil, key[len(storagePrefix):]) {
					index[indexed.key()] = indexed.entry
				}
				for _, e := range i.entities() {
					histories[historyKey(e.Tag)] = true
				}
				counts[i.Pool]++
			case strings.HasPrefix(key, "scope/"), strings.HasPrefix(key, "imported/"):
				entry, err := decodeAt[indexEntry](key, data)
				if err != nil {
					return err
				}
				found[key] = entry
			}
			return nil
		})
	})
	if err != nil {
		return []string{err.Error()}
	}
	if !reflect.DeepEqual(index, found) {
		problems = append(problems, fmt.Sprintf("the index is\n\t%v\nwant\n\t%v", found, index))
	}
	err = store.View(func(snapshot kv.Snapshot) error {
		err := snapshot.Scan(historyPrefix, func(key string, data []byte) error {
			history, err := decodeAt[history](key, data)
			if !histories[key] || len(history) == 0 || len(history) > historyLength {
				problems = append(problems, fmt.Sprintf("%s: %d statuses, wanted: %t", key, len(history), histories[key]))
			}
			delete(histories, key)
			return err
		})
		if err != nil {
			return err
		}
		return snapshot.Scan(poolPrefix, func(key string, data []byte) error {
			pool, err := decodeAt[poolRecord](key, data)
			if want := counts[key[len(poolPrefix):]]; int(pool.Instances) != want {
				problems = append(problems, fmt.Sprintf("%s: %d instances, want %d", key, pool.Instances, want))
			}
			return err
		})
	})
	if err != nil {
		problems = append(problems, err.Error())
	}
	for key := range histories {
		problems = append(problems, key+" is missing")
	}
	return problems
}
