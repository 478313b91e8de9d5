package syscallfault

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	Main()
	if dir := os.Getenv("SYSCALLFAULT_TEST_DIR"); dir != "" {
		makeDirs(dir)
		return
	}
	os.Exit(m.Run())
}

// script makes and removes three directories, each in a separate process.
const script = `cd "$0" && for name in a b c; do mkdir $name && rmdir $name; done`

func TestOneCallFails(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a filter without no_new_privs needs root")
	}
	dir := t.TempDir()
	injector := New(func(path string) bool { return strings.HasPrefix(path, dir+"/") }, filepath.Dir)
	run := func() string {
		t.Helper()
		cmd := exec.Command("/bin/sh", "-c", script, dir)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := injector.Start(cmd); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the standard error shows the outcome
		return stderr.String()
	}

	injector.Arm(Fault{})
	if got := run(); got != "" {
		t.Errorf("without a fault: %s", got)
	}
	if counts := injector.Counts(); counts["mkdir"] != 3 || counts["unlink"] != 3 || counts["openat"] != 0 {
		t.Errorf("counts %v, want 3 of mkdir, 3 of unlink and none of openat", counts)
	}

	injector.Arm(Fault{Call: "mkdir", Error: unix.ENOSPC, N: 2})
	if got := run(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "No space left") {
		t.Errorf("with a fault: got %q, want one line about a lack of space", got)
	}
	if got, want := injector.Failed(), "mkdir("+filepath.Join(dir, "b")+") of mkdir"; got != want {
		t.Errorf("failed %q, want %q", got, want)
	}
	// The fault happens once, not in each process.
	if got := run(); got != "" {
		t.Errorf("after the fault: %s", got)
	}

	// A call that is not reported does not fail.
	injector.Only("unlink")
	injector.Arm(Fault{Call: "mkdir", Error: unix.ENOSPC, N: 1})
	if got := run(); got != "" || injector.Failed() != "" {
		t.Errorf("with other calls reported: got %q, failed %q", got, injector.Failed())
	}
	injector.Only("mkdir")
	if got := run(); strings.Count(got, "\n") != 1 || injector.Failed() == "" {
		t.Errorf("with the call reported: got %q, failed %q", got, injector.Failed())
	}

	injector.Only("")
	injector.Arm(Fault{Call: "mkdir", Error: unix.ENOSPC, N: 1})
	injector.Disarm()
	if got := run(); got != "" || injector.Failed() != "" {
		t.Errorf("disarmed: got %q, failed %q", got, injector.Failed())
	}
}

// makeDirs makes directories at two places in the program, so the calls are of two classes.
func makeDirs(dir string) {
	for _, name := range []string{"a", "b", "c"} {
		_ = os.Mkdir(filepath.Join(dir, name), 0o700)
	}
	_ = os.Mkdir(filepath.Join(dir, "d"), 0o700)
}

// A class contains the calls that a program makes from one place on one kind of file.
func TestFaultSelectsCallByClass(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a filter without no_new_privs needs root")
	}
	dir := t.TempDir()
	injector := New(func(path string) bool { return strings.HasPrefix(path, dir+"/") }, filepath.Dir)
	run := func(f Fault) map[Class]int {
		t.Helper()
		injector.Arm(f)
		injector.Mark("step")
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "SYSCALLFAULT_TEST_DIR="+dir)
		if err := injector.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			_ = os.Remove(filepath.Join(dir, name)) // all but what failed
		}
		return injector.Classes()
	}

	ids := map[int]string{}
	for class, n := range run(Fault{}) {
		if class.Call == "mkdir" {
			ids[n] = class.ID()
		}
	}
	if len(ids) != 2 || ids[3] == "" || ids[1] == "" {
		t.Fatalf("classes of mkdir by size: %v", ids)
	}
	for _, test := range []struct {
		class, name string
		n           int
	}{{ids[3], "b", 2}, {ids[1], "d", 1}} {
		run(Fault{Call: "mkdir", Error: unix.ENOSPC, Class: test.class, N: test.n})
		if got := injector.Failed(); !strings.Contains(got, filepath.Join(dir, test.name)+")") {
			t.Errorf("failed call %q, want that on %s", got, test.name)
		}
	}
}
