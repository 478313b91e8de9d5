package devicetest

import (
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/looptest"
)

// QuotaFilesystem makes a filesystem, ext4 or xfs, that enforces project quotas, mounts it
// until the test ends, and returns its mount point. It skips the test if the kernel does not
// support that: ext4 needs CONFIG_QFMT_V2, xfs CONFIG_XFS_QUOTA.
func QuotaFilesystem(t testing.TB, fs string) string {
	t.Helper()
	RequireRoot(t)
	RequireProgram(t, "mkfs."+fs)
	loop := NewLoop(t, 320<<20)
	args := []string{"-q", loop.Path}
	if fs == "ext4" {
		args = []string{"-q", "-O", "quota,project", "-E", "quotatype=prjquota", loop.Path}
	}
	if out, err := exec.Command("mkfs."+fs, args...).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.%s %v: %v: %s", fs, args, err, out)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(loop.Path, dir, fs, 0, "prjquota"); err != nil {
		t.Skipf("this kernel has no project quota on %s: %v", fs, err)
	}
	t.Cleanup(func() {
		if err := looptest.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
