//go:build linux

package provider

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// forBoth runs a test with tmpfs and with rootfs.
func forBoth(t *testing.T, test func(*filesystemTest)) {
	for _, p := range []storage.ProviderType{TmpfsProviderType, RootfsProviderType} {
		t.Run(string(p), func(t *testing.T) {
			test(newFilesystemTest(t, p))
		})
	}
}

func TestFilesystemLifecycle(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		for range 2 {
			ft.Create()
		}
		for range 2 {
			ft.Attach()
		}
		ft.Write()
		for range 2 {
			ft.Restart()
			ft.Create()
			ft.Attach()
			ft.CheckWritten()
		}
		m := devicetest.Mounts(ft, ft.Top)[0]
		if m.Mountpoint != ft.Path || mount.IsReadOnly(m) {
			ft.Errorf("mounted %+v", m)
		}
		sourcetest.CheckError(ft.T, ft.TryDestroy(), false, "destroying filesystem-0-1", "mounted at "+ft.Path, "detach it first")
		for range 2 {
			ft.Detach()
		}
		ft.CheckMounts(0)
		for range 2 {
			ft.Destroy()
		}
	})
}

func TestFilesystemOptions(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Attach()
		var st unix.Statfs_t
		if err := unix.Statfs(ft.Path, &st); err != nil {
			ft.Fatal(err)
		}
		if want := int64(unix.ST_NOSUID | unix.ST_NODEV); st.Flags&want != want {
			ft.Errorf("flags %x lack nosuid or nodev", st.Flags)
		}
		if size := st.Blocks * uint64(st.Bsize); ft.Provider == TmpfsProviderType && size != sourcetest.FilesystemSize<<20 {
			ft.Errorf("size %d bytes", size)
		}
		ft.Detach()
		ft.Destroy()
	})
}

func TestFilesystemReadOnly(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		for range 2 {
			if _, err := ft.TryAttach(ft.Path, true); err != nil {
				ft.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(ft.Path, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			ft.Errorf("writing: %v", err)
		}
		_, err := ft.TryAttach(ft.Path, false)
		sourcetest.CheckError(ft.T, err, true, "read-only", "wanted read-write", "detach it first")
		ft.CheckMounts(1)
		ft.Detach()
		ft.Attach()
		_, err = ft.TryAttach(ft.Path, true)
		sourcetest.CheckError(ft.T, err, true, "read-write", "wanted read-only")
		ft.Detach()
		ft.Destroy()
	})
}

// Somebody else unmounts the filesystem, or the machine restarts: for a mount that is the
// same.
func TestFilesystemUnmountedExternally(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Attach()
		ft.UnmountExternally()
		ft.Restart()
		ft.Attach()
		ft.UnmountExternally()
		ft.Detach()
		ft.Destroy()
	})
}

func TestFilesystemAttachAtNewPath(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Attach()
		_, err := ft.TryAttach(filepath.Join(ft.Top, "other"), false)
		sourcetest.CheckError(ft.T, err, true, "mounted at "+ft.Path+": detach it first")
		ft.UnmountExternally()
		ft.Path = filepath.Join(ft.Top, "other", "path")
		ft.Attach()
		if _, err := os.Lstat(filepath.Join(ft.Top, "srv")); !errors.Is(err, os.ErrNotExist) {
			ft.Errorf("left at the old path: %v", err)
		}
		ft.Detach()
		ft.Destroy()
	})
}

func TestFilesystemBusyDetachNamesTheHolder(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Attach()
		ft.Write()
		cmd := exec.Command("cat")
		cmd.Dir = ft.Path
		stdin, err := cmd.StdinPipe()
		if err != nil {
			ft.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			ft.Fatal(err)
		}
		err = ft.TryDetach()
		stdin.Close()
		if werr := cmd.Wait(); werr != nil {
			ft.Error(werr)
		}
		sourcetest.CheckError(ft.T, err, false, "detaching filesystem 0/1", "(cat): working directory "+ft.Path)
		ft.Attach()
		ft.CheckWritten()
		ft.Detach()
		ft.Destroy()
	})
}

