// Package e2e tests the stowage command as its users have it: the built binary,
// files on disk, loop devices and mounts.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// stowage is the binary under test.
var stowage string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "stowage-bin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	stowage = filepath.Join(dir, "stowage")
	build := exec.Command("go", "build", "-o", stowage, "../cmd/stowage")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the command: %v\n%s", err, out)
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
