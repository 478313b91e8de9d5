//go:build !linux

package run

import "os/exec"

// runIsolated runs a command without isolation: only Linux has mount namespaces.
func runIsolated(cmd *exec.Cmd) error {
	return cmd.Run()
}
