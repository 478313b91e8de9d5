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

// TestRefuseDiscards has everything that gives blocks back try it.
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
			t.Logf("%s: %v: %s", name, err, out) // it may say that it cannot
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

	// The attempt to attach that failed gives the number back as well.
	h = attach(t, f, false)
	if err := h.RefuseDiscards(); err != nil {
		t.Error(err)
	}
	discard(t, h)
	checkGone(t, id)
	checkDiscards(t, h.Number)
}

// checkDiscards checks that who takes the number of a detached device can discard. Another
// program may have taken it, and refuse discards until it gives the number back.
func checkDiscards(t *testing.T, number int) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); refusesDiscards(number); <-again.C {
		if time.Since(begun) < 30*time.Second {
			continue
		}
		if _, err := readBackingFile(number); err != nil {
			t.Errorf("loop%d is left without discards", number)
		}
		return
	}
}

// TestNumberIsRemovedOnceItIsFree is a program that looks at the device just when it is
// detached.
func TestNumberIsRemovedOnceItIsFree(t *testing.T) {
	f, id := backing(t, devicetest.Dir(t))
	h := attach(t, f, false)
	if err := h.RefuseDiscards(); err != nil {
		t.Fatal(err)
	}
	looker, err := os.Open(h.Path())
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
	looker.Close()
	<-done
	checkGone(t, id)
	checkDiscards(t, h.Number)
}

// TestNumberThatAKilledAgentHasLeft is not taken as it is: who attaches it may want
// discards.
func TestNumberThatAKilledAgentHasLeft(t *testing.T) {
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

// TestRefuseDiscardsWhereSysIsReadOnly is a container.
func TestRefuseDiscardsWhereSysIsReadOnly(t *testing.T) {
	if !devicetest.InOwnMounts(t) {
		return
	}
	devicetest.MakeReadOnly(t, "/sys")
	f, id := backing(t, devicetest.Dir(t))
	h := attach(t, f, false)
	if err := h.RefuseDiscards(); err == nil {
		t.Error("set in a read-only /sys")
	}
	h.Close()
	mustDetach(t, h.Device)
	checkGone(t, id)
}
