package e2e

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An agent without a capability warns once, says what the capability is for, and runs.
func TestAgentWarnsOfMissingCapability(t *testing.T) {
	m := newMachine(t)
	agent := exec.Command("setpriv", "--bounding-set=-sys_ptrace", "--",
		stowage, "run", "--data-dir", filepath.Join(m.dir, "data"))
	stderr, err := agent.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	giveUp := time.AfterFunc(waitTimeout, func() { _ = agent.Process.Kill() })
	defer giveUp.Stop()
	const want = "WARNING stowage.agent cannot name the processes that keep a mount or a device busy: " +
		"CAP_SYS_PTRACE is missing; start it with CAP_SYS_PTRACE, see docs/reference/privileges.md"
	warnings := 0
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		if strings.HasSuffix(lines.Text(), want) {
			warnings++
		}
		if strings.Contains(lines.Text(), "listening on") {
			if err := agent.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	if err := agent.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if warnings != 1 {
		t.Errorf("warned %d times, want once", warnings)
	}
}