func TestFilesystemAttachRefusals(t *testing.T) {
	for _, test := range []struct {
		about     string
		prepare   func(ft *filesystemTest)
		permanent bool
		words     []string
	}{{
		about: "a directory with files",
		prepare: func(ft *filesystemTest) {
			sourcetest.Run(ft.T, "mkdir", "-p", ft.Path)
			ft.Write()
		},
		permanent: true,
		words:     []string{"not empty"},
	}, {
		about: "a symbolic link",
		prepare: func(ft *filesystemTest) {
			sourcetest.Run(ft.T, "mkdir", "-p", filepath.Dir(ft.Path), ft.Top+"/elsewhere")
			sourcetest.Run(ft.T, "ln", "-s", ft.Top+"/elsewhere", ft.Path)
		},
		permanent: true,
		words:     []string{"symbolic link"},
	}, {
		about: "under a symbolic link",
		prepare: func(ft *filesystemTest) {
			sourcetest.Run(ft.T, "mkdir", ft.Top+"/elsewhere")
			sourcetest.Run(ft.T, "ln", "-s", ft.Top+"/elsewhere", filepath.Dir(ft.Path))
		},
		permanent: true,
		words:     []string{"symbolic link"},
	}, {
		about: "a foreign mount",
		prepare: func(ft *filesystemTest) {
			sourcetest.Run(ft.T, "mkdir", "-p", ft.Path)
			sourcetest.MountTmpfs(ft.T, "foreign", ft.Path, "1m")
		},
		permanent: true,
		words:     []string{"tmpfs from foreign", "unmount it or choose another"},
	}, {
		about:     "a relative path",
		prepare:   func(ft *filesystemTest) { ft.Path = "srv/data" },
		permanent: true,
		words:     []string{"relative"},
	}} {
		t.Run(test.about, func(t *testing.T) {
			forBoth(t, func(ft *filesystemTest) {
				ft.Create()
				test.prepare(ft)
				before := len(devicetest.Mounts(ft, ft.Top))
				_, err := ft.TryAttach(ft.Path, false)
				sourcetest.CheckError(ft.T, err, test.permanent, append(test.words, "attaching filesystem 0/1")...)
				ft.CheckMounts(before)
				ft.Detach()
				ft.CheckMounts(before)
				if err := ft.TryDestroy(); err != nil {
					ft.Error(err)
				}
			})
		})
	}
}

// Another filesystem is mounted over ours. Detaching changes neither.
func TestFilesystemUnderForeignMount(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Attach()
		sourcetest.Run(ft.T, "mount", "-t", "tmpfs", "-o", "size=1m", "foreign", ft.Path)
		sourcetest.CheckError(ft.T, ft.TryDetach(), false, "tmpfs from foreign is mounted over it")
		ft.CheckMounts(2)
		ft.UnmountExternally()
		ft.Detach()
		ft.Destroy()
	})
}

func TestFilesystemReplacedByForeignMount(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Attach()
		ft.UnmountExternally()
		sourcetest.Run(ft.T, "mount", "-t", "tmpfs", "-o", "size=1m", "foreign", ft.Path)
		ft.Detach()
		ft.CheckMounts(1)
		ft.UnmountExternally()
		// Detach leaves the directories to the owner of the foreign mount.
		sourcetest.Run(ft.T, "rmdir", "-p", "--ignore-fail-on-non-empty", ft.Path)
		ft.Destroy()
	})
}

// The agent crashed after it had recorded the mount and made the directories, and before
// it mounted.
func TestFilesystemCrashBeforeMount(t *testing.T) {
	for _, then := range []string{"attach", "detach", "destroy"} {
		t.Run(then, func(t *testing.T) {
			forBoth(t, func(ft *filesystemTest) {
				ft.Create()
				ft.Attach()
				ft.UnmountExternally()
				ft.Restart()
				switch then {
				case "attach":
					ft.Attach()
					ft.Detach()
				case "detach":
					ft.Detach()
				}
				ft.Destroy()
			})
		})
	}
}

func TestFilesystemKeepsExistingDirectory(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		sourcetest.Run(ft.T, "mkdir", "-p", ft.Path)
		ft.Create()
		ft.Attach()
		ft.Detach()
		if err := os.Remove(ft.Path); err != nil {
			ft.Error(err)
		}
		if err := os.Remove(filepath.Dir(ft.Path)); err != nil {
			ft.Error(err)
		}
		ft.Destroy()
	})
}

