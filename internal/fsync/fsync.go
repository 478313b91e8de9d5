// Package fsync makes files and names last: after it has returned, a power cut does not
// take them back.
//
// It asks the kernel twice. XFS, when it is shut down while it syncs, may report success
// and drop what it was to write; but from then on it refuses to tell the status of any file.
// So a sync is done when it has succeeded, and after it the status can be read. That costs a
// microsecond, beside a sync's hundreds.
package fsync

import (
	"os"

	"github.com/juju/errors"
)

// File makes the content and the status of a file last, or the names in a directory.
func File(f *os.File) error {
	if err := f.Sync(); err != nil {
		return errors.Trace(err)
	}
	return Verify(f)
}

// Data makes the content of a file last, and of its status what reading it needs.
func Data(f *os.File) error {
	if err := syncData(f); err != nil {
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return Verify(f)
}

// Dir makes the names in a directory last.
func Dir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return errors.Trace(err)
	}
	defer dir.Close()
	return File(dir)
}

// Verify returns an error if the filesystem of a file has failed. It is for what was synced
// by other means.
func Verify(f *os.File) error {
	_, err := f.Stat()
	return errors.Annotate(err, "after a sync")
}
