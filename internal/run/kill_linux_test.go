package run_test

import (
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stowage-io/stowage/internal/run"
)

// callerEnv makes TestProgramEndsWithCaller the caller that is killed.
const callerEnv = "STOWAGE_TEST_RUN_CALLER"

// A program that must not outlive this process is killed with it.
// Fault F42.
func TestProgramEndsWithCaller(t *testing.T) {
	path, err := shell.Find()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(callerEnv) != "" {
		_, err := run.Command{
			Path: path, Args: []string{"-c", "echo started >&3; exec sleep 1000"}, Files: []*os.File{os.NewFile(3, "pipe")}, EndsWithCaller: true,
		}.Run(t.Context())
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	caller := exec.Command(os.Args[0], "-test.run=^TestProgramEndsWithCaller$")
	caller.Env = append(os.Environ(), callerEnv+"=1")
	caller.ExtraFiles = []*os.File{w}
	if err := caller.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := io.ReadFull(r, make([]byte, len("started\n"))); err != nil {
		t.Error(err)
	}
	if err := caller.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = caller.Wait()
	// The pipe ends when the last process that holds it has ended.
	if rest, err := io.ReadAll(r); err != nil || len(rest) != 0 {
		t.Errorf("got %q, %v", rest, err)
	}
}
