package owner

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/juju/errors"
)

// maxLinks is how many symbolic links the kernel follows in one path.
const maxLinks = 40

// Check returns the place where users other than root and the user of this process can change
// what is at an absolute path, or make the path lead elsewhere: the path itself, a directory
// on it, or a symbolic link. It returns "" if they cannot.
//
// The file or directory at the path counts if they can write to it. A directory on the path
// may be sticky, as /tmp is: others can then change only their own entries.
//
// If a part of the path does not exist, Check returns the error of [os.Lstat], and no one else
// can change anything before that part.
func Check(path string) (at string, err error) {
	if !filepath.IsAbs(path) {
		return "", errors.NotValidf("path %q, which is not absolute,", path)
	}
	links := 0
	here, rest := "/", split(path)
	for {
		info, err := os.Lstat(here)
		if err != nil {
			return "", errors.Trace(err)
		}
		if info.Mode().Type() == fs.ModeSymlink {
			if !isOurs(info) {
				return here, nil
			}
			if links++; links > maxLinks {
				return "", errors.Trace(&fs.PathError{Op: "lstat", Path: path, Err: syscall.ELOOP})
			}
			target, err := os.Readlink(here)
			if err != nil {
				return "", errors.Trace(err)
			}
			here = filepath.Dir(here)
			if filepath.IsAbs(target) {
				here = "/"
			}
			rest = append(split(target), rest...)
			continue
		}
		onTheWay := info.IsDir() && len(rest) > 0
		if !isOurs(info) || info.Mode().Perm()&0o022 != 0 && !(onTheWay && info.Mode()&fs.ModeSticky != 0) {
			return here, nil
		}
		if len(rest) == 0 {
			return "", nil
		}
		// No part of here is a link, so ".." leads back to the previous directory.
		here, rest = filepath.Join(here, rest[0]), rest[1:]
	}
}

func isOurs(info fs.FileInfo) bool {
	uid := info.Sys().(*syscall.Stat_t).Uid
	return uid == 0 || uid == uint32(os.Geteuid())
}

func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}
