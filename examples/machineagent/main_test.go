package main

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stowage-io/stowage/examples/internal/program"
)

func TestMain(m *testing.M) { program.Main(m, main) }

func TestProgram(t *testing.T) {
	needRoot(t)
	dir := program.TempDir(t)
	output := program.Run(t, program.Command(t, dir))
	for _, tag := range []string{"filesystem-0-0", "filesystem-0-1", "volume-0-2", "filesystem-0-2"} {
		for _, status := range []string{"attached", "detached"} {
			if !slices.ContainsFunc(output, func(line string) bool { return strings.HasPrefix(line, tag+" "+status+" ") }) {
				t.Errorf("%s was not %s", tag, status)
			}
		}
	}
	expectNothingLeft(t, dir)
}

func TestSignalRemovesStorage(t *testing.T) {
	needRoot(t)
	dir := program.TempDir(t)
	cmd := program.Command(t, dir, "-wait")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var output []string
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		output = append(output, lines.Text())
		if lines.Text() != "waiting for Ctrl-C" {
			continue
		}
		if held := held(t, dir); len(held) != 4 {
			t.Errorf("while the program waits it holds %q, want three mounts and a loop device", held)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	t.Log(strings.Join(output, "\n"))
	program.ExpectLines(t, output, "waiting for Ctrl-C", "interrupted")
	expectNothingLeft(t, dir)
}

func TestWithoutRootMakesNothing(t *testing.T) {
	// Another user cannot reach a directory of t.TempDir.
	dir, err := os.MkdirTemp("", "machineagent-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cmd := program.Command(t, dir)
	if os.Geteuid() == 0 {
		const nobody = 65534
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	output := program.Run(t, cmd)
	program.ExpectEmpty(t, dir)
	program.ExpectLines(t, output,
		"not root: nothing is made, since a machine's providers need root to mount and for loop devices")
}

// needRoot skips a test that needs root, or fails it where root was promised.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
		t.Fatal("loop devices and mounts need root, which STOWAGE_REQUIRE_ROOT=1 promises")
	}
	t.Skip("loop devices and mounts need root")
}

func expectNothingLeft(t *testing.T, dir string) {
	t.Helper()
	program.ExpectEmpty(t, dir)
	if held := held(t, dir); len(held) > 0 {
		t.Errorf("the program has left %q", held)
	}
}

// held returns the mounts in a directory, and the loop devices of files in it.
func held(t *testing.T, dir string) []string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var held []string
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], dir+"/") {
			held = append(held, fields[4])
		}
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, loop := range loops {
		// A loop device may disappear at any time.
		file, err := os.ReadFile(loop)
		if err == nil && strings.HasPrefix(string(file), dir+"/") {
			held = append(held, loop)
		}
	}
	return held
}
