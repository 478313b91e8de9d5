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

// Whatever somebody does to a mount is found out, and undoing it makes it good.
func TestWhatBecomesOfMounts(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Attach()
		amiss := func(words ...string) { ft.Helper(); sourcetest.CheckBecame(ft.T, ft.Source, ft.ID, words...) }
		amiss()

		mustMount(ft.T, "over", ft.Path, "tmpfs", 0)
		amiss("tmpfs from over is mounted over it at "+ft.Path, "unmount that")
		ft.UnmountBehindOurBack()
		amiss()

		mustMount(ft.T, "", ft.Path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY)
		amiss("it is read-only at "+ft.Path, "attached read-write", "detach it, and attach it again")
		mustMount(ft.T, "", ft.Path, "", unix.MS_REMOUNT|unix.MS_BIND)
		amiss()

		elsewhere := filepath.Join(ft.Top, "elsewhere")
		if err := os.Mkdir(elsewhere, 0o755); err != nil {
			ft.Fatal(err)
		}
		mustMount(ft.T, ft.Path, elsewhere, "", unix.MS_BIND)
		amiss()
		ft.UnmountBehindOurBack()
		amiss("it was unmounted from "+ft.Path, "mounted at "+elsewhere)
		if err := unix.Unmount(elsewhere, 0); err != nil {
			ft.Fatal(err)
		}
		if ft.Provider == TmpfsProviderType {
			amiss("contents lost", "it was unmounted from "+ft.Path, "attach it again")
		} else {
			amiss("it was unmounted from "+ft.Path, "attach it again")
		}
		ft.Restart()
		amiss("it was unmounted from " + ft.Path)
		ft.CheckMounts(0) // looking changes nothing

		ft.Attach()
		amiss()
		ft.Detach()
		if _, err := ft.TryAttach(ft.Path, true); err != nil {
			ft.Fatal(err)
		}
		amiss()
		ft.Restart()
		mustMount(ft.T, "", ft.Path, "", unix.MS_REMOUNT|unix.MS_BIND)
		if ft.Provider == TmpfsProviderType {
			mustMount(ft.T, "", ft.Path, "", unix.MS_REMOUNT)
		}
		amiss("it is read-write", "attached read-only")
		ft.Detach()
		ft.Destroy()
	})
}

// A container that has a copy of the mount keeps a tmpfs alive: nothing is lost of it yet.
func TestTmpfsThatOnlyAnotherNamespaceHas(t *testing.T) {
	ft := newFilesystemTest(t, TmpfsProviderType)
	entity := uuid.NewString()
	ft.Tags = ownerTags(uuid.NewString(), entity)
	ft.ID += "-" + entity
	ft.Create()
	ft.Attach()
	kill := sourcetest.Holder(t, exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"))
	ft.UnmountBehindOurBack()
	sourcetest.CheckBecame(t, ft.Source, ft.ID, "it was unmounted from "+ft.Path, "held by process")
	kill()
	sourcetest.CheckBecame(t, ft.Source, ft.ID, "contents lost")
	ft.Detach()
	ft.Destroy()
}
