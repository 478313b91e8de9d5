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
	os.Exit(m.Run())
}

// script makes three directories, each in a process of its own.
const script = `cd "$0" && for name in a b c; do mkdir $name && rmdir $name; done`

func TestOneCallFails(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a filter without no_new_privs needs root")
	}
	dir := t.TempDir()
	injector := New(func(path string) bool { return strings.HasPrefix(path, dir+"/") })
	run := func() string {
		t.Helper()
		cmd := exec.Command("/bin/sh", "-c", script, dir)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := injector.Start(cmd); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the text tells
		return stderr.String()
	}

	injector.Arm(Fault{})
	if got := run(); got != "" {
		t.Errorf("without a fault: %s", got)
	}
	if counts := injector.Counts(); counts["mkdir"] != 3 || counts["unlink"] != 3 || counts["openat"] != 0 {
		t.Errorf("counted %v", counts)
	}

	injector.Arm(Fault{Call: "mkdir", Error: unix.ENOSPC, N: 2})
	if got := run(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "No space left") {
		t.Errorf("with a fault: %q", got)
	}
	if got, want := injector.Failed(), "mkdir("+filepath.Join(dir, "b")+") of mkdir"; got != want {
		t.Errorf("failed %q, want %q", got, want)
	}
	// It fails once, not in each program.
	if got := run(); got != "" {
		t.Errorf("after the fault: %s", got)
	}

	injector.Arm(Fault{Call: "mkdir", Error: unix.ENOSPC, N: 1})
	injector.Disarm()
	if got := run(); got != "" || injector.Failed() != "" {
		t.Errorf("disarmed: %s%s", got, injector.Failed())
	}
}
