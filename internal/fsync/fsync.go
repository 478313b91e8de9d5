// Package fsync makes files and names durable: after its functions have returned, a power cut
// does not lose them.
//
// It makes two system calls. If XFS is shut down while it syncs, it may report success and
// discard the data; but from then on it refuses to return the status of any file. So a sync
// counts only if it succeeds, and reading the status after it does too. That costs a
// microsecond, compared with a sync's hundreds.
package fsync

import (
	"os"

	"github.com/juju/errors"
)

// File makes the content and the status of a file durable, or the names in a directory.
func File(f *os.File) error {
	if err := f.Sync(); err != nil {
		return errors.Trace(err)
	}
	return Verify(f)
}

// Data makes the content of a file durable, with the part of its status that reading needs.
func Data(f *os.File) error {
	if err := syncData(f); err != nil {
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return Verify(f)
}

// Dir makes the names in a directory durable.
func Dir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return errors.Trace(err)
	}
	defer dir.Close()
	return File(dir)
}

// Verify returns an error if the filesystem of a file has failed. Call it after a sync by
// other means.
func Verify(f *os.File) error {
	_, err := f.Stat()
	return errors.Annotate(err, "after a sync")
}
