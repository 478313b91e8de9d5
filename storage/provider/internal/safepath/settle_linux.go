package safepath

import (
	"os"
	"path/filepath"
	"sync"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
)

// settled is the state of the directories that this process knows. It belongs to the process,
// not to a caller, because any caller may find a directory that another has left unsynced.
var settled = registry{dirs: make(map[dirID]dirState)}

// registry records the directories in which all names are durable. It is safe for concurrent
// use.
type registry struct {
	mu   sync.Mutex
	dirs map[dirID]dirState
}

// dirID identifies a directory. A directory that is made after another was removed may get its
// inode number; then born differs, on filesystems that record it.
type dirID struct {
	dev, ino uint64
	born     unix.StatxTimestamp
}

type dirState struct {
	// settled means that no name in the directory waits for a sync, except names of callers
	// that are about to sync it themselves.
	settled bool
	// failures counts the failed syncs. A successful sync that began before the last failure
	// settles nothing.
	failures int
}

// Sync makes links, renames and unlinks in the directory durable. If it fails, the names in
// the directory may be visible and still disappear in a power cut: see [Dir.Settle].
func (d *Dir) Sync() error {
	id, err := d.id()
	if err != nil {
		return errors.Trace(err)
	}
	return settled.sync(id, d.f)
}

// SyncAll calls Sync for directories between which an entry was moved. If it fails for one of
// them, it still syncs the others, and [Dir.Settle] repairs the failed one later.
func SyncAll(dirs ...*Dir) error {
	var failure error
	for _, dir := range dirs {
		if err := dir.Sync(); err != nil && failure == nil {
			failure = err
		}
	}
	return failure
}

// Settle makes durable what an earlier sync of the directory failed to make durable. It must
// be called before anything is read or done in the directory that relies on its names. This
// process does not know the syncs of earlier processes, so Settle syncs each directory once;
// otherwise it costs one statx.
func (d *Dir) Settle() error {
	id, err := d.id()
	if err != nil {
		return errors.Trace(err)
	}
	if settled.get(id).settled {
		return nil
	}
	return errors.Annotatef(settled.sync(id, d.f), "syncing %s", d.Path())
}

// settleParent calls Settle for the parent of an existing path. A process that may not read
// the parent has made nothing in it.
func settleParent(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil
	}
	defer dir.Close()
	return (&Dir{f: dir}).Settle()
}

// noteEmpty records that the directory is new and contains nothing that needs a sync.
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
