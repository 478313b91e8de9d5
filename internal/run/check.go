package run

import (
	"os"
	"path/filepath"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/owner"
)

// Resolve returns the path of the program without symbolic links, after [Check] has accepted it.
func Resolve(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", errors.Errorf("program %q: the path is not absolute", path)
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", errors.Annotatef(err, "program %q", path)
	}
	return resolved, Check(resolved)
}

// Check returns an error if the file at a path cannot be run as a program, or if others could
// change it. The path must not contain symbolic links.
func Check(path string) error {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return errors.Annotatef(err, "program %q", path)
	case !info.Mode().IsRegular():
		return errors.Errorf("program %q: it is not a regular file", path)
	case info.Mode().Perm()&0o111 == 0:
		return errors.Errorf("program %q: it is not executable: chmod 0755 it", path)
	}
	at, err := owner.Check(path)
	switch {
	case err != nil:
		return errors.Annotatef(err, "program %q", path)
	case at == path:
		return errors.Errorf("program %q: others than root can write to it: chown it to root, and chmod 0755 it", path)
	case at != "":
		return errors.Errorf("program %q: others than root can write to %s: move the program to a directory that only root can write to", path, at)
	}
	return nil
}
