//go:build linux && faults

package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// hold says what a holder process keeps in use.
type hold struct {
	// Open and Exclusively are files or devices to open, and Dir is the working
	// directory. Empty: none.
	Open, Exclusively, Dir string
	// Namespace gives the holder a mount namespace of its own, with a copy of all
	// mounts.
	Namespace bool
}

const holderEnv = "STOWAGE_FAULTS_HOLDER"

// holderMain is the main function of a process that keeps things busy until its
// standard input ends.
func holderMain(text string) int {
	var h hold
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		panic(err)
	}
	for path, flags := range map[string]int{h.Open: 0, h.Exclusively: unix.O_EXCL} {
		if path == "" {
			continue
		}
		if _, err := unix.Open(path, unix.O_RDONLY|flags, 0); err != nil {
			panic(err)
		}
	}
	if h.Dir != "" {
		if err := os.Chdir(h.Dir); err != nil {
			panic(err)
		}
	}
	fmt.Println("holding")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// start starts a holder. It returns its process ID and a function that ends it.
func (h hold) start(t testing.TB) (pid int, release func()) {
	t.Helper()
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), holderEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	if h.Namespace {
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("the holder process failed: %v", err)
	}
	ended := false
	release = func() {
		if !ended {
			ended = true
			stdin.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(release)
	return cmd.Process.Pid, release
}
