//go:build !linux

package run

import "syscall"

// kill kills a program that this process has started, and its process group.
func kill(pid int) error { return syscall.Kill(-pid, syscall.SIGKILL) }
