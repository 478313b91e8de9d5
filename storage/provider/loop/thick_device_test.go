//go:build linux

package loop

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/looptest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// remark returns what the source has to say about a volume.
func (t *loopTest) remark(tag names.VolumeTag) string {
	t.Helper()
	return t.Source.(storage.VolumeRemarker).VolumeRemark(tag.String())
}

// checkRemark checks that the remark on a volume has all the words, and is empty where
// there are none.
func (t *loopTest) checkRemark(tag names.VolumeTag, words ...string) {
	t.Helper()
	got := t.remark(tag)
	if len(words) == 0 && got != "" {
		t.Errorf("remarked %q", got)
	}
	for _, word := range words {
		if !strings.Contains(got, word) {
			t.Errorf("remarked %q, without %q", got, word)
		}
	}
}

// discard has a device give back the blocks of its file, as far as it does.
func (t *loopTest) discard(device string) {
	t.Helper()
	devicetest.RequireProgram(t, "blkdiscard")
	if out, err := exec.Command("blkdiscard", "--force", device).CombinedOutput(); err != nil {
		t.Logf("blkdiscard: %v: %s", err, out) // a device may have no discards
	}
	f, err := os.Open(t.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		t.Error(err)
	}
}

func TestLoopVolumeKeepsItsBlocks(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	if err := lt.TryCreate(tag, 32); err != nil {
		t.Fatal(err)
	}
	device := lt.Attach(tag, false)
	lt.checkRemark(tag)
	sourcetest.Run(t, "mkfs.ext4", "-q", device)
	lt.checkFile(tag, 32)
	lt.discard(device)
	lt.checkFile(tag, 32)
	lt.Detach(tag)

	// One of an older version, or of a crash before it was made to refuse discards.
	device, err := looptest.Attach(lt.File(tag))
	if err != nil {
		t.Fatal(err)
	}
	lt.discard(device)
	if got := lt.Attach(tag, false); got != device {
		t.Errorf("attached as %s and %s", got, device)
	}
	lt.checkFile(tag, 32)
	lt.discard(device)
	lt.checkFile(tag, 32)
	lt.Detach(tag)
	lt.Destroy(tag)
}

// TestLoopAllocatesAgainWhatWasPunchedOut is a file that has lost blocks while no device
// showed it: it gets them when it is attached, while there is space, not when it is
// written.
func TestLoopAllocatesAgainWhatWasPunchedOut(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	sourcetest.Run(t, "fallocate", "--punch-hole", "--offset", "1MiB", "--length", "2MiB", lt.File(tag))
	lt.Attach(tag, false)
	lt.checkFile(tag, sourcetest.VolumeSize)
	lt.Detach(tag)
	lt.Destroy(tag)
}

func TestLoopVolumeWhereSysIsReadOnly(t *testing.T) {
	if !devicetest.InOwnMounts(t) {
		return
	}
	lt := newLoopTest(t)
	devicetest.MakeReadOnly(t, "/sys")
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	device := lt.Attach(tag, false)
	limit, err := os.ReadFile("/sys/block/" + filepath.Base(device) + "/queue/discard_max_bytes")
	if err != nil {
		t.Fatal(err)
	}
	if string(limit) != "0\n" { // as of a number that a crash has left so
		lt.checkRemark(tag, "discards may give its space back", "read-only file system")
	}
	lt.Detach(tag)
	lt.checkRemark(tag)
	lt.Attach(tag, true) // which discards nothing
	lt.checkRemark(tag)
	lt.Detach(tag)
	lt.Destroy(tag)
}
