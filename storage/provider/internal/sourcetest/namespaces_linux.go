package sourcetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// CheckOtherNamespaces checks that a filesystem is not removed while a process in another
// mount namespace, such as a container's, has a copy of its mount.
func CheckOtherNamespaces(t *testing.T, newTest func(*testing.T) *FilesystemTest) {
	attached := func(t *testing.T) *FilesystemTest {
		ft := newTest(t)
		devicetest.RequireProgram(t, "unshare")
		ft.Tags = map[string]string{storage.EntityUUIDTag: uuid.NewString()}
		ft.ID += "-" + ft.Tags[storage.EntityUUIDTag]
		ft.Create()
		ft.Attach()
		ft.Write()
		return ft
	}
	// copyMounts starts a process in a new mount namespace, which has a copy of all mounts.
	copyMounts := func(t *testing.T, propagation string) (pid int, kill func()) {
		cmd := exec.Command("unshare", "--mount", "--propagation", propagation, "sh", "-c", "echo ready; read line")
		kill = Holder(t, cmd)
		return cmd.Process.Pid, kill
	}
	inUse := func(ft *FilesystemTest, words ...string) {
		ft.Helper()
		err := ft.TryDetach()
		CheckError(ft.T, err, false, append(words, "mounted at "+ft.Path)...)
		if !errors.Is(err, storage.ErrTransient) {
			ft.Errorf("the error is not transient: %v", err)
		}
		ft.CheckMounts(1)
		ft.CheckWritten()
	}
	has := func(ft *FilesystemTest, pid int) {
		ft.Helper()
		path := filepath.Join(fmt.Sprintf("/proc/%d/root", pid), ft.Path, "file")
		if data, err := os.ReadFile(path); err != nil || string(data) != "precious" {
			ft.Errorf("in the other namespace: %q, %v", data, err)
		}
	}
	remove := func(ft *FilesystemTest) {
		ft.Helper()
		ft.Detach()
		ft.CheckMounts(0)
		ft.Destroy()
	}

	for name, prepare := range map[string]func(*FilesystemTest) error{
		"of its own": func(*FilesystemTest) error { return nil },
		// The mount looks shared here, although unmounting it here leaves the copy.
		"that looks shared": func(ft *FilesystemTest) error {
			return unix.Mount("", ft.Path, "", unix.MS_SHARED, "")
		},
	} {
		t.Run("a copy "+name, func(t *testing.T) {
			ft := attached(t)
			if err := prepare(ft); err != nil {
				t.Fatal(err)
			}
			pid, kill := copyMounts(t, "unchanged")
			for range 2 {
				inUse(ft, fmt.Sprintf("process %d (sh)", pid))
				has(ft, pid)
			}
			ft.Restart() // this agent still recognizes its own mount
			ft.Attach()
			ft.CheckMounts(1)
			kill()
			remove(ft)
		})
	}

	t.Run("a copy that goes with the mount", func(t *testing.T) {
		ft := newTest(t)
		devicetest.RequireProgram(t, "unshare")
		around := filepath.Dir(ft.Path)
		Run(t, "mkdir", around)
		Run(t, "mount", "--bind", around, around)
		Run(t, "mount", "--make-shared", around)
		ft.Create()
		if _, err := ft.TryAttach(ft.Path, false); err != nil {
			t.Fatal(err)
		}
		ft.Write()
		pid, kill := copyMounts(t, "slave")
		has(ft, pid)
		if err := ft.TryDetach(); err != nil {
			t.Error(err)
		}
		kill()
		Run(t, "umount", around)
		Run(t, "rmdir", around)
		ft.Destroy()
	})

	t.Run("unmounted here", func(t *testing.T) {
		ft := attached(t)
		pid, kill := copyMounts(t, "unchanged")
		ft.UnmountExternally()
		err := ft.TryDetach()
		CheckError(t, err, false, fmt.Sprintf("process %d (sh)", pid), "mounted at "+ft.Path)
		has(ft, pid)
		kill()
		remove(ft)
	})

	t.Run("a namespace without a process", func(t *testing.T) {
		if !listsNamespaces(t) {
			t.Skip("the kernel lists no mount namespaces before Linux 6.12")
		}
		ft := attached(t)
		pid, kill := copyMounts(t, "unchanged")
		namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil {
			t.Fatal(err)
		}
		defer namespace.Close()
		kill()
		inUse(ft, "in a mount namespace without a visible process")
		namespace.Close()
		remove(ft)
	})
}

// listsNamespaces reports whether the kernel is new enough to list mount namespaces.
func listsNamespaces(t *testing.T) bool {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 12
}
