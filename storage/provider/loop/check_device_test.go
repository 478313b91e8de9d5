//go:build linux

package loop

import (
	"path/filepath"
	"testing"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

func TestLoopCheckReportsManualDetach(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	device := lt.Attach(tag, false)
	lt.checkReports(tag)
	devicetest.ClearLoop(t, filepath.Base(device))
	lt.checkReports(tag, "its loop device "+filepath.Base(device)+" was detached: attach it again")
	lt.CheckLoops(0) // a check changes nothing
	lt.Attach(tag, false)
	lt.checkReports(tag)
	lt.Detach(tag)
	lt.Destroy(tag)
}

// Blocks that were punched out of the file of an attached volume are reported, and
// allocated again when the volume is attached again.
func TestLoopCheckReportsLostBlocks(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	lt.Attach(tag, false)
	sourcetest.Run(t, "fallocate", "--punch-hole", "--offset", "1MiB", "--length", "1MiB", lt.File(tag))
	lt.checkReports(tag, "its space is no longer guaranteed", "no longer allocated", "attach it again")
	lt.Attach(tag, false)
	lt.checkReports(tag)
	lt.Detach(tag)
	lt.Destroy(tag)
}
