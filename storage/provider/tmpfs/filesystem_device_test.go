//go:build linux

package tmpfs

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

func TestTmpfsForeignMountNotAdopted(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.Create()
	sourcetest.Run(t, "mkdir", "-p", ft.Path)
	sourcetest.MountTmpfs(t, "tmpfs-filesystem-0-1", ft.Path, "1m")
	_, err := ft.TryAttach(ft.Path, false)
	sourcetest.CheckError(t, err, true, "but not by this agent")
}

// Another agent has a mount with the same source name.
func TestTmpfsOfOtherAgent(t *testing.T) {
	ft, other := newFilesystemTest(t), newFilesystemTest(t)
	for _, ft := range []*filesystemTest{ft, other} {
		ft.Create()
		ft.Attach()
	}
	other.Write()
	ft.Detach()
	ft.Destroy()
	other.CheckWritten()
	other.Detach()
	other.Destroy()
}

func TestTmpfsIsNotReleased(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.Create()
	results, err := ft.Source.ReleaseFilesystems(ft.Ctx, []string{sourcetest.FilesystemTag.String()})
	if err != nil || !errors.Is(results[0], errors.NotSupported) {
		t.Errorf("releasing: %v, %v", results, err)
	}
	ft.Destroy()
}

// Two agents of one machine want the same mount point, for filesystems with the same
// name. The first one gets it.
func TestTmpfsOfOtherAgentAtSamePath(t *testing.T) {
	first, second := newFilesystemTest(t), newFilesystemTest(t)
	second.Path = first.Path
	first.Create()
	second.Create()
	first.Attach()
	first.Write()
	_, err := second.TryAttach(second.Path, false)
	sourcetest.CheckError(t, err, true, "is mounted at "+first.Path, "choose another mount point")
	second.Detach()
	if err := second.TryDestroy(); err != nil {
		t.Error(err)
	}
	first.Restart()
	first.Attach()
	first.CheckWritten()
	// The record of the second agent may be older than the mount of the first.
	second.Create()
	first.UnmountExternally()
	if _, err := second.TryAttach(second.Path, false); err != nil {
		t.Fatal(err)
	}
	second.UnmountExternally()
	first.Attach()
	first.Write()
	second.Detach()
	first.CheckWritten()
	first.Detach()
	first.Destroy()
	if err := second.TryDestroy(); err != nil {
		t.Error(err)
	}
}

// The tmpfs is still mounted after its directory was renamed. It is not mounted a second
// time, and is still known.
func TestTmpfsDirectoryRenamed(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.Create()
	ft.Attach()
	renamed := ft.Top + "/renamed"
	sourcetest.Run(t, "mv", filepath.Dir(ft.Path), renamed)
	_, err := ft.TryAttach(ft.Path, false)
	sourcetest.CheckError(t, err, false, "it is mounted at "+renamed+"/data: unmount that first")
	ft.Detach()
	sourcetest.CheckError(t, ft.TryDestroy(), false, "it is mounted at "+renamed+"/data: unmount that first")
	sourcetest.Run(t, "umount", renamed+"/data")
	ft.Destroy()
}

func TestTmpfsResizeReadOnly(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.Create()
	if _, err := ft.TryAttach(ft.Path, true); err != nil {
		t.Fatal(err)
	}
	ft.Resize(4, 4)
	ft.CheckSize(ft.Path, 4)
	if err := os.WriteFile(ft.Path+"/file", nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing: %v", err)
	}
	ft.Detach()
	ft.Destroy()
}

// A resize was recorded and not carried out.
func TestTmpfsCrashBeforeGrowth(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		for _, then := range []string{"attach", "resize", "create", "detach"} {
			t.Run(then, func(t *testing.T) {
				ft := newFilesystemTest(t)
				ft.Create()
				if _, err := ft.TryAttach(ft.Path, readOnly); err != nil {
					t.Fatal(err)
				}
				rec := ft.loadTmpfs()
				rec.Size = 4 << 20
				if err := ft.Store().Save("filesystem-0-1", rec); err != nil {
					t.Fatal(err)
				}
				ft.Restart()
				for range 2 {
					switch then {
					case "attach":
						if _, err := ft.TryAttach(ft.Path, readOnly); err != nil {
							t.Fatal(err)
						}
					case "resize":
						ft.Resize(4, 4)
					case "create":
						if err := ft.TryCreate(4); err != nil {
							t.Fatal(err)
						}
					}
				}
				if then != "detach" {
					ft.CheckSize(ft.Path, 4)
				}
				ft.CheckMounts(1)
				ft.Detach()
				ft.Destroy()
			})
		}
	}
}

func TestTmpfsResizeUnderForeignMount(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.Create()
	ft.Attach()
	sourcetest.Run(t, "mount", "-t", "tmpfs", "-o", "size=1m", "foreign", ft.Path)
	_, err := ft.TryResize(4)
	sourcetest.CheckError(t, err, false, "tmpfs from foreign is mounted at "+ft.Path+": unmount that first")
	ft.CheckSize(ft.Path, 1)
	ft.UnmountExternally()
	ft.Attach()
	ft.CheckSize(ft.Path, 4)
	ft.Detach()
	ft.Destroy()
}

