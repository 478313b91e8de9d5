package datadir

import (
	"os"
	"path/filepath"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
)

// WriteFile replaces a file by one with the content, which only its owner can read. After a crash
// it has the old content or the new. The path with the suffix ".new" is used in between.
func WriteFile(path string, content []byte) error {
	next, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return errors.Trace(err)
	}
	_, err = next.Write(content)
	if err == nil {
		err = fsync.File(next)
	}
	if closeErr := next.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(next.Name(), path)
	}
	if err == nil {
		err = fsync.Dir(filepath.Dir(path))
	}
	return errors.Trace(err)
}
