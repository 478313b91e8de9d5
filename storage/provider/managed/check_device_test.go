//go:build linux

package managed

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

func TestWhatBecomesOfManagedMounts(t *testing.T) {
	for fs, size := range sourcetest.ManagedSizes {
		t.Run(fs, func(t *testing.T) {
			mt := newManagedTest(t)
			mt.Loop(size)
			mt.Create(fs)
			mt.Attach()
			became := func(words ...string) {
				t.Helper()
				sourcetest.CheckBecame(t, mt.Source(), sourcetest.ManagedID, words...)
			}
			mount := func(source, fstype string, flags uintptr, data string) {
				t.Helper()
				if err := unix.Mount(source, mt.Path(), fstype, flags, data); err != nil {
					t.Fatal(err)
				}
			}
			became()
			mount("over", "tmpfs", 0, "")
			became("tmpfs from over is mounted over it at "+mt.Path(), "unmount that")
			mt.UnmountBehindOurBack()
			became()
			// As the kernel does by itself when it finds an ext4 damaged.
			mount("", fs, unix.MS_REMOUNT|unix.MS_RDONLY, "")
			became("it is read-only at "+mt.Path(), "attached read-write")
			mount("", fs, unix.MS_REMOUNT, "")
			became()
			mt.UnmountBehindOurBack()
			became("it was unmounted from "+mt.Path(), "attach it again")
			if n := mt.Mounts(); n != 0 {
				t.Errorf("looking at it has mounted it: %d mounts", n)
			}
			mt.Attach()
			became()
			mt.Detach()
		})
	}
}

// Errors that the kernel has found are in the superblock, and stay there until they are repaired.
func TestExt4ThatIsDamaged(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	mt.Attach()
	sourcetest.CheckBecame(t, mt.Source(), sourcetest.ManagedID)
	trigger := filepath.Join("/sys/fs/ext4", loop.Name(), "trigger_fs_error")
	if err := os.WriteFile(trigger, []byte("test"), 0); err != nil {
		t.Fatal(err)
	}
	sourcetest.CheckBecame(t, mt.Source(), sourcetest.ManagedID, "the kernel has found 1 errors in the ext4 on "+loop.Path, "e2fsck -f")
	mt.UnmountBehindOurBack()
	if out, err := exec.Command("e2fsck", "-f", "-y", loop.Path).CombinedOutput(); err != nil {
		t.Logf("e2fsck: %v\n%s", err, out) // it says that there was something to repair
	}
	mt.Attach()
	sourcetest.CheckBecame(t, mt.Source(), sourcetest.ManagedID)
	mt.Detach()
}
