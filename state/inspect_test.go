package state_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/state/statefile"
	"github.com/stowage-io/stowage/storage"
)

func inspect(store kv.Store) (identity state.Identity, err error) {
	err = store.View(context.Background(), func(snapshot kv.Snapshot) error {
		identity, err = state.Inspect(snapshot)
		return err
	})
	return identity, err
}

func TestInspect(t *testing.T) {
	w := newWorld(t)
	w.add("data", "loop", storage.StorageKindBlock)
	w.must(w.RaiseGeneration())
	found, err := inspect(w.store)
	if want := (state.Identity{Schema: state.SchemaVersion, UUID: w.UUID(), Generation: 2}); err != nil || found != want {
		t.Errorf("found %+v, %v; want %+v", found, err, want)
	}

	for _, want := range []state.Identity{{Schema: 3}, {Schema: 4, UUID: olderUUID, Generation: 1}, {Schema: 5, UUID: olderUUID, Generation: 1}, {Schema: 6, UUID: olderUUID, Generation: 1}} {
		older := olderStore(t, want.Schema)
		defer older.Close()
		if found, err := inspect(older); err != nil || found != want {
			t.Errorf("of schema %d: %+v, %v", want.Schema, found, err)
		}
	}
	empty := newStore(t)
	defer empty.Close()
	if _, err := inspect(empty); !errors.Is(err, errors.NotFound) {
		t.Errorf("of an empty store: %v", err)
	}
	w.must(empty.Update(context.Background(), func(tx kv.Tx) error {
		return tx.Put("schema", fmt.Appendf(nil, `{"version":%d}`, state.SchemaVersion+1))
	}))
	if _, err := inspect(empty); !errors.Is(err, errors.NotSupported) {
		t.Errorf("of a newer schema: %v", err)
	}

	// A damaged record is an error.
	w.must(w.store.Update(context.Background(), func(tx kv.Tx) error {
		data, err := tx.Get("storage/data")
		data = append([]byte(nil), data...)
		data[len(data)/2] ^= 4
		return errors.Trace(firstError(err, tx.Put("storage/data", data)))
	}))
	if _, err := inspect(w.store); err == nil || !strings.Contains(err.Error(), `"storage/data" is damaged`) {
		t.Errorf("with a damaged record: %v", err)
	}
}

func firstError(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

// A backup has the identity of the state, and is restored as it was.
func TestBackupAndRestore(t *testing.T) {
	identify := func(snapshot kv.Snapshot) (statefile.Identity, error) {
		found, err := state.Inspect(snapshot)
		return statefile.Identity(found), err
	}
	path := filepath.Join(t.TempDir(), "state.db")
	w := newFileWorld(t, path)
	w.add("data", "loop", storage.StorageKindBlock)
	backup := path + ".backup"
	meta, err := statefile.Backup(t.Context(), w.store.(*boltkv.Store), backup, identify, time.Now())
	if err != nil || meta.UUID != w.UUID() || meta.Generation != 1 || meta.Schema != state.SchemaVersion {
		t.Fatalf("backed up %+v, %v", meta, err)
	}
	w.add("later", "loop", storage.StorageKindBlock)
	w.must(w.Close())
	w.must(w.store.Close())
	if _, _, err := statefile.Restore(backup, path, identify, time.Now(), nil); err != nil {
		t.Fatal(err)
	}
	if w.store, err = boltkv.OpenExisting(path); err != nil {
		t.Fatal(err)
	}
	w.open()
	all, err := w.AllStorage()
	if err != nil || len(all) != 1 || all[0].Name != "data" || w.UUID() != meta.UUID {
		t.Errorf("restored %+v (%v) of state %s", all, err, w.UUID())
	}
}
