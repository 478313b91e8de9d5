//go:build linux

package loop

import (
	"path/filepath"
	"testing"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

func TestLoopDeviceThatIsDetachedByHand(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	device := lt.Attach(tag, false)
	lt.checkBecame(tag)
	devicetest.ClearLoop(t, filepath.Base(device))
	lt.checkBecame(tag, "its loop device "+filepath.Base(device)+" was detached: attach it again")
	lt.CheckLoops(0) // looking changes nothing
	lt.Attach(tag, false)
	lt.checkBecame(tag)
	lt.Detach(tag)
	lt.Destroy(tag)
}

// What was punched out of the file of an attached volume is found missing, and comes back when it
// is attached again.
func TestLoopFileThatHasLostBlocks(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	lt.Attach(tag, false)
	sourcetest.Run(t, "fallocate", "--punch-hole", "--offset", "1MiB", "--length", "1MiB", lt.File(tag))
	lt.checkBecame(tag, "its space is not certain any more", "given space back", "attach it again")
	lt.Attach(tag, false)
	lt.checkBecame(tag)
	lt.Detach(tag)
	lt.Destroy(tag)
}
