// Package program lets the test of an example run the example in a separate process. The
// process runs the test's own binary, so it is built like the test, with or without the race
// detector.
package program

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// isProgram is set in the environment of a process that runs the program, rather than its
// test.
const isProgram = "STOWAGE_EXAMPLE_IS_PROGRAM"

// Main is the whole body of an example's TestMain; main is the example's main function.
func Main(m *testing.M, main func()) {
	if os.Getenv(isProgram) == "" {
		os.Exit(m.Run())
	}
	main()
}

// Command returns the program, ready to be started, with dir as its directory for temporary
// files.
func Command(t testing.TB, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), isProgram+"=1", "TMPDIR="+dir)
	return cmd
}

// TempDir returns a temporary directory, by a path without symbolic links.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Run runs the program until it ends, and returns the lines that it has printed. If the
// program fails, so does the test.
func Run(t testing.TB, cmd *exec.Cmd) []string {
	t.Helper()
	var output, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &errs
	if err := cmd.Run(); err != nil {
		t.Errorf("the program: %v", err)
	}
	t.Logf("%s%s", &output, &errs)
	return strings.Split(output.String(), "\n")
}

// ExpectEmpty fails the test unless the directory is empty.
func ExpectEmpty(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	if len(entries) > 0 {
		t.Errorf("the program has left %v", entries)
	}
}

// ExpectLines fails the test unless the output has these lines, in this order; there may be
// others between them.
func ExpectLines(t testing.TB, output []string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		i := slices.Index(output, line)
		if i < 0 {
			t.Errorf("the output lacks %q, or has it too early", line)
			return
		}
		output = output[i+1:]
	}
}
