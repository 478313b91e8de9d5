// Package osthread runs functions on an operating system thread that they may change and that
// nothing else runs on.
package osthread

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do calls f on a separate thread, which ends with f, whatever f has done to it. It is never
// the main thread, which does not end, and whose namespaces /proc/self shows as those of the
// process.
func Do(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			Do(f) // on another thread, while this one is locked
			runtime.UnlockOSThread()
			return
		}
		f() // a thread that is still locked ends with its goroutine
	}()
	<-done
}
