package boltkv

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/juju/errors"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/internal/nocow"
)

const (
	// fileMode keeps secrets in the store from other users.
	fileMode fs.FileMode = 0o600

	// lockTimeout is how long Open waits for a process that is exiting to unlock the file;
	// lockRetry is the interval between attempts to lock it.
	lockTimeout = 2 * time.Second
	lockRetry   = 50 * time.Millisecond

	// settleTimeout is how long the disk has to accept a transaction that it has refused.
	settleTimeout = 30 * time.Second

	// mapSize is the reserved address space. While the file is smaller, it grows without
	// transactions waiting for snapshots.
	mapSize = 1 << 30

	// newSuffix is the suffix of a new file, which gets the store's name when it is complete,
	// so that a store whose creation was interrupted is not taken for a damaged one.
	newSuffix = ".new"
)

// access is the purpose that a store is opened for.
type access int

const (
	readWrite access = iota
	readOnly
)

// Open opens the store in the file. It creates the file if it does not exist; the directory
// must exist. Only the file's owner can read it. If another process has the store open, Open
// waits two seconds, and then returns a [LockedError]. If the file is damaged, or empty, the
// error satisfies errors.Is(err, [ErrDamaged]), and the file stays as it is. If only the meta
// page is damaged, which the last transaction wrote last, that transaction is lost, as if a
// crash had interrupted it. When Open returns, the contents of the store are on disk, even if
// the previous process ended before they were.
func Open(path string) (*Store, error) {
	// Another process may create the store at the same time.
	for {
		store, err := OpenExisting(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return store, err
		}
		store, err = create(path)
		if !errors.Is(err, fs.ErrExist) {
			return store, err
		}
	}
}

// OpenExisting is Open for a file that must exist: the error satisfies errors.Is(err,
// fs.ErrNotExist) if it does not.
func OpenExisting(path string) (*Store, error) {
	return openFile(path, readWrite)
}

// OpenReadOnly opens the store for snapshots. It changes nothing in the file, and other
// processes may open the store read-only at the same time.
func OpenReadOnly(path string) (*Store, error) {
	return openFile(path, readOnly)
}

func openFile(path string, access access) (*Store, error) {
	flag := os.O_RDWR
	if access == readOnly {
		flag = os.O_RDONLY
	}
	for {
		file, err := os.OpenFile(path, flag, 0)
		if err != nil {
			return nil, errors.Annotate(err, "opening the store")
		}
		store, err := newStore(path, file, access)
		if err == nil {
			return store, nil
		}
		release(file)
		if !errors.Is(err, errReplaced) {
			return nil, err
		}
	}
}

// errReplaced is the error for a file that is no longer the one at its path.
const errReplaced = errors.ConstError("file was replaced")

// newStore opens the store in an existing file.
func newStore(path string, file *os.File, access access) (*Store, error) {
	if err := lock(file, path, access); err != nil {
		return nil, err
	}
	// Another process may have restored a backup while this one waited for the lock.
	if there, err := isAt(file, path); err != nil {
		return nil, errors.Annotatef(err, "opening %s", path)
	} else if !there {
		return nil, errReplaced
	}
	// A damaged file would end the process: bbolt looks for free pages in its own goroutine,
	// where its panics cannot be recovered.
	if err := checkStructure(file); err != nil {
		return nil, describe(path, err)
	}
	if access == readWrite {
		// The previous process may have ended before its last transaction, and the file's
		// name, were on disk.
		if err := confirmFile(path, file); err != nil {
			return nil, errors.Annotatef(err, "opening %s", path)
		}
	}
	store := &Store{path: path, file: file, settleTimeout: settleTimeout}
	if err := store.start(access); err != nil {
		return nil, err
	}
	if access == readWrite {
		if err := makePrivate(file); err != nil {
			store.Close()
			return nil, errors.Annotatef(err, "opening %s", path)
		}
		store.ensureReserve()
	}
	return store, nil
}

// makePrivate sets the file's mode. It does nothing if the mode is right already: there may be
// no disk space for the change.
func makePrivate(file *os.File) error {
	info, err := file.Stat()
	if err != nil || info.Mode().Perm() == fileMode {
		return errors.Trace(err)
	}
	return errors.Trace(file.Chmod(fileMode))
}

