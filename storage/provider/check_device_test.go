//go:build linux

package provider

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

func mustMount(t *testing.T, source, target, fstype string, flags uintptr) {
	t.Helper()
	if err := unix.Mount(source, target, fstype, flags, ""); err != nil {
		t.Fatal(err)
	}
}

// A check reports each change that somebody else makes to a mount, and nothing once the
// change is undone.
// Fault F32.
func TestCheckReportsChangedMounts(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Attach()
		checkReports := func(words ...string) { ft.Helper(); sourcetest.CheckAttachmentState(ft.T, ft.Source, ft.ID, words...) }
		checkReports()

		mustMount(ft.T, "over", ft.Path, "tmpfs", 0)
		checkReports("tmpfs from over is mounted over it at "+ft.Path, "unmount that")
		ft.UnmountExternally()
		checkReports()

		mustMount(ft.T, "", ft.Path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY)
		checkReports("it is read-only at "+ft.Path, "attached read-write", "detach it, and attach it again")
		mustMount(ft.T, "", ft.Path, "", unix.MS_REMOUNT|unix.MS_BIND)
		checkReports()

		elsewhere := filepath.Join(ft.Top, "elsewhere")
		if err := os.Mkdir(elsewhere, 0o755); err != nil {
			ft.Fatal(err)
		}
		mustMount(ft.T, ft.Path, elsewhere, "", unix.MS_BIND)
		checkReports()
		ft.UnmountExternally()
		checkReports("it was unmounted from "+ft.Path, "mounted at "+elsewhere)
		if err := unix.Unmount(elsewhere, 0); err != nil {
			ft.Fatal(err)
		}
		if ft.Provider == TmpfsProviderType {
			checkReports("contents lost", "it was unmounted from "+ft.Path, "attach it again")
		} else {
			checkReports("it was unmounted from "+ft.Path, "attach it again")
		}
		ft.Restart()
		checkReports("it was unmounted from " + ft.Path)
		ft.CheckMounts(0) // a check changes nothing

		ft.Attach()
		checkReports()
		ft.Detach()
		if _, err := ft.TryAttach(ft.Path, true); err != nil {
			ft.Fatal(err)
		}
		checkReports()
		ft.Restart()
		mustMount(ft.T, "", ft.Path, "", unix.MS_REMOUNT|unix.MS_BIND)
		if ft.Provider == TmpfsProviderType {
			mustMount(ft.T, "", ft.Path, "", unix.MS_REMOUNT)
		}
		checkReports("it is read-write", "attached read-only")
		ft.Detach()
		ft.Destroy()
	})
}

// A container with a copy of the mount keeps the tmpfs alive: its contents are not lost
// yet.
// Fault F32.
func TestTmpfsMountedOnlyInOtherNamespace(t *testing.T) {
	ft := newFilesystemTest(t, TmpfsProviderType)
	entity := uuid.NewString()
	ft.Tags = ownerTags(uuid.NewString(), entity)
	ft.ID += "-" + entity
	ft.Create()
	ft.Attach()
	kill := sourcetest.Holder(t, exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"))
	ft.UnmountExternally()
	sourcetest.CheckAttachmentState(t, ft.Source, ft.ID, "it was unmounted from "+ft.Path, "held by process")
	kill()
	sourcetest.CheckAttachmentState(t, ft.Source, ft.ID, "contents lost")
	ft.Detach()
	ft.Destroy()
}
