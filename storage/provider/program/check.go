package program

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/juju/errors"
)

// resolve returns the path of the program without symbolic links.
func resolve(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", errors.Errorf("program %q: the path is not absolute", path)
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", errors.Annotatef(err, "program %q", path)
	}
	return resolved, check(resolved)
}

// check returns an error if what is at a path without symbolic links cannot be run,
// or if others could have it say or do what they like.
func check(path string) error {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return errors.Annotatef(err, "program %q", path)
	case !info.Mode().IsRegular():
		return errors.Errorf("program %q: it is not a regular file", path)
	case info.Mode().Perm()&0o111 == 0:
		return errors.Errorf("program %q: it is not executable: chmod 0755 it", path)
	case !trusted(info):
		return errors.Errorf("program %q: others than root can write to it: chown it to root, and chmod 0755 it", path)
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err != nil {
			return errors.Annotatef(err, "program %q", path)
		}
		if !trusted(info) {
			return errors.Errorf("program %q: others than root can write to %s: move the program to a directory of root's", path, dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// trusted reports whether only root and the user of this process can change a file,
// or what is in a directory. In a sticky directory others can change only what is
// theirs.
func trusted(info fs.FileInfo) bool {
	owner := info.Sys().(*syscall.Stat_t).Uid
	if owner != 0 && owner != uint32(os.Geteuid()) {
		return false
	}
	return info.Mode().Perm()&0o022 == 0 || info.IsDir() && info.Mode()&fs.ModeSticky != 0
}
