package cputime

import (
	"os/exec"
	"testing"
)

// The CPU time of this process and of its children is counted.
func TestUsed(t *testing.T) {
	start := Used()
	for Used() == start { // busy
	}
	before := Used()
	// A child that needs more CPU time than starting it.
	if err := exec.Command("sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").Run(); err != nil {
		t.Skip(err)
	}
	if used := Used() - before; used <= 0 {
		t.Errorf("a busy child used %v", used)
	}
}