func (t *filesystemTest) loadTmpfs() record {
	t.Helper()
	var rec record
	if err := t.Store().Load("filesystem-0-1", &rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

// A remark tells the user that the filesystem has lost its contents. It is absent at
// first, and disappears again.
func TestTmpfsRemark(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.CheckRemark("")
	ft.Create()
	ft.Attach()
	ft.CheckRemark("")
	ft.Restart()
	ft.Attach()
	ft.CheckRemark("")

	ft.UnmountExternally()
	ft.Restart()
	ft.Attach()
	ft.CheckRemark("it came back empty after it was unmounted")
	ft.Attach()
	ft.CheckRemark("")

	for range 2 {
		ft.UnmountExternally()
		rec := ft.loadTmpfs()
		rec.BootID = "another"
		if err := ft.Store().Save("filesystem-0-1", rec); err != nil {
			t.Fatal(err)
		}
		ft.Restart()
		ft.Attach()
		ft.CheckRemark("it came back empty after a restart of the machine")
	}
	ft.UnmountExternally()
	ft.Attach()
	ft.CheckRemark("it came back empty after it was unmounted")

	ft.Detach()
	ft.CheckRemark("")
	ft.Attach()
	ft.CheckRemark("")
	ft.Detach()
	ft.Destroy()
}

// The mount of an older version is labelled with the directory of its mount points, and
// not with the records that it belongs to.
func TestTmpfsOfOlderVersion(t *testing.T) {
	for _, ours := range []bool{true, false} {
		ft := newFilesystemTest(t)
		ft.Create()
		ft.Attach()
		owner := filepath.Join(ft.Dir, "mounts")
		if !ours {
			owner += "-of-another"
		}
		if err := unix.Setxattr(ft.Path, "trusted.stowage.owner", []byte(owner), 0); err != nil {
			t.Fatal(err)
		}
		rec := ft.loadTmpfs()
		rec.Mark, rec.MountID = "", 0
		if err := ft.Store().Save(ft.ID, rec); err != nil {
			t.Fatal(err)
		}
		ft.Write()
		if _, err := ft.TryAttach(ft.Path, false); (err == nil) != ours {
			t.Errorf("own mount %v: attaching: %v", ours, err)
		}
		ft.CheckWritten()
		if ours {
			// The record identifies it now.
			if rec := ft.loadTmpfs(); rec.Mark == "" {
				t.Errorf("recorded %+v", rec)
			}
			ft.Detach()
			ft.Destroy()
			continue
		}
		if err := ft.TryDetach(); err != nil {
			t.Error(err)
		}
		ft.CheckWritten()
		ft.UnmountExternally()
	}
}

// A call fails once, which says nothing about what is mounted. The filesystem is attached
// by a later call.
// Finding N19.
func TestTmpfsStatusError(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.Create()
	ft.Attach()
	err := syscalltest.Intercept(t, []int{unix.SYS_FSTATFS}, func(c syscalltest.Call) syscalltest.Result {
		if c.Path() == ft.Path {
			return syscalltest.Fail(unix.EIO)
		}
		return syscalltest.Pass
	}, func() error {
		c, err := begin(ft.Ctx, ft.Dir)
		if err != nil {
			return err
		}
		defer c.End()
		f, err := kind{}.Load(c, sourcetest.FilesystemTag.String())
		if err != nil {
			return err
		}
		_, err = f.Attach(ft.Path, false)
		return err
	})
	sourcetest.CheckError(t, err, false, "checking its mount at "+ft.Path, "input/output error")
	ft.Attach()
	ft.Detach()
	ft.Destroy()
}

// Fault F11.
func TestTmpfsMountedInOtherNamespaces(t *testing.T) {
	sourcetest.CheckOtherNamespaces(t, func(t *testing.T) *sourcetest.FilesystemTest { return &newFilesystemTest(t).FilesystemTest })
}

func TestTmpfsOptions(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.Attributes = map[string]any{"mount-options": "mode=1770,uid=7,gid=8,nr_inodes=16"}
	ft.Create()
	for _, again := range []func(){func() {}, ft.Detach, ft.UnmountExternally} {
		again()
		ft.Restart()
		ft.Attach()
		ft.Resize(4, 4)
		var st unix.Stat_t
		if err := unix.Stat(ft.Path, &st); err != nil || st.Mode&0o7777 != 0o1770 || st.Uid != 7 || st.Gid != 8 {
			t.Errorf("it has mode %o, owner %d and group %d, %v", st.Mode, st.Uid, st.Gid, err)
		}
		ft.CheckSize(ft.Path, 4)
		// Other agents must see whose it is, however few inodes it has.
		if owner, err := unix.Getxattr(ft.Path, "trusted.stowage.owner", make([]byte, 256)); err != nil || owner == 0 {
			t.Errorf("it has no owner: %v", err)
		}
		files := 0
		for ; files < 100; files++ {
			if err := os.WriteFile(filepath.Join(ft.Path, strconv.Itoa(files)), nil, 0o600); err != nil {
				break
			}
		}
		if files < 10 || files > 15 {
			t.Errorf("it has space for %d files", files)
		}
	}
	ft.Detach()
	ft.Destroy()
}

// A mode that is chosen replaces the default, and other options do not.
func TestTmpfsDefaultMode(t *testing.T) {
	for options, want := range map[string]uint32{"": 0o755, "uid=7": 0o755, "mode=0": 0, "mode=0700": 0o700} {
		ft := newFilesystemTest(t)
		ft.Attributes = map[string]any{"mount-options": options}
		ft.Create()
		ft.Attach()
		var st unix.Stat_t
		if err := unix.Stat(ft.Path, &st); err != nil || st.Mode&0o7777 != want {
			t.Errorf("%q: the mode is %o, %v, want %o", options, st.Mode&0o7777, err, want)
		}
		ft.Detach()
		ft.Destroy()
	}
}
