package osthread_test

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/osthread"
)

// Changes that a function makes to its thread are not visible to any other function.
func TestDo(t *testing.T) {
	name := func() string {
		var b [16]byte
		if err := unix.Prctl(unix.PR_GET_NAME, uintptr(unsafe.Pointer(&b)), 0, 0, 0); err != nil {
			t.Error(err)
		}
		return unix.ByteSliceToString(b[:])
	}
	const changed = "changed"
	threads := make(map[int]bool)
	for range 100 {
		osthread.Do(func() {
			if name() == changed || unix.Gettid() == os.Getpid() {
				t.Errorf("%s runs on %d, the process is %d", name(), unix.Gettid(), os.Getpid())
			}
			b := [16]byte{}
			copy(b[:], changed)
			if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&b)), 0, 0, 0); err != nil {
				t.Error(err)
			}
			threads[unix.Gettid()] = true
		})
		if name() == changed {
			t.Error("the test runs on the thread")
		}
	}
	if len(threads) < 2 {
		t.Errorf("threads %v", threads)
	}
}
