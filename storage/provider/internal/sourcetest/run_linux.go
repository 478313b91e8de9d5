//go:build linux

package sourcetest

import (
	"os/exec"
	"testing"

	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// Run runs a program that the test needs.
func Run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// MountTmpfs mounts a tmpfs until the test ends.
func MountTmpfs(t *testing.T, source, path, size string) {
	t.Helper()
	Run(t, "mount", "-t", "tmpfs", "-o", "size="+size, source, path)
	t.Cleanup(func() {
		if err := mount.Unmount(path); err != nil {
			t.Error(err)
		}
	})
}
