package statefile

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

// temporarySuffix, followed by a number, is the suffix of incomplete files.
const temporarySuffix = ".tmp"

// createTemp creates a private temporary file beside path.
func createTemp(path string) (*os.File, error) {
	for n := 1; ; n++ {
		file, err := boltkv.CreateFile(path + temporarySuffix + strconv.Itoa(n))
		if !errors.Is(err, fs.ErrExist) {
			return file, errors.Annotatef(err, "writing %s", path)
		}
	}
}

// removeLeftovers removes the files that createTemp created beside path in an interrupted
// process. No other process may be creating files there.
func removeLeftovers(path string) error {
	leftovers, err := filepath.Glob(escape(path) + temporarySuffix + "[0-9]*")
	if err != nil {
		return errors.Trace(err)
	}
	for _, leftover := range leftovers {
		if err := os.Remove(leftover); err != nil {
			return errors.Trace(err)
		}
	}
	return nil
}

// escape returns a pattern that matches the path alone.
func escape(path string) string {
	var pattern []byte
	for i := range len(path) {
		if strings.IndexByte(`*?[\`, path[i]) >= 0 {
			pattern = append(pattern, '\\')
		}
		pattern = append(pattern, path[i])
	}
	return string(pattern)
}

// linkUnique links the file to path or, if that exists, to a similar name beside it. It
// returns the name.
func linkUnique(file, path string) (string, error) {
	name := path
	for n := 2; ; n++ {
		err := os.Link(file, name)
		if !errors.Is(err, fs.ErrExist) {
			return name, errors.Trace(err)
		}
		name = path + "-" + strconv.Itoa(n)
	}
}

// renameDurable renames a file, and syncs the directory.
func renameDurable(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(fsync.Dir(filepath.Dir(to)))
}
