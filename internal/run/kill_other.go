//go:build !linux

package run

import (
	"os/exec"
	"syscall"
)

// runWithCaller runs a command, which outlives this process: only Linux can kill it then.
func runWithCaller(_ *exec.Cmd, run func() error) error { return run() }

// kill kills a program that this process has started, and its process group.
func kill(pid int) error { return syscall.Kill(-pid, syscall.SIGKILL) }
