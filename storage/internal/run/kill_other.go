//go:build !linux

package run

import "syscall"

// kill kills a program that this process has started, with its process group.
func kill(pid int) error { return syscall.Kill(-pid, syscall.SIGKILL) }
