package state

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/state/kv"
)

const (
	// unsealedSchema is the schema without checksums and UUIDs.
	unsealedSchema = 3
	// devicesSchema is the schema with one record for all block devices of a machine.
	devicesSchema = 4
	// indexSchema is the schema without index entries of mount points and of volumes that are to be
	// made.
	indexSchema = 5
)

// isOlder reports whether [Open] migrates a store of the schema.
func isOlder(schema int) bool {
	return unsealedSchema <= schema && schema < SchemaVersion
}

// migrate brings a store of an older schema up to this one, after beforeMigrate has returned; a
// store of another schema stays as it is. All of it happens in one transaction, if the store's
// transactions can be large enough. No one else may use the store: a transaction cannot list keys,
// so migrate relies on the keys of a snapshot.
func (st *State) migrate(beforeMigrate func(fromSchema int) error) error {
	var schema int
	records := make(map[string][]byte)
	entries := make(map[string][]string)
	err := st.view(func(r *reader, snapshot kv.Snapshot) (err error) {
		schema, err = r.schema()
		if err != nil {
			return err
		}
		switch schema {
		case 0:
			return snapshot.Scan("", func(key string, _ []byte) error {
				return errors.Errorf("%q exists without %q: %s", key, SchemaKey, damageRemedy)
			})
		case unsealedSchema:
			return copyRecords(snapshot, "", records)
		case devicesSchema:
			if err := copyRecords(snapshot, blockDevicesPrefix, records); err != nil {
				return err
			}
			return listEntries(snapshot, entries)
		case indexSchema:
			return listEntries(snapshot, entries)
		}
		return nil
	})
	if err != nil || !isOlder(schema) || schema >= sharedSchema && st.keepSchema {
		return errors.Trace(err)
	}
	if beforeMigrate != nil {
		if err := beforeMigrate(schema); err != nil {
			return errors.Trace(err)
		}
	}
	names := slices.Sorted(maps.Keys(entries))
	for most := st.maxEntities(); len(names) > most && err == nil; names = names[most:] {
		err = st.update(func(tx *txn) error { return tx.writeEntries(names[:most], entries) })
	}
	if err == nil {
		err = st.update(func(tx *txn) error {
			for key, data := range records {
				if !bytes.Equal(tx.get(key), data) {
					return errors.Errorf("%q has changed", key)
				}
			}
			if schema == unsealedSchema {
				return tx.migrateUnsealed(records)
			}
			if err := tx.writeEntries(names, entries); err != nil {
				return err
			}
			return tx.migrateDevices(records)
		})
	}
	return errors.Annotatef(err, "migrating the state from schema %d to schema %d", schema, SchemaVersion)
}

// copyRecords adds the records whose keys begin with prefix.
func copyRecords(snapshot kv.Snapshot, prefix string, records map[string][]byte) error {
	return snapshot.Scan(prefix, func(key string, data []byte) error {
		records[key] = bytes.Clone(data)
		return nil
	})
}

// listEntries adds the names of all instances, with the keys of index entries that a migration left
// when it was interrupted.
func listEntries(snapshot kv.Snapshot, entries map[string][]string) error {
	err := snapshot.Scan(storagePrefix, func(key string, _ []byte) error {
		entries[key[len(storagePrefix):]] = nil
		return nil
	})
	for _, kind := range []string{mountPointIndex, unmadeIndex} {
		if err != nil {
			break
		}
		err = snapshot.Scan(kind+"/", func(key string, data []byte) error {
			entry, err := decodeAt[indexEntry](key, data)
			entries[entry.Storage] = append(entries[entry.Storage], key)
			return err
		})
	}
	return err
}

// writeEntries writes the index entries of instances again.
func (tx *txn) writeEntries(names []string, left map[string][]string) error {
	for _, name := range names {
		for _, key := range left[name] {
			tx.remove(key)
		}
		i, ok := read[instance](&tx.reader, storageKey(name))
		if ok {
			tx.writeIndex(nil, i.index(nil, name))
		}
	}
	return tx.err
}

