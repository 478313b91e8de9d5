//go:build linux

package rootfs

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// A call fails once, which says nothing about what is mounted. The directory is attached by a later
// call.
// Finding N36.
func TestRootfsStatusError(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.Create()
	ft.Attach()
	err := syscalltest.Intercept(t, []int{unix.SYS_STATX}, func(c syscalltest.Call) syscalltest.Result {
		if c.Args[3]&unix.STATX_BASIC_STATS != 0 && c.Path() == ft.Path {
			return syscalltest.Fail(unix.EIO)
		}
		return syscalltest.Pass
	}, func() error {
		c, err := begin(ft.Ctx, ft.Dir)
		if err != nil {
			return err
		}
		defer c.End()
		f, err := c.kind.Load(c.MountCall, sourcetest.FilesystemTag.String())
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

func TestRootfsKeepsItsContents(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.Create()
	ft.Attach()
	ft.Write()
	ft.Detach()
	ft.Restart()
	ft.Attach()
	ft.CheckWritten()
	ft.Detach()

	results, err := ft.Source.ReleaseFilesystems(ft.Ctx, []string{sourcetest.FilesystemTag.String()})
	if err != nil || results[0] != nil {
		t.Errorf("releasing: %v, %v", results, err)
	}
	dir := filepath.Join(ft.Dir, "filesystems", "filesystem-0-1")
	if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
		t.Errorf("the released directory: %v", err)
	}
	sourcetest.CheckError(t, ft.TryCreate(sourcetest.FilesystemSize), true, dir, "of a released filesystem exists")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	ft.Destroy()
}

func TestRootfsCreateOutOfSpace(t *testing.T) {
	top := devicetest.Dir(t)
	sourcetest.MountTmpfs(t, "small", top, "4m")
	ft := newFilesystemTest(t)
	ft.Dir = filepath.Join(top, "storage")
	ft.Restart()
	sourcetest.CheckError(t, ft.TryCreate(100), false, "100 MiB needed", "MiB available in "+ft.Dir)
	sourcetest.CheckNoFiles(t, ft.Dir)
}

func TestRootfsAttachAtOwnDirectory(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.Create()
	dir := filepath.Join(ft.Dir, "filesystems", "filesystem-0-1")
	path, err := ft.TryAttach(dir, false)
	if err != nil || path != dir {
		t.Errorf("attached at %s, %v", path, err)
	}
	ft.CheckMounts(0)
	ft.checkInPlace(true)
	_, err = ft.TryAttach(dir, true)
	sourcetest.CheckError(t, err, true, "read-only", dir)
	ft.Detach()
	ft.checkInPlace(false)

	// It may be attached in another way each time, and twice in each.
	for _, path := range []string{"", ft.Path, dir} {
		for range 2 {
			if _, err := ft.TryAttach(path, false); err != nil {
				t.Fatal(err)
			}
			ft.Restart()
		}
		ft.checkInPlace(path != ft.Path)
		if path == ft.Path {
			ft.UnmountExternally()
		}
	}
	ft.Detach()
	ft.checkInPlace(false)
	ft.Destroy()
}

func (t *filesystemTest) checkInPlace(want bool) {
	t.Helper()
	if rec := t.load(); rec.InPlace != want {
		t.Errorf("the record says %+v", rec.Placement)
	}
}

func TestRootfsReplacedDirectoryIsNotTouched(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.Create()
	dir := filepath.Join(ft.Dir, "filesystems", "filesystem-0-1")
	sourcetest.Run(t, "mkdir", dir+".foreign")
	sourcetest.Run(t, "rmdir", dir)
	sourcetest.Run(t, "mv", dir+".foreign", dir)
	_, err := ft.TryAttach(ft.Path, false)
	sourcetest.CheckError(t, err, true, "was replaced")
	sourcetest.CheckError(t, ft.TryDestroy(), true, "was replaced")
	sourcetest.Run(t, "rmdir", dir)
	_, err = ft.TryAttach(ft.Path, false)
	sourcetest.CheckError(t, err, true, "is missing")
	ft.Destroy()
}

// k8s #72257: clearing up deleted data in a filesystem that was mounted there.
// Story D9.
func TestRootfsNeverRemovesInnerMount(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.Create()
	dir := filepath.Join(ft.Dir, "filesystems", "filesystem-0-1")
	inner := filepath.Join(dir, "inner")
	sourcetest.Run(t, "mkdir", inner)
	sourcetest.Run(t, "mount", "-t", "tmpfs", "-o", "size=1m", "foreign", inner)
	precious := filepath.Join(inner, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sourcetest.CheckError(t, ft.TryDestroy(), false, "tmpfs from foreign is mounted in it, at "+inner)
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
	sourcetest.Run(t, "umount", inner)
	ft.Destroy()
}

// Fault F11.
func TestRootfsMountedInOtherNamespaces(t *testing.T) {
	sourcetest.CheckOtherNamespaces(t, func(t *testing.T) *sourcetest.FilesystemTest { return &newFilesystemTest(t).FilesystemTest })
}

// TestRootfsCrashes leaves records and directories as a crash would.
func TestRootfsCrashes(t *testing.T) {
	for _, test := range []struct {
		about string
		crash func(ft *filesystemTest, dir, trash string) record
	}{{
		about: "creation recorded",
		crash: func(ft *filesystemTest, _, _ string) record {
			return record{Size: sourcetest.FilesystemSize << 20, Phase: object.PhaseCreating}
		},
	}, {
		about: "made but not recorded",
		crash: func(ft *filesystemTest, dir, _ string) record {
			sourcetest.Run(ft.T, "mkdir", "-p", dir)
			return record{Size: sourcetest.FilesystemSize << 20, Phase: object.PhaseCreating}
		},
	}, {
		about: "destruction recorded",
		crash: func(ft *filesystemTest, dir, _ string) record {
			rec := ft.createRecorded()
			rec.Phase = object.PhaseDestroying
			sourcetest.Run(ft.T, "mkdir", filepath.Join(dir, "full"))
			return rec
		},
	}, {
		about: "in the trash",
		crash: func(ft *filesystemTest, dir, trash string) record {
			rec := ft.createRecorded()
			rec.Phase = object.PhaseDestroying
			sourcetest.Run(ft.T, "mkdir", "-p", filepath.Join(dir, "full"), trash)
			sourcetest.Run(ft.T, "mv", dir, trash)
			return rec
		},
	}, {
		about: "destroyed but not recorded",
		crash: func(ft *filesystemTest, dir, _ string) record {
			rec := ft.createRecorded()
			rec.Phase = object.PhaseDestroying
			sourcetest.Run(ft.T, "rmdir", dir)
			return rec
		},
	}} {
		for _, then := range []string{"create", "destroy"} {
			t.Run(test.about+", then "+then, func(t *testing.T) {
				ft := newFilesystemTest(t)
				rec := test.crash(ft, filepath.Join(ft.Dir, "filesystems", "filesystem-0-1"), filepath.Join(ft.Dir, "trash"))
				if err := ft.Store().Save("filesystem-0-1", rec); err != nil {
					t.Fatal(err)
				}
				_, err := ft.TryAttach(ft.Path, false)
				sourcetest.CheckError(t, err, false, "incomplete")
				for range 2 {
					ft.Restart()
					if then == "create" {
						ft.Create()
						ft.Attach()
						ft.Detach()
						if full, err := filepath.Glob(filepath.Join(ft.Dir, "filesystems", "*", "*")); err != nil || len(full) != 0 {
							t.Errorf("made with %v, %v", full, err)
						}
					} else if err := ft.TryDestroy(); err != nil {
						t.Error(err)
					}
				}
				ft.Destroy()
			})
		}
	}
}

// createRecorded creates the filesystem and returns its record.
func (t *filesystemTest) createRecorded() record {
	t.Helper()
	t.Create()
	var rec record
	if err := t.Store().Load("filesystem-0-1", &rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

type recordingLogger struct{ lines []string }

func (l *recordingLogger) Debugf(format string, _ ...any) { l.lines = append(l.lines, format) }

func TestRootfsLogsUnenforcedSize(t *testing.T) {
	dir := devicetest.Dir(t)
	logger := new(recordingLogger)
	source, err := NewProvider(Options{StorageDir: dir, Logger: logger}).FilesystemSource(sourcetest.PoolOf(t, ProviderType, nil))
	if err != nil {
		t.Fatal(err)
	}
	results, err := source.CreateFilesystems(envcontext.New(context.Background()),
		[]storage.FilesystemParams{{Tag: sourcetest.FilesystemTag, Size: 1}})
	if err != nil || results[0].Error != nil {
		t.Fatal(results, err)
	}
	if len(logger.lines) != 1 {
		t.Errorf("logged %q", logger.lines)
	}
}

func TestRootfsResizeWithoutSpace(t *testing.T) {
	top := devicetest.Dir(t)
	sourcetest.MountTmpfs(t, "small", top, "8m")
	ft := newFilesystemTest(t)
	ft.Dir = filepath.Join(top, "storage")
	ft.Restart()
	ft.Create()
	_, err := ft.TryResize(100)
	sourcetest.CheckError(t, err, false, "98 MiB needed", "MiB available in "+ft.Dir)
	ft.Resize(1, sourcetest.FilesystemSize)
	ft.Destroy()
}

func TestRootfsRemark(t *testing.T) {
	ft := newFilesystemTest(t)
	top := devicetest.Dir(t)
	sourcetest.MountTmpfs(t, "parent", top, "8m")
	ft.Dir = filepath.Join(top, "storage")
	ft.Restart()
	ft.Create()
	ft.CheckRemark("")
	for range 2 {
		ft.Attach()
		ft.CheckRemark("size is not enforced: the filesystem of " + ft.Dir + "/filesystems has no project quota")
	}
	ft.Detach()
	ft.CheckRemark("")
	ft.Destroy()
}

// An agent that could neither mount nor remove a filesystem creates none.
func TestRootfsWithoutSysAdmin(t *testing.T) {
	ft := newFilesystemTest(t)
	from := ft.Top + "/from"
	ft.fillDir(from)
	without(t, unix.CAP_SYS_ADMIN, func() {
		err := ft.TryCreate(1)
		sourcetest.CheckError(t, err, true, "creating filesystem 0/1", "needs CAP_SYS_ADMIN")
		if !errors.Is(err, errors.NotSupported) {
			t.Errorf("creating: %v", err)
		}
		if _, err := ft.tryImport(from); !errors.Is(err, errors.NotSupported) {
			t.Errorf("importing: %v", err)
		}
	})
	sourcetest.CheckNoFiles(t, ft.Dir)
	ft.importDir(from)
	ft.checkImported(from)
}

// without runs f on a thread that lacks a capability.
func without(t *testing.T, capability uint, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var before [2]unix.CapUserData
	if err := unix.Capget(&header, &before[0]); err != nil {
		t.Fatal(err)
	}
	during := before
	during[capability/32].Effective &^= 1 << (capability % 32)
	if err := unix.Capset(&header, &during[0]); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Capset(&header, &before[0]); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}
