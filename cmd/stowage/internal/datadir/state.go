package datadir

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/state/markfile"
	"github.com/stowage-io/stowage/state/statefile"
)

// Marks returns the state's mark in the directory.
func (d Dir) Marks() *markfile.File { return markfile.New(d.MarkFile()) }

// AdvanceMark sets the mark to a generation after that of a backup, whose name is file, and of any
// state that was in the directory before. The next process that opens the backup's state then detects that
// it was restored.
func (d Dir) AdvanceMark(file string, backup statefile.Identity, now time.Time) error {
	if backup.UUID == "" {
		return nil // a state of an older schema has no mark; it gets one later
	}
	marks := d.Marks()
	mark, ok, err := marks.Read()
	switch {
	case errors.Is(err, markfile.ErrDamaged):
		if err := d.MoveDamagedMark(now); err != nil {
			return errors.Trace(err)
		}
	case err != nil:
		return errors.Trace(err)
	case ok && mark.UUID != backup.UUID:
		return errors.NewNotValid(nil, fmt.Sprintf("%s is of state %s, and %s belongs to state %s: restore it into its own --data-dir, or into an empty one",
			file, backup.UUID, d, mark.UUID))
	}
	return errors.Trace(marks.Write(state.Mark{
		UUID:       backup.UUID,
		Generation: max(mark.Generation, backup.Generation) + 1,
		Before:     mark.After,
		After:      mark.After,
	}))
}

// MoveDamagedMark renames a damaged mark file, so that a new one can be written.
func (d Dir) MoveDamagedMark(now time.Time) error {
	damaged := fmt.Sprintf("%s.damaged-%s", d.MarkFile(), now.UTC().Format("20060102T150405Z"))
	return errors.Trace(os.Rename(d.MarkFile(), damaged))
}

// OpenStore opens the store of the directory, and creates it if the directory is new. The
// leftover of an interrupted first start is not a store: it is replaced, unless something
// shows that there was one.
func (d Dir) OpenStore() (*boltkv.Store, error) {
	if err := d.CheckState(); err != nil {
		return nil, errors.Trace(err)
	}
	evidence, err := d.findEvidence()
	if err != nil {
		return nil, errors.Annotatef(err, "looking for evidence that %s was in use", d.StateFile())
	}
	if evidence == "" {
		if err := boltkv.RemoveUnfinished(d.StateFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Trace(err)
		}
	}
	store, err := boltkv.Open(d.StateFile())
	return store, d.explainLocked(err)
}

// explainLocked adds to the error of opening the store who uses the directory.
func (d Dir) explainLocked(err error) error {
	var locked *boltkv.LockedError
	switch {
	case !errors.As(err, &locked):
		return errors.Trace(err)
	case locked.PID == 0:
		return errors.Errorf("another process uses %s: stop it, or choose another --data-dir", d)
	}
	ownName, _ := os.ReadFile("/proc/self/comm")
	if locked.Program == strings.TrimSpace(string(ownName)) {
		return errors.Errorf("another agent runs in %s (PID %d): stop it, or choose another --data-dir", d, locked.PID)
	}
	return errors.Errorf("PID %d (%s) has %s open: stop it, or choose another --data-dir", locked.PID, locked.Program, d.StateFile())
}

// OpenState opens the state of the directory. It first keeps a copy of a state of an older
// schema. It sets config.Store to store. It verifies every record before it acts on any.
func (d Dir) OpenState(store *boltkv.Store, config state.Config) (*state.State, error) {
	if err := d.checkRecords(store); err != nil {
		return nil, errors.Trace(err)
	}
	config.Store = store
	config.BeforeMigrate = func(schema int) error { return d.backupOlderSchema(store, schema) }
	st, err := state.Open(config)
	return st, errors.Annotate(err, d.StateFile())
}

// checkRecords returns an error if a record in the store is damaged. It ignores an empty store
// and one of another schema, which state.Open handles.
func (d Dir) checkRecords(store *boltkv.Store) error {
	var found error
	err := store.View(context.Background(), func(snapshot kv.Snapshot) error {
		_, found = Identify(snapshot)
		return found
	})
	switch {
	case err == nil, errors.Is(err, errors.NotFound), errors.Is(err, errors.NotSupported):
		return nil
	case err != found:
		// The error is the store's, and already describes the damage or the failed disk.
		return errors.Trace(err)
	}
	return errors.New(fmt.Sprintf("%s is damaged: %v; run `stowage recover`, or `stowage restore FILE` with a backup", d.StateFile(), err))
}

// CheckFingerprint returns an error unless the directory is the one in which the state was
// made: no provider may be called otherwise, since the records may describe storage that
// another agent uses. It sets the fingerprint of a state that has none.
func (d Dir) CheckFingerprint(st *state.State) error {
	now, err := d.Fingerprint()
	if err != nil {
		return errors.Trace(err)
	}
	made, ok, err := st.Fingerprint()
	if err != nil {
		return errors.Trace(err)
	}
	if difference := Difference(made, now); ok && difference != "" {
		return errors.New(fmt.Sprintf("%s is not the directory in which its state was made (different %s). "+
			"Nothing was attached or changed. If it was moved here, run `stowage adopt-dir --moved`; "+
			"if it is a copy, and the original may still be used, `stowage adopt-dir --copy`", d, difference))
	}
	if !ok || made != now {
		return errors.Trace(st.SetFingerprint(now))
	}
	return nil
}

// backupOlderSchema copies a store of an older schema before it is migrated: to
// state.db.schemaN, or to state.db.schemaN-2 and so on if that exists.
func (d Dir) backupOlderSchema(store *boltkv.Store, schema int) error {
	path := fmt.Sprintf("%s.schema%d", d.StateFile(), schema)
	return errors.Annotatef(d.copyStore(store, path), "copying the state of schema %d", schema)
}

func (d Dir) copyStore(store *boltkv.Store, path string) error {
	temporary, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return errors.Trace(err)
	}
	defer temporary.Close()
	if err := store.Copy(temporary, nil); err != nil {
		return errors.Trace(err)
	}
	if err := fsync.File(temporary); err != nil {
		return errors.Trace(err)
	}
	name := path
	for n := 2; ; n++ {
		err := os.Link(temporary.Name(), name)
		if err == nil {
			break
		} else if !errors.Is(err, fs.ErrExist) {
			return errors.Trace(err)
		}
		name = fmt.Sprintf("%s-%d", path, n)
	}
	if err := os.Remove(temporary.Name()); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(d.sync())
}

// sync makes renames in the directory durable.
func (d Dir) sync() error {
	return errors.Trace(fsync.Dir(string(d)))
}

// Identify returns the identity of the state in a store, and verifies every record in it.
func Identify(snapshot kv.Snapshot) (statefile.Identity, error) {
	found, err := state.Inspect(snapshot)
	return statefile.Identity{Schema: found.Schema, UUID: found.UUID, Generation: found.Generation}, errors.Trace(err)
}
