package e2e

import (
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/e2e/internal/kernel"
)

// loopsBelow returns the loop devices whose file is below dir.
func loopsBelow(tb testing.TB, dir string) []kernel.Loop {
	tb.Helper()
	loops, err := kernel.Loops(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return loops
}

// mountsBelow returns what is mounted on dir and below it, the last mounted first.
func mountsBelow(tb testing.TB, dir string) []*mountinfo.Info {
	tb.Helper()
	mounts, err := kernel.Mounts(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return mounts
}

// processesOf returns the command lines of processes that name dir.
func processesOf(tb testing.TB, dir string) []string {
	tb.Helper()
	lines, err := kernel.Processes(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return lines
}

// unmountAndDetach takes away all mounts and loop devices below dir.
func unmountAndDetach(tb testing.TB, dir string) {
	tb.Helper()
	if err := kernel.Clear(dir); err != nil {
		tb.Error(err)
	}
}
