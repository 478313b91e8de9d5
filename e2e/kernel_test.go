package e2e

import (
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/e2e/internal/kernel"
)

// loopsBelow returns the loop devices whose backing file is below dir.
func loopsBelow(tb testing.TB, dir string) []kernel.Loop {
	tb.Helper()
	loops, err := kernel.Loops(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return loops
}

// mountsBelow returns the mounts on dir and below it, the latest first.
func mountsBelow(tb testing.TB, dir string) []*mountinfo.Info {
	tb.Helper()
	mounts, err := kernel.Mounts(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return mounts
}

// processesOf returns the command lines that contain dir.
func processesOf(tb testing.TB, dir string) []string {
	tb.Helper()
	lines, err := kernel.Processes(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return lines
}

// unmountAndDetach unmounts everything below dir, and detaches the loop devices there.
func unmountAndDetach(tb testing.TB, dir string) {
	tb.Helper()
	if err := kernel.Clear(dir); err != nil {
		tb.Error(err)
	}
}
