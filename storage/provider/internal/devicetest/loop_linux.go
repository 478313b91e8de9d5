package devicetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Loop is a loop device over a sparse file, gone when the test ends.
type Loop struct {
	// Path is the device, such as "/dev/loop3".
	Path string
	// File is the path of the file behind it.
	File string
}

// Name is the device's name, such as "loop3".
func (l *Loop) Name() string {
	return filepath.Base(l.Path)
}

// NewLoop makes a blank device of that size in bytes.
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

// AttachLoop makes a device over a file that is there, until the test ends.
func AttachLoop(t testing.TB, file string) *Loop {
	t.Helper()
	RequireRoot(t)
	var out []byte
	var err error
	// It loses the free device that it has found to whoever is faster.
	for range 20 {
		if out, err = exec.Command("losetup", "--find", "--nooverlap", "--show", file).Output(); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("losetup %s: %v", file, err)
	}
	l := &Loop{Path: strings.TrimSpace(string(out)), File: file}
	t.Cleanup(func() { l.Detach(t) })
	return l
}

// Detach takes the device away. It fails the test when something still has the
// device open or mounted. A device that is gone already is left alone.
func (l *Loop) Detach(t testing.TB) {
	t.Helper()
	if l.Path == "" {
		return
	}
	if out, err := exec.Command("losetup", "--detach", l.Path).CombinedOutput(); err != nil {
		t.Errorf("losetup --detach %s: %v: %s", l.Path, err, out)
	}
	awaitDetached(t, l.Name(), l.File)
	l.Path = ""
}

// awaitDetached waits until a loop device shows a file no more. Detaching a device that is
// in use succeeds, and happens later. Whoever lists the machine's devices has it in use for
// a moment.
func awaitDetached(t testing.TB, name, file string) {
	t.Helper()
	patience := time.NewTimer(30 * time.Second)
	defer patience.Stop()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for file != "" && backingFile(name) == file {
		select {
		case <-again.C:
		case <-patience.C:
			t.Errorf("/dev/%s is still in use", name)
			return
		}
	}
}

// backingFile returns the path of a loop device's file, nothing for one that has none.
func backingFile(name string) string {
	data, _ := os.ReadFile(filepath.Join("/sys/class/block", name, "loop/backing_file"))
	return strings.TrimSpace(string(data))
}
