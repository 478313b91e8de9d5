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

	// lockTimeout is how long a process that is on its way out may still hold the
	// file, and lockRetry how often it is asked for.
	lockTimeout = 2 * time.Second
	lockRetry   = 50 * time.Millisecond

	// settleTimeout is how long a disk has to take a transaction that it has refused.
	settleTimeout = 30 * time.Second

	// mapSize is the address space that is set aside. Up to this size the file
	// grows without transactions waiting for snapshots.
	mapSize = 1 << 30

	// newSuffix is of the file that becomes the store when it is complete: so a
	// store that is cut off while it is made is not taken for a damaged one.
	newSuffix = ".new"
)

// access is what a store is opened for.
type access int

const (
	readWrite access = iota
	readOnly
)

// Open opens the store in the file, which is made if it is not there; its directory
// has to be. The file is readable by its owner alone. While another process has the
// store open, Open waits two seconds, and then returns a [LockedError]. A file that is
// damaged, also one that is empty, is an error that satisfies errors.Is(err,
// [ErrDamaged]), and stays as it is. Where only the page is damaged that the last
// transaction wrote last, that transaction is lost, as if a crash had cut it off. What the
// store has is on the disk when Open returns, also where the process before it ended
// before it was.
func Open(path string) (*Store, error) {
	// Another process may make the store, or be about to, while this one tries.
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

// OpenExisting is Open for a file that has to be there: the error satisfies
// errors.Is(err, fs.ErrNotExist) if it is not.
func OpenExisting(path string) (*Store, error) {
	return openFile(path, readWrite)
}

// OpenReadOnly opens the store for snapshots. It changes nothing in the file, and other
// processes may open the store in the same way at the same time.
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

// errReplaced is the error of a file that is no longer the one at its path.
const errReplaced = errors.ConstError("file was replaced")

// newStore returns the store in a file that is there.
func newStore(path string, file *os.File, access access) (*Store, error) {
	if err := lock(file, path, access); err != nil {
		return nil, err
	}
	// While this process waited for the lock, another may have restored a backup.
	if there, err := isAt(file, path); err != nil {
		return nil, errors.Annotatef(err, "opening %s", path)
	} else if !there {
		return nil, errReplaced
	}
	// What bbolt would come upon in a damaged file ends the process: it looks for
	// free pages in a goroutine of its own.
	if err := checkStructure(file); err != nil {
		return nil, describe(path, err)
	}
	if access == readWrite {
		// The process before this one may have ended before its last transaction, and
		// the file's name, were on the disk.
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

// makePrivate gives the file its mode. What is not needed is not done: there may be no
// space for it.
func makePrivate(file *os.File) error {
	info, err := file.Stat()
	if err != nil || info.Mode().Perm() == fileMode {
		return errors.Trace(err)
	}
	return errors.Trace(file.Chmod(fileMode))
}

// create makes the store, and returns an error that satisfies errors.Is(err,
// fs.ErrExist) if another process has made it, or has had the chance to.
func create(path string) (*Store, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return nil, errors.Errorf("opening the store: %s is a link to a file that is not there", path)
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

// initialize makes an empty store of the new file, and gives it its name.
func initialize(path string, file *os.File) (*Store, error) {
	newPath := path + newSuffix
	if err := lock(file, newPath, readWrite); err != nil {
		return nil, err
	}
	// While this process waited for the lock, the file may have become the store.
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
	_ = nocow.Set(file) // else allocating ahead is of no use on btrfs
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
		// Free pages are found again when the file is opened, rather than written
		// with every transaction.
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
		// The structure is whole: bbolt says this of a meta page that it fails to read.
		return unreadable(s.path)
	default:
		return errors.Annotatef(err, "opening %s", s.path)
	}
	m, err := readMeta(s.file)
	if err != nil {
		_ = s.db.Close()
		return describe(s.path, err)
	}
	s.confirmed.Store(m.transaction)
	return nil
}

// CreateFile makes an empty file for a copy of a store, as Open makes its own. There must
// be none at path.
func CreateFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return nil, errors.Trace(err)
	}
	_ = nocow.Set(file)
	return file, nil
}

// Lock keeps other processes from changing the store in the file, whatever is in it, and
// from locking it, until what it returns is closed. [OpenReadOnly] and [Check] can read it.
// It returns the same error as Open while another process has the store open.
func Lock(path string) (io.Closer, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, errors.Annotate(err, "locking the store")
	}
	// That nobody has it open is what the first lock tells, and the second keeps.
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

// release closes the file, and lets other processes have it: as long as it is mapped,
// closing it does not.
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
