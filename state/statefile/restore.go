package statefile

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

// Restore replaces the state file at path, which need not exist, with the state of a copy or
// state file. It verifies both the source and the file that it has written. The replaced file
// stays as path.replaced-TIME, whose name Restore returns. One of the two files is at path at
// every moment.
//
// The restored state has the generation of the copy: the caller raises it. If ready is not
// nil, Restore calls it when everything is prepared, before it replaces the state file, and
// returns its error. If an agent has the state open, the error satisfies errors.Is(err,
// errors.Timeout). After an error the state file is unchanged, unless the error is from
// syncing the directory.
func Restore(from, path string, identify Identify, now time.Time, ready func() error) (meta Meta, replaced string, err error) {
	meta, err = Verify(from, identify)
	if err != nil {
		return Meta{}, "", err
	}
	// A symbolic link to the state file stays a link.
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	switch lock, err := boltkv.Lock(path); {
	case err == nil:
		defer lock.Close()
	case !errors.Is(err, fs.ErrNotExist):
		return Meta{}, "", err
	}
	restored, err := duplicate(from, path, meta, identify)
	if err != nil {
		return Meta{}, "", errors.Annotatef(explainNoSpace(err, filepath.Dir(path)), "restoring %s", from)
	}
	if ready != nil {
		if err := ready(); err != nil {
			_ = os.Remove(restored)
			return Meta{}, "", errors.Trace(err)
		}
	}
	replaced, err = linkUnique(path, path+".replaced-"+now.UTC().Format("20060102T150405Z"))
	if errors.Is(err, fs.ErrNotExist) {
		replaced, err = "", nil
	}
	if err == nil {
		err = fsync.Dir(filepath.Dir(path))
	}
	if err == nil {
		err = renameDurable(restored, path)
	}
	if err != nil {
		_ = os.Remove(restored)
		return Meta{}, replaced, errors.Annotatef(err, "restoring %s", from)
	}
	return meta, replaced, nil
}

// duplicate writes the state of a file, without its trailer, to a new file beside path,
// verifies the new file, and returns its name.
func duplicate(from, path string, wanted Meta, identify Identify) (name string, err error) {
	source, err := os.Open(from)
	if err != nil {
		return "", errors.Trace(err)
	}
	defer source.Close()
	file, err := createTemp(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(file, sum), io.NewSectionReader(source, 0, wanted.Size)); err != nil {
		return "", errors.Trace(err)
	}
	if err := fsync.File(file); err != nil {
		return "", errors.Trace(err)
	}
	dropCache(file)
	readBack := sha256.New()
	if _, err := io.Copy(readBack, io.NewSectionReader(file, 0, wanted.Size)); err != nil {
		return "", errors.Trace(err)
	}
	if hex.EncodeToString(sum.Sum(nil)) != hex.EncodeToString(readBack.Sum(nil)) {
		return "", errors.Errorf("%s reads back differently from what was written", file.Name())
	}
	found, err := Verify(file.Name(), identify)
	if err != nil {
		return "", err
	}
	if found.Identity != wanted.Identity || found.Version != wanted.Version {
		return "", errors.Errorf("%s was changed while it was read", from)
	}
	// Opening the store allocates its reserve of disk space: the disk may be full when an
	// agent starts.
	store, err := boltkv.OpenExisting(file.Name())
	if err != nil {
		return "", err
	}
	if err := store.Close(); err != nil {
		return "", err
	}
	return file.Name(), nil
}
