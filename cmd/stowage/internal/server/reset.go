package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/juju/clock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/state/statefile"
)

// ResetConfig is the configuration of [Reset]. DataDir, Clock and Logger are required.
type ResetConfig struct {
	// DataDir is the directory of a server that keeps the state together with others, and does not
	// run. Its path is absolute.
	DataDir string
	// Restore is a backup, whose state the server gets. Empty: it keeps what it has, which may lack
	// the last changes.
	Restore string
	// Etcd is where the state is, if others run that etcd. Then Restore is required.
	Etcd   Etcd
	Clock  clock.Clock
	Logger process.Logger
}

// ResetResult is what [Reset] has done.
type ResetResult struct {
	// Meta is that of the backup.
	statefile.Meta
	// Replaced is the new name of the former database, or the file with a copy of the former state, if
	// there is one.
	Replaced string
}

// Reset makes a server the only one of its cluster, or restores the state in an etcd that others run. The
// state counts as restored: it may not know what the machines have. The other servers of a cluster must
// never run again.
func Reset(ctx context.Context, config ResetConfig) (result ResetResult, err error) {
	dir := datadir.Dir(config.DataDir)
	if len(config.Etcd.Endpoints) > 0 {
		result, err = restoreEtcd(ctx, dir, config)
		return result, errors.Annotatef(err, "restoring %s", config.Restore)
	}
	p := &inEtcd{dir: dir}
	place, err := dir.Place()
	switch {
	case err != nil:
		return result, errors.Trace(err)
	case place != datadir.PlaceCluster:
		return result, errors.NewNotValid(nil, fmt.Sprintf("%s is not the data directory of a server that keeps the state together with others", dir))
	}
	defer func() {
		if closed := p.Close(); err == nil {
			err = errors.Trace(closed)
		}
	}()
	if err := p.begin(); err != nil {
		return result, errors.Trace(err)
	}
	c := &cluster{dir: dir, config: Config{Config: process.Config{Clock: config.Clock, Logger: config.Logger}}, name: p.name}
	if err := c.readRecord(); err != nil {
		return result, errors.Trace(err)
	}
	if err := c.check(); err != nil {
		return result, errors.Trace(err)
	}
	if config.Restore == "" {
		return result, errors.Trace(c.forgetOthers(ctx, p))
	}
	result, err = c.restore(ctx, config)
	return result, errors.Annotatef(err, "restoring %s", config.Restore)
}

// forgetOthers keeps the state that this server has.
func (c *cluster) forgetOthers(ctx context.Context, p *inEtcd) (err error) {
	if err := c.checkDatabase(); err != nil {
		return errors.Trace(err)
	}
	if p.member, p.Store, err = c.start(ctx, databaseDir, true); err != nil {
		return errors.Trace(err)
	}
	var found statefile.Identity
	err = p.View(ctx, func(snapshot kv.Snapshot) (err error) {
		found, err = datadir.Identify(snapshot)
		return err
	})
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.dir.AdvanceMark("the state of this server", found, c.config.Clock.Now()))
}

// restore replaces the state by that of a backup.
func (c *cluster) restore(ctx context.Context, config ResetConfig) (result ResetResult, err error) {
	store, meta, err := unpack(c.dir, config)
	if err != nil {
		return result, errors.Trace(err)
	}
	result.Meta = meta
	defer func() {
		if closed := store.Close(); err == nil {
			err = errors.Trace(closed)
		}
	}()
	if err := os.RemoveAll(c.path(newDatabaseDir)); err != nil {
		return result, errors.Trace(err)
	}
	c.record.Cluster = "" // the new member has no others
	if err := c.dir.AdvanceMark(config.Restore, result.Identity, c.config.Clock.Now()); err != nil {
		return result, errors.Trace(err)
	}
	result.Replaced = replacedName(c.path(databaseDir), config)
	if err := c.seed(ctx, store, result.Replaced); err != nil {
		return result, errors.Trace(err)
	}
	return result, errors.Trace(c.write())
}

// unpacked is the store of a backup, in a directory of its own, which Close removes.
type unpacked struct {
	*boltkv.Store
	dir string
}

func (u unpacked) Close() error {
	return errors.Trace(process.FirstError(u.Store.Close(), os.RemoveAll(u.dir)))
}

// unpack opens a copy of the backup.
func unpack(dir datadir.Dir, config ResetConfig) (u unpacked, meta statefile.Meta, err error) {
	if u.dir, err = os.MkdirTemp(dir.Server(), backupDir); err != nil {
		return u, meta, errors.Trace(err)
	}
	path := filepath.Join(u.dir, "state.db")
	meta, _, err = statefile.Restore(config.Restore, path, datadir.Identify, config.Clock.Now(), nil)
	if err == nil {
		u.Store, err = boltkv.OpenExisting(path)
	}
	if err != nil {
		_ = os.RemoveAll(u.dir) // the next server removes it
	}
	return u, meta, errors.Trace(err)
}

