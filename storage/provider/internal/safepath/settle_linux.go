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
var settled = registry{syncFile: fsync.File, dirs: make(map[dirID]*dirState)}

// registry records the directories in which all names are durable. It is safe for concurrent
// use.
type registry struct {
	syncFile func(*os.File) error
	mu       sync.Mutex
	dirs     map[dirID]*dirState
}

// dirID identifies a directory. A directory that is made after another was removed may get its
// inode number; then born differs, on filesystems that record it.
type dirID struct {
	dev, ino uint64
	born     unix.StatxTimestamp
}

// dirState is the state of one directory.
type dirState struct {
	// settled means that no name in the directory waits for a sync, except names of callers
	// that are about to sync it themselves.
	settled bool
	// running is the sync that runs now, next the one that begins after it. Both may be nil.
	running, next *dirSync
}

// dirSync is a sync of a directory for all callers that asked for one before it began.
type dirSync struct {
	done chan struct{} // closed when the sync has ended with err
	err  error
}

// Sync makes links, renames and unlinks in the directory durable. Concurrent callers share a
// sync. If it fails, the names in the directory may be visible and still disappear in a power
// cut: see [Dir.Settle].
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
	if settled.has(id) {
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
	settled.dir(id).settled = true
	return nil
}

func (d *Dir) id() (dirID, error) {
	var st unix.Statx_t
	if err := unix.Statx(d.fd(), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return dirID{}, &os.PathError{Op: "statx", Path: d.Path(), Err: err}
	}
	return dirID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, st.Btime}, nil
}

// dir returns the state of a directory. The caller must hold the mutex.
func (r *registry) dir(id dirID) *dirState {
	if r.dirs[id] == nil {
		r.dirs[id] = &dirState{}
	}
	return r.dirs[id]
}

func (r *registry) has(id dirID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dir(id).settled
}

// sync syncs a directory. Callers that have to wait for a running sync share the next one.
func (r *registry) sync(id dirID, dir *os.File) error {
	r.mu.Lock()
	state := r.dir(id)
	if shared := state.next; shared != nil {
		r.mu.Unlock()
		<-shared.done
		return errors.Trace(shared.err)
	}
	this, before := &dirSync{done: make(chan struct{})}, state.running
	state.next = this
	r.mu.Unlock()
	if before != nil {
		<-before.done
	}
	r.mu.Lock()
	state.running, state.next = this, nil
	r.mu.Unlock()
	this.err = r.syncFile(dir)
	if this.err == nil && before != nil {
		// A sync that failed while the callers waited may have lost their names, too.
		this.err = before.err
	}
	r.mu.Lock()
	state.running, state.settled = nil, this.err == nil
	r.mu.Unlock()
	close(this.done)
	return errors.Trace(this.err)
}
