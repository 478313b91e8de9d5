//go:build linux

package loopdev

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// blocks returns how many bytes of the file are allocated.
func blocks(t *testing.T, f *os.File) int64 {
	t.Helper()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// Every operation that may give blocks back leaves the file fully allocated.
func TestRefuseDiscards(t *testing.T) {
	devicetest.RequireProgram(t, "blkdiscard")
	const size = 32 << 20
	f, id := backing(t, devicetest.Dir(t))
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		t.Fatal(err)
	}
	h := attach(t, f, false)
	if err := h.RefuseDiscards(); err != nil {
		t.Fatal(err)
	}
	if err := h.Keep(Label{Mark: "mark", Name: "another"}); err != nil { // which sets the status
		t.Error(err)
	}
	try := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Logf("%s: %v: %s", name, err, out) // it may fail as not supported
		}
		if got := blocks(t, f); got < size {
			t.Errorf("after %s %d of %d bytes are allocated", name, got, size)
		}
	}
	try("blkdiscard", h.Path())
	try("blkdiscard", "--zeroout", h.Path())
	try("fallocate", "--punch-hole", "--offset", "1MiB", "--length", "8MiB", h.Path())
	try("mkfs.ext4", "-q", h.Path())
	dir := t.TempDir()
	if err := unix.Mount(h.Path(), dir, "ext4", 0, "discard"); err != nil {
		t.Fatal(err)
	}
	try("fstrim", dir)
	if err := unix.Unmount(dir, 0); err != nil {
		t.Error(err)
	}

	h.Close()
	mustDetach(t, h.Device)
	checkGone(t, id)
	checkDiscards(t, h.Number)

	// Discarding the handle of a failed attach restores discards as well.
	h = attach(t, f, false)
	if err := h.RefuseDiscards(); err != nil {
		t.Error(err)
	}
	discard(t, h)
	checkGone(t, id)
	checkDiscards(t, h.Number)
}

// checkDiscards checks that the number of a detached device supports discards again. If
// another program has taken the number, it may refuse discards until it releases the
// device.
func checkDiscards(t *testing.T, number int) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); refusesDiscards(number); <-again.C {
		if time.Since(begun) < 30*time.Second {
			continue
		}
		if _, err := readBackingFile(number); err != nil {
			t.Errorf("loop%d still refuses discards", number)
		}
		return
	}
}

// Another program has the device open while it is detached.
func TestRestoreDiscardsWhileDeviceIsOpen(t *testing.T) {
	f, id := backing(t, devicetest.Dir(t))
	h := attach(t, f, false)
	if err := h.RefuseDiscards(); err != nil {
		t.Fatal(err)
	}
	opener, err := os.Open(h.Path())
	if err != nil {
		t.Fatal(err)
	}
	if err := clearFD(h.f); err != nil {
		t.Fatal(err)
	}
	h.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		restoreDiscards(t.Context(), h.Number, testPatience)
	}()
	opener.Close()
	<-done
	checkGone(t, id)
	checkDiscards(t, h.Number)
}

// A killed agent left a number that refuses discards. The next device with that number
// supports them.
func TestAttachAfterCrashAllowsDiscards(t *testing.T) {
	f, id := backing(t, devicetest.Dir(t))
	for range 3 {
		h := attach(t, f, false)
		if err := h.RefuseDiscards(); err != nil {
			t.Fatal(err)
		}
		if err := clearFD(h.f); err != nil {
			t.Fatal(err)
		}
		h.Close()
		checkGone(t, id)
	}
	h := attach(t, f, false)
	checkDiscards(t, h.Number)
	discard(t, h)
	checkGone(t, id)
}

// In a container /sys may be read-only.
func TestRefuseDiscardsWithReadOnlySys(t *testing.T) {
	if !devicetest.InOwnMounts(t) {
		return
	}
	devicetest.MakeReadOnly(t, "/sys")
	f, id := backing(t, devicetest.Dir(t))
	h := attach(t, f, false)
	if err := h.RefuseDiscards(); err == nil {
		t.Error("RefuseDiscards succeeded with a read-only /sys")
	}
	h.Close()
	mustDetach(t, h.Device)
	checkGone(t, id)
}