// replacedName is the name that something gets when it is replaced.
func replacedName(path string, config ResetConfig) string {
	return path + ".replaced-" + config.Clock.Now().UTC().Format("20060102T150405Z")
}

// restoreEtcd replaces the state in an etcd that others run by that of a backup. No server may run.
func restoreEtcd(ctx context.Context, dir datadir.Dir, config ResetConfig) (result ResetResult, err error) {
	if err := config.Etcd.validate(); err != nil {
		return result, errors.Trace(err)
	}
	if err := prepare(dir); err != nil {
		return result, errors.Trace(err)
	}
	if err := dir.CheckPlace(config.Etcd.Prefix); err != nil {
		return result, errors.Trace(err)
	}
	p := &inEtcd{dir: dir}
	defer func() {
		if closed := p.Close(); err == nil {
			err = errors.Trace(closed)
		}
	}()
	err = p.begin()
	if err == nil {
		err = p.connect(ctx, config.Etcd)
	}
	if err == nil {
		err = p.checkUnused(ctx)
	}
	if err != nil {
		return result, errors.Trace(err)
	}
	backup, meta, err := unpack(dir, config)
	if err != nil {
		return result, errors.Trace(err)
	}
	result.Meta = meta
	defer func() {
		if closed := backup.Close(); err == nil {
			err = errors.Trace(closed)
		}
	}()
	if result.Replaced, err = p.keep(ctx, replacedName(filepath.Join(dir.Server(), "state.db"), config)); err != nil {
		return result, errors.Annotate(err, "copying the state that is to be replaced")
	}
	if err := dir.AdvanceMark(config.Restore, meta.Identity, config.Clock.Now()); err != nil {
		return result, errors.Trace(err)
	}
	return result, errors.Trace(replaceState(ctx, p.Store, backup))
}

// checkUnused returns an error if servers have the state.
func (p *inEtcd) checkUnused(ctx context.Context) error {
	servers, err := p.servers(ctx)
	if err != nil || len(servers) == 0 {
		return errors.Trace(err)
	}
	names := make([]string, len(servers))
	for i, s := range servers {
		names[i] = s.title()
	}
	return errors.NewNotValid(nil, fmt.Sprintf("servers use the state: %s: stop all of them; one that was killed counts for 15 seconds", strings.Join(names, ", ")))
}

// keep copies the state to a new file, as it is, and returns the file's name. If there is no state, there
// is no file.
func (p *inEtcd) keep(ctx context.Context, path string) (string, error) {
	keys, err := keysOf(ctx, p.Store)
	if err != nil || len(keys) == 0 {
		return "", errors.Trace(err)
	}
	file, err := boltkv.Open(path)
	if err != nil {
		return "", errors.Trace(err)
	}
	return path, errors.Trace(process.FirstError(copyState(ctx, p.Store, file), file.Close()))
}

func keysOf(ctx context.Context, store stateStore) (keys []string, err error) {
	err = store.View(ctx, func(snapshot kv.Snapshot) error {
		return snapshot.Scan("", func(key string, _ []byte) error {
			keys = append(keys, key)
			return nil
		})
	})
	return keys, errors.Trace(err)
}

// replaceState replaces the state in a store. If it is interrupted, no server accepts what there is, and it
// can be called again: the store has no schema, and is not empty, since keys that both states have stay.
func replaceState(ctx context.Context, in kv.Store, by stateStore) error {
	remove := func(keys []string) error {
		return in.Update(ctx, func(tx kv.Tx) error {
			for _, key := range keys {
				if err := tx.Delete(key); err != nil {
					return errors.Trace(err)
				}
			}
			return nil
		})
	}
	found, err := keysOf(ctx, in)
	if err != nil {
		return errors.Trace(err)
	}
	kept, err := keysOf(ctx, by)
	if err != nil {
		return errors.Trace(err)
	}
	if len(found) > 0 {
		if err := remove([]string{state.SchemaKey}); err != nil {
			return errors.Trace(err)
		}
	}
	found = slices.DeleteFunc(found, func(key string) bool {
		_, ok := slices.BinarySearch(kept, key) // a scan is in order
		return ok
	})
	for batch := range slices.Chunk(found, copiedKeys) {
		if err := remove(batch); err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(copyState(ctx, by, in))
}
