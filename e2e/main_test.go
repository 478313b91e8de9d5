// Package e2e tests the stowage command as users run it: the built binary with files on
// disk, loop devices and mounts.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// stowage is the binary under test.
var stowage string

func TestMain(m *testing.M) {
	if status, ok := otherProgram(); ok {
		os.Exit(status)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "stowage-bin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if stowage, err = command.Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Parallel tests spend most of their time waiting for second scans and for disks.
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// needRoot skips a test that needs root, or fails it where root was promised.
func needRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
		tb.Fatal("loop devices and mounts need root, which STOWAGE_REQUIRE_ROOT=1 promises")
	}
	tb.Skip("loop devices and mounts need root")
}