// create makes the store. The error satisfies errors.Is(err, fs.ErrExist) if another process
// has made it, or may have made it.
func create(path string) (*Store, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return nil, errors.Errorf("opening the store: %s is a symbolic link to a file that does not exist", path)
	}
	newPath := path + newSuffix
	file, err := os.OpenFile(newPath, os.O_RDWR|os.O_CREATE|noFollow, fileMode)
	if err != nil {
		return nil, errors.Annotate(err, "making the store")
	}
	store, err := initialize(path, file)
	if err == nil {
		return store, nil
	}
	release(file)
	_ = removeIf(newPath, func(*os.File) (bool, error) { return true, nil })
	return nil, err
}

// initialize makes an empty store in the new file, and renames the file.
func initialize(path string, file *os.File) (*Store, error) {
	newPath := path + newSuffix
	if err := lock(file, newPath, readWrite); err != nil {
		return nil, err
	}
	// The file may have become the store while this process waited for the lock.
	if _, err := os.Lstat(path); err == nil {
		return nil, errors.Annotatef(fs.ErrExist, "making %s", path)
	}
	if there, err := isAt(file, newPath); err != nil {
		return nil, errors.Annotatef(err, "making %s", path)
	} else if !there {
		return nil, errors.Annotatef(fs.ErrExist, "making %s", path)
	}
	if err := file.Truncate(0); err != nil {
		return nil, errors.Annotatef(err, "making %s", path)
	}
	_ = nocow.Set(file) // otherwise allocating ahead is useless on btrfs
	store := &Store{path: path, file: file, settleTimeout: settleTimeout}
	if err := store.start(readWrite); err != nil {
		return nil, err
	}
	err := store.db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket(bucket)
		return err
	})
	var m meta
	if err == nil {
		m, err = readMeta(file)
	}
	if err == nil {
		store.confirmed.Store(m.transaction)
		store.ensureReserve()
		err = os.Rename(newPath, path)
	}
	if err == nil {
		err = fsync.Dir(filepath.Dir(path))
	}
	if err != nil {
		store.db.Close()
		return nil, errors.Annotatef(err, "making %s", path)
	}
	return store, nil
}

// start opens the file with bbolt.
func (s *Store) start(access access) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer s.recoverPanic(&err)
	s.db, err = bbolt.Open(s.path, fileMode, &bbolt.Options{
		OpenFile:     func(string, int, fs.FileMode) (*os.File, error) { return s.file, nil },
		Timeout:      lockTimeout,
		ReadOnly:     access == readOnly,
		FreelistType: bbolt.FreelistMapType,
		// Find free pages when the file is opened, rather than write them with every
		// transaction.
		NoFreelistSync:  true,
		InitialMmapSize: mapSize,
		NoStatistics:    true,
		Logger:          commitGuard{discard, s},
	})
	switch {
	case err == nil:
	case errors.Is(err, bolterrors.ErrTimeout):
		return newLockedError(s.path, s.file)
	case errors.Is(err, bolterrors.ErrInvalid):
		// The structure is intact: bbolt returns this error for a meta page that it fails to
		// read.
		return unreadable(s.path)
	default:
		return errors.Annotatef(err, "opening %s", s.path)
	}
	// The file grows by the space that is allocated ahead.
	s.db.AllocSize = minReserve / 4
	m, err := readMeta(s.file)
	if err != nil {
		_ = s.db.Close()
		return describe(s.path, err)
	}
	s.confirmed.Store(m.transaction)
	return nil
}

// CreateFile makes an empty file for a copy of a store, with the mode and attributes that Open
// uses. There must be no file at path.
func CreateFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return nil, errors.Trace(err)
	}
	_ = nocow.Set(file)
	return file, nil
}

// Lock prevents other processes from changing the store in the file, whatever the file
// contains, and from locking it, until the returned Closer is closed. [OpenReadOnly] and
// [Check] can read the file. If another process has the store open, Lock returns the same
// error as Open.
func Lock(path string) (io.Closer, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, errors.Annotate(err, "locking the store")
	}
	// The first lock verifies that no process has the store open, and the second keeps it so.
	err = lock(file, path, readWrite)
	if err == nil {
		err = lock(file, path, readOnly)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// release unlocks and closes the file. While the file is mapped, closing it alone would not
// unlock it.
func release(file *os.File) {
	unlock(file)
	_ = file.Close()
}

// isAt reports whether the file is the one at path.
func isAt(file *os.File, path string) (bool, error) {
	info, err := file.Stat()
	if err != nil {
		return false, errors.Trace(err)
	}
	there, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, errors.Trace(err)
	}
	return os.SameFile(info, there), nil
}
