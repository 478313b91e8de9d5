package owner

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/juju/errors"
)

// maxLinks is how many symbolic links the kernel follows on one way.
const maxLinks = 40

// Check returns where others than root and the user of this process can change what an
// absolute path leads to, or have it lead elsewhere: the path itself, a directory on
// the way to it, or a symbolic link. It is "" where they cannot.
//
// What is at the path counts as theirs when they can write to it. A directory on the way
// may be sticky, as /tmp is: of what is in it, others can change only what is their own.
//
// Where a part of the path is missing, the error is that of [os.Lstat], and everything
// before it is nobody else's.
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
		// No part of the way here is a link: ".." leads to where it came from.
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
