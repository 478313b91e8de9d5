//go:build !linux

package boltkv

import (
	stderrors "errors"
	"os"
)

const noFollow = 0

// lock leaves locking to bbolt.
func lock(*os.File, string, access) error { return nil }

func tryLock(*os.File) bool { return true }

func newLockedError(path string, _ *os.File) error { return &LockedError{Path: path} }

func unlock(*os.File) {}

func allocate(*os.File, int64, int64) error { return stderrors.ErrUnsupported }

func available(*os.File) (int64, error) { return 0, stderrors.ErrUnsupported }
