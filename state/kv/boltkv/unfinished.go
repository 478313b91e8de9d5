package boltkv

import (
	"bytes"
	"io"
	"os"

	"github.com/juju/errors"
)

// firstPages is the number of pages with which bbolt creates a file.
const firstPages = 4

// RemoveUnfinished removes the file if its store was never complete: a crash or a full disk
// interrupted the first write to it. It leaves any other file, a link, and a file that another
// process has open, as they are. The caller must know that a store in the file was never used:
// the beginning of a used store looks the same.
func RemoveUnfinished(path string) error {
	return errors.Annotatef(removeIf(path, isUnfinished), "removing %s, which an interrupted first start left", path)
}

// isUnfinished reports whether the file contains a part of bbolt's first write, and nothing
// else.
func isUnfinished(file *os.File) (bool, error) {
	data, err := io.ReadAll(io.LimitReader(file, int64(firstPages*os.Getpagesize())))
	if err != nil || len(data) == firstPages*os.Getpagesize() {
		return false, errors.Trace(err)
	}
	if len(bytes.Trim(data, "\x00")) == 0 {
		return true, nil
	}
	m, err := newestMeta(file)
	return m.pageSize != 0 && m.transaction <= 1, errors.Trace(err)
}

// removeIf removes the file at path if the condition holds while no other process has the file
// locked.
func removeIf(path string, condition func(*os.File) (bool, error)) error {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return errors.Trace(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|noFollow, 0)
	if err != nil {
		return errors.Trace(err)
	}
	defer release(file)
	if !tryLock(file) {
		return nil
	}
	if there, err := isAt(file, path); err != nil || !there {
		return err
	}
	if ok, err := condition(file); err != nil || !ok {
		return err
	}
	return errors.Trace(os.Remove(path))
}
