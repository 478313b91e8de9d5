package safepath

import (
	"os"
	"path/filepath"
	"sync"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
)

// settled is what this process knows of its directories. It is the process's and not a
// caller's, because any of them may find what another has left unsynced.
var settled = registry{dirs: make(map[dirID]dirState)}

// registry knows in which directories all names are durable. It is safe for concurrent use.
type registry struct {
	mu   sync.Mutex
	dirs map[dirID]dirState
}

// dirID tells a directory from others. One that is made after another was removed may have
// its inode number; born is then another, on filesystems that keep it.
type dirID struct {
	dev, ino uint64
	born     unix.StatxTimestamp
}

type dirState struct {
	// settled says that no name in the directory waits for a sync, but those of callers who
	// are about to sync it themselves.
	settled bool
	// failures counts the syncs that have failed. One that succeeds and began before the
	// last failure settles nothing.
	failures int
}

// Sync makes durable what was linked, renamed or unlinked. If it fails, the names in the
// directory may be seen and yet go with a power cut: see [Dir.Settle].
func (d *Dir) Sync() error {
	id, err := d.id()
	if err != nil {
		return errors.Trace(err)
	}
	return settled.sync(id, d.f)
}

// SyncAll is Sync for directories that an entry was moved between: where it fails in one of
// them, [Dir.Settle] will make good for all.
func SyncAll(dirs ...*Dir) error {
	var failure error
	for _, dir := range dirs {
		if err := dir.Sync(); err != nil && failure == nil {
			failure = err
		}
	}
	return failure
}

// Settle makes durable what an earlier sync of the directory failed to. It is called before
// anything is read or done in the directory that relies on the names that are there. This
// process does not know of the syncs of those before it, and so syncs each directory once;
// otherwise Settle costs one statx.
func (d *Dir) Settle() error {
	id, err := d.id()
	if err != nil {
		return errors.Trace(err)
	}
	if settled.get(id).settled {
		return nil
	}
	return errors.Annotatef(settled.sync(id, d.f), "making durable what is in %s", d.Path())
}

// settleParent is Settle for the directory around one that is there. Who may not read that
// has made nothing in it.
func settleParent(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil
	}
	defer dir.Close()
	return (&Dir{f: dir}).Settle()
}

// noteEmpty notes that the directory is new: there is nothing in it to be synced.
func (d *Dir) noteEmpty() error {
	id, err := d.id()
	if err != nil {
		return errors.Trace(err)
	}
	settled.mu.Lock()
	defer settled.mu.Unlock()
	settled.dirs[id] = dirState{settled: true, failures: settled.dirs[id].failures}
	return nil
}

func (d *Dir) id() (dirID, error) {
	var st unix.Statx_t
	if err := unix.Statx(d.fd(), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return dirID{}, &os.PathError{Op: "statx", Path: d.Path(), Err: err}
	}
	return dirID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, st.Btime}, nil
}

func (r *registry) get(id dirID) dirState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dirs[id]
}

func (r *registry) sync(id dirID, dir *os.File) error {
	before := r.get(id)
	err := fsync.File(dir)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.dirs[id]
	switch {
	case err != nil:
		now = dirState{failures: now.failures + 1}
	case now.failures == before.failures:
		now.settled = true
	}
	r.dirs[id] = now
	return errors.Trace(err)
}
