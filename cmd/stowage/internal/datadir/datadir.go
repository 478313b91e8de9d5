// Package datadir is the data directory of an agent: where what is kept, how the
// directory is made private, and whether it is still the one in which the state was
// made. It reads the directory and makes no provider call; one agent, or one command
// on a stopped agent, uses a directory at a time, for which the lock on the state file
// is the proof.
package datadir

import (
	"io/fs"
	"os"
	"path/filepath"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/owner"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// Dir is the absolute path of a data directory.
type Dir string

// The names of what is in a data directory.
const (
	stateFile  = "state.db"
	markFile   = "state.mark"
	storageDir = "storage"

	// newState is what a first start leaves of the state file when it is cut off.
	newState = stateFile + ".new"
)

// StateFile is the file that holds the state.
func (d Dir) StateFile() string { return filepath.Join(string(d), stateFile) }

// MarkFile is the small file that tells a state that has been restored.
func (d Dir) MarkFile() string { return filepath.Join(string(d), markFile) }

// Storage is the directory in which each provider has one of its own.
func (d Dir) Storage() string { return filepath.Join(string(d), storageDir) }

// Keepers are the directories in which local providers keep storage, those that are there
// and those that are not yet.
func (d Dir) Keepers() []provider.StorageDirectory {
	var all []provider.StorageDirectory
	for _, t := range []storage.ProviderType{
		provider.LoopProviderType, provider.TmpfsProviderType, provider.RootfsProviderType, provider.ManagedSourceType,
	} {
		all = append(all, provider.StorageDirectory{Provider: t, Path: filepath.Join(d.Storage(), string(t))})
	}
	return all
}

// Prepare makes the directory and keeps others out of it. A directory that holds
// other things is not taken over, nor is one to which others can write: what is in it
// may be theirs.
func (d Dir) Prepare() error {
	// The part of the path that exists is checked first: nothing is made where
	// others can write.
	if err := d.checkOwner(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Trace(err)
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return errors.Annotate(err, "making the data directory")
	}
	if err := d.checkOwner(); err != nil {
		return errors.Trace(err)
	}
	if err := d.checkEntries(); err != nil {
		return errors.Trace(err)
	}
	return errors.Annotate(os.Chmod(string(d), 0o700), "making the data directory private")
}

// checkEntries refuses a directory that is neither empty nor an agent's.
func (d Dir) checkEntries() error {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return errors.Annotate(err, "reading the data directory")
	}
	foreign := false
	for _, entry := range entries {
		switch entry.Name() {
		case stateFile, markFile, storageDir:
			return nil
		case newState, "lost+found": // the latter is of a filesystem of its own
		default:
			foreign = true
		}
	}
	if foreign {
		return errors.Errorf("%s holds other things than an agent's: choose an empty or new --data-dir", d)
	}
	return nil
}

func (d Dir) checkOwner() error {
	at, err := owner.Check(string(d))
	switch {
	case err != nil:
		return errors.Annotate(err, "looking at the data directory")
	case at == string(d):
		return errors.Errorf("others than root can write to %s: choose another --data-dir, or chown it to root and chmod 0700 it once you have seen what is in it", d)
	case at != "":
		return errors.Errorf("others than root can write to %s, and so replace %s: choose another --data-dir", at, d)
	}
	return nil
}

// CheckState refuses a directory whose state file is missing or empty although storage
// was made in it: a new state beside it would take that storage for its own, or never
// find it.
func (d Dir) CheckState() error {
	info, err := os.Lstat(d.StateFile())
	var what string
	switch {
	case errors.Is(err, fs.ErrNotExist):
		what = "is missing"
	case err != nil:
		return errors.Annotate(err, "looking at the state file")
	case info.Size() == 0:
		what = "is empty"
	default:
		return nil
	}
	evidence, err := d.findEvidence()
	if err != nil {
		return errors.Annotatef(err, "%s %s: looking for what was made with it", d.StateFile(), what)
	}
	if evidence == "" {
		return nil
	}
	return errors.Errorf("%s %s, and %s shows that there was one: put the file back, or run `stowage restore FILE` with a backup, or `stowage recover` without one",
		d.StateFile(), what, evidence)
}

// findEvidence returns the path of something that a state has left outside its file, or
// an empty path if there is nothing.
func (d Dir) findEvidence() (string, error) {
	if _, err := os.Lstat(d.MarkFile()); err == nil {
		return d.MarkFile(), nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", errors.Trace(err)
	}
	records, err := filepath.Glob(filepath.Join(globEscape(d.Storage()), "*", "records", "*.json"))
	if err != nil || len(records) == 0 {
		return "", errors.Trace(err)
	}
	return records[0], nil
}

// globEscape makes a path a pattern that only the path matches.
func globEscape(path string) string {
	var escaped []byte
	for _, char := range []byte(path) {
		switch char {
		case '*', '?', '[', '\\':
			escaped = append(escaped, '\\')
		}
		escaped = append(escaped, char)
	}
	return string(escaped)
}

// PrepareStorage makes the directory that providers use.
func (d Dir) PrepareStorage() error {
	if err := os.Mkdir(d.Storage(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return errors.Annotate(err, "making the storage directory")
	}
	return errors.Annotate(os.Chmod(d.Storage(), 0o700), "making the storage directory private")
}
