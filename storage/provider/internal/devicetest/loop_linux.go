package devicetest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/looptest"
)

// Loop is a loop device over a sparse file. It exists until the test ends.
type Loop struct {
	// Path is the path of the device, such as "/dev/loop3".
	Path string
	// File is the path of the backing file.
	File string
}

// Name returns the device's name, such as "loop3".
func (l *Loop) Name() string {
	return filepath.Base(l.Path)
}

// NewLoop makes a blank device with the given size in bytes.
func NewLoop(t testing.TB, size int64) *Loop {
	t.Helper()
	file := filepath.Join(t.TempDir(), "backing")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return AttachLoop(t, file)
}

// AttachLoop makes a device over an existing file, until the test ends.
func AttachLoop(t testing.TB, file string) *Loop {
	t.Helper()
	RequireRoot(t)
	path, err := looptest.Attach(file)
	if err != nil {
		t.Fatal(err)
	}
	l := &Loop{Path: path, File: file}
	t.Cleanup(func() { l.Detach(t) })
	return l
}

// Detach detaches the device. It fails the test if the device is still open or mounted. It
// ignores a device that is already detached.
func (l *Loop) Detach(t testing.TB) {
	t.Helper()
	if l.Path == "" {
		return
	}
	if err := looptest.Detach(l.Path); err != nil && !errors.Is(err, unix.ENXIO) {
		t.Error(err)
	}
	l.Path = ""
}