// migrateDevices writes the block devices of [devicesSchema] in the form of this one.
func (tx *txn) migrateDevices(records map[string][]byte) error {
	tx.setSchema()
	for key, data := range records {
		if machine, ok := devicesOfMachine(key); ok {
			record, err := decodeAt[devicesRecord](key, data)
			if err != nil {
				return errors.Trace(err)
			}
			tx.migrateDevicesOf(machine, key, record)
		}
	}
	return tx.err
}

// migrateDevicesOf replaces the one record of all block devices of a machine.
func (tx *txn) migrateDevicesOf(machine machineTag, key string, record devicesRecord) {
	tx.remove(key)
	tx.setDevices(machine, devicesByName(record.devices()))
}

// devicesOfMachine returns the machine whose block devices are all in the record at key.
func devicesOfMachine(key string) (machineTag, bool) {
	machine, ok := strings.CutPrefix(key, blockDevicesPrefix)
	if ok {
		machine, ok = strings.CutSuffix(machine, "/devices")
	}
	return machineTag(machine), ok
}

// migrateUnsealed writes the records of the unsealed schema in the form of this one.
func (tx *txn) migrateUnsealed(records map[string][]byte) error {
	id, err := unsealedUUID(records[environKey])
	if err != nil {
		return errors.Trace(err)
	}
	space, err := uuid.Parse(id)
	if err != nil {
		return errors.Trace(err)
	}
	tx.setIdentity(newIdentity(id))
	var unstamped copyRecord
	for _, key := range slices.Sorted(maps.Keys(records)) {
		switch {
		case key == SchemaKey:
			tx.setSchema()
		case strings.HasPrefix(key, storagePrefix):
			var i instance
			if err := recordDecoding.Unmarshal(records[key], &i); err != nil {
				return errors.Annotatef(err, "decoding %q", key)
			}
			for _, e := range i.entities() {
				// The UUID is derived, so that an old copy of the store that is restored and
				// migrated again has the same UUIDs as the first time.
				e.UUID = uuid.NewSHA1(space, []byte(e.Tag)).String()
				e.Generation, e.AttachmentGeneration = 1, 1
				stamp := newCopiedRecord(&i, e)
				if e.beingMade() {
					stamp.ProviderID = string(e.Tag) // the ID that its provider would have chosen
				}
				if stamp.ProviderID != "" && e.Tag.scope() != environScope {
					unstamped.Entities = append(unstamped.Entities, stamp)
				}
			}
			if err := i.check(); err != nil {
				return errors.Annotatef(err, "decoding %q", key)
			}
			tx.writeIndex(nil, i.index(nil, key[len(storagePrefix):]))
			tx.write(key, &i)
		default:
			machine, ok := devicesOfMachine(key)
			if !ok {
				tx.put(key, seal(key, records[key]))
				continue
			}
			var record devicesRecord
			if err := recordDecoding.Unmarshal(records[key], &record); err != nil {
				return errors.Annotatef(err, "decoding %q", key)
			}
			tx.migrateDevicesOf(machine, key, record)
		}
	}
	if len(unstamped.Entities) > 0 {
		tx.write(unstampedKey, &unstamped)
	}
	return nil
}

// unsealedUUID returns the UUID of a state from the record of its environment's configuration,
// or a new UUID if there is no record.
func unsealedUUID(data []byte) (string, error) {
	if data == nil {
		return uuid.NewString(), nil
	}
	var record environRecord
	if err := recordDecoding.Unmarshal(data, &record); err != nil {
		return "", errors.Annotatef(err, "decoding %q", environKey)
	}
	cfg, err := config.New(record.Attributes)
	if err != nil {
		return "", errors.Trace(err)
	}
	return cfg.UUID(), nil
}