func TestFilesystemAttachChoosesPath(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		path, err := ft.TryAttach("", false)
		if err != nil {
			ft.Fatal(err)
		}
		if again, err := ft.TryAttach("", false); err != nil || again != path {
			ft.Errorf("attached at %s, then %s, %v", path, again, err)
		}
		if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); err != nil {
			ft.Error(err)
		}
		ft.Detach()
		ft.Destroy()
	})
}

func TestFilesystemCreateRefusals(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		sourcetest.CheckError(ft.T, ft.TryCreate(0), true, "creating filesystem 0/1", "0 MiB")
		if err := ft.Source.ValidateFilesystemParams(storage.FilesystemParams{Tag: sourcetest.FilesystemTag}); !errors.Is(err, errors.NotValid) {
			ft.Errorf("no size: %v", err)
		}
		if err := ft.Source.ValidateFilesystemParams(storage.FilesystemParams{Tag: sourcetest.FilesystemTag, Size: 1}); err != nil {
			ft.Error(err)
		}
		_, err := ft.TryAttach(ft.Path, false)
		sourcetest.CheckError(ft.T, err, true, "it was not made here")
		ft.Create()
		sourcetest.CheckError(ft.T, ft.TryCreate(sourcetest.FilesystemSize-1), true, "exists with 2 MiB, not 1 MiB")
		ft.Destroy()
	})
}

// A filesystem is wanted at another path while a foreign mount hides it.
func TestFilesystemAttachElsewhereWhileHidden(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Attach()
		sourcetest.Run(ft.T, "mount", "-t", "tmpfs", "-o", "size=1m", "foreign", ft.Path)
		_, err := ft.TryAttach(ft.Path+"2", false)
		sourcetest.CheckError(ft.T, err, false, "tmpfs from foreign is mounted over it at "+ft.Path)
		ft.CheckMounts(2)
		ft.UnmountExternally()
		ft.Detach()
		ft.Destroy()
	})
}

// The path of the storage directory leads through a symbolic link.
func TestFilesystemStorageDirectoryBehindSymlink(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		sourcetest.Run(ft.T, "mkdir", ft.Top+"/real")
		sourcetest.Run(ft.T, "ln", "-s", ft.Top+"/real", ft.Top+"/link")
		ft.Dir = ft.Top + "/link/storage"
		ft.Restart()
		ft.Create()
		if _, err := ft.TryAttach("", false); err != nil {
			ft.Fatal(err)
		}
		ft.Detach()
		ft.Destroy()
	})
}

func TestFilesystemResize(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Attach()
		ft.Write()
		ft.Resize(4, 4)
		ft.Resize(4, 4)
		ft.Resize(3, 4)
		ft.CheckMounts(1)
		ft.Restart()
		ft.Attach()
		ft.CheckWritten()
		ft.Resize(6, 6)
		if ft.Provider == TmpfsProviderType {
			ft.CheckSize(ft.Path, 6)
		}
		ft.Detach()
		ft.Resize(8, 8)
		ft.Attach()
		if ft.Provider == TmpfsProviderType {
			ft.CheckSize(ft.Path, 8)
		}
		ft.Detach()
		ft.Destroy()
	})
}

// A second creation asks for a larger size.
func TestFilesystemCreateAgainWithLargerSize(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Restart()
		if err := ft.TryCreate(4); err != nil {
			ft.Fatal(err)
		}
		ft.Resize(1, 4)
		ft.Destroy()
	})
}

func TestFilesystemResizeRefusals(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		_, err := ft.TryResize(4)
		sourcetest.CheckError(ft.T, err, true, "resizing filesystem 0/1", "it was not made here")
		ft.Create()
		_, err = ft.TryResize(0)
		sourcetest.CheckError(ft.T, err, true, "resizing filesystem 0/1", "0 MiB")
		ft.Resize(1, sourcetest.FilesystemSize)
		ft.Destroy()
	})
}

// TestRemarksAreSafeForConcurrentUse is for the race detector.
func TestRemarksAreSafeForConcurrentUse(t *testing.T) {
	ft := newFilesystemTest(t, RootfsProviderType)
	ft.Create()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			ft.Source.(storage.FilesystemRemarker).FilesystemRemark(ft.ID)
		}
	}()
	ft.Attach()
	ft.Detach()
	<-done
	ft.Destroy()
}
