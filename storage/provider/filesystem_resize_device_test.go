//go:build linux

package provider

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

func TestFilesystemResize(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.create()
		ft.attach()
		ft.write()
		ft.resize(4, 4)
		ft.resize(4, 4)
		ft.resize(3, 4)
		ft.checkMounts(1)
		ft.restart()
		ft.attach()
		ft.checkWritten()
		ft.resize(6, 6)
		if ft.provider == TmpfsProviderType {
			ft.checkSize(ft.path, 6)
		}
		ft.detach()
		ft.resize(8, 8)
		ft.attach()
		if ft.provider == TmpfsProviderType {
			ft.checkSize(ft.path, 8)
		}
		ft.detach()
		ft.destroy()
	})
}

// TestFilesystemIsCreatedLarger is a filesystem of which more is wanted by the time
// that it is asked for again.
func TestFilesystemIsCreatedLarger(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.create()
		ft.restart()
		if err := ft.tryCreate(4); err != nil {
			ft.Fatal(err)
		}
		ft.resize(1, 4)
		ft.destroy()
	})
}

func TestFilesystemResizeRefusals(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		_, err := ft.tryResize(4)
		checkError(ft.T, err, true, "resizing filesystem 0/1", "it was not made here")
		ft.create()
		_, err = ft.tryResize(0)
		checkError(ft.T, err, true, "resizing filesystem 0/1", "0 MiB")
		ft.resize(1, filesystemSize)
		ft.destroy()
	})
}

func TestRootfsResizeWithoutSpace(t *testing.T) {
	top := devicetest.Dir(t)
	mountTmpfs(t, "small", top, "8m")
	ft := newFilesystemTest(t, RootfsProviderType)
	ft.dir = filepath.Join(top, "storage")
	ft.restart()
	ft.create()
	_, err := ft.tryResize(100)
	checkError(t, err, false, "98 MiB needed", "MiB available in "+ft.dir)
	ft.resize(1, filesystemSize)
	ft.destroy()
}

func TestTmpfsResizeReadOnly(t *testing.T) {
	ft := newFilesystemTest(t, TmpfsProviderType)
	ft.create()
	if _, err := ft.tryAttach(ft.path, true); err != nil {
		t.Fatal(err)
	}
	ft.resize(4, 4)
	ft.checkSize(ft.path, 4)
	if err := os.WriteFile(ft.path+"/file", nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing: %v", err)
	}
	ft.detach()
	ft.destroy()
}

// TestTmpfsCrashBeforeItGrows is a resize that was recorded and not carried out.
func TestTmpfsCrashBeforeItGrows(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		for _, then := range []string{"attach", "resize", "create", "detach"} {
			t.Run(then, func(t *testing.T) {
				ft := newFilesystemTest(t, TmpfsProviderType)
				ft.create()
				if _, err := ft.tryAttach(ft.path, readOnly); err != nil {
					t.Fatal(err)
				}
				rec := ft.loadTmpfs()
				rec.Size = 4 << 20
				if err := ft.store().Save("filesystem-0-1", rec); err != nil {
					t.Fatal(err)
				}
				ft.restart()
				for range 2 {
					switch then {
					case "attach":
						if _, err := ft.tryAttach(ft.path, readOnly); err != nil {
							t.Fatal(err)
						}
					case "resize":
						ft.resize(4, 4)
					case "create":
						if err := ft.tryCreate(4); err != nil {
							t.Fatal(err)
						}
					}
				}
				if then != "detach" {
					ft.checkSize(ft.path, 4)
				}
				ft.checkMounts(1)
				ft.detach()
				ft.destroy()
			})
		}
	}
}

func TestTmpfsResizeBeneathAForeignMount(t *testing.T) {
	ft := newFilesystemTest(t, TmpfsProviderType)
	ft.create()
	ft.attach()
	run(t, "mount", "-t", "tmpfs", "-o", "size=1m", "foreign", ft.path)
	_, err := ft.tryResize(4)
	checkError(t, err, false, "tmpfs from foreign is mounted at "+ft.path+": unmount that first")
	ft.checkSize(ft.path, 1)
	ft.unmountBehindOurBack()
	ft.attach()
	ft.checkSize(ft.path, 4)
	ft.detach()
	ft.destroy()
}

func (t *filesystemTest) loadTmpfs() tmpfsRecord {
	t.Helper()
	var rec tmpfsRecord
	if err := t.store().Load("filesystem-0-1", &rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

// TestTmpfsRemark is what the user hears of a filesystem that lost what was in it:
// nothing at first, and not for ever.
func TestTmpfsRemark(t *testing.T) {
	ft := newFilesystemTest(t, TmpfsProviderType)
	ft.checkRemark("")
	ft.create()
	ft.attach()
	ft.checkRemark("")
	ft.restart()
	ft.attach()
	ft.checkRemark("")

	ft.unmountBehindOurBack()
	ft.restart()
	ft.attach()
	ft.checkRemark("it came back empty after it was unmounted")
	ft.attach()
	ft.checkRemark("")

	for range 2 {
		ft.unmountBehindOurBack()
		rec := ft.loadTmpfs()
		rec.BootID = "another"
		if err := ft.store().Save("filesystem-0-1", rec); err != nil {
			t.Fatal(err)
		}
		ft.restart()
		ft.attach()
		ft.checkRemark("it came back empty after a restart of the machine")
	}
	ft.unmountBehindOurBack()
	ft.attach()
	ft.checkRemark("it came back empty after it was unmounted")

	ft.detach()
	ft.checkRemark("")
	ft.attach()
	ft.checkRemark("")
	ft.detach()
	ft.destroy()
}

func TestRootfsRemark(t *testing.T) {
	ft := newFilesystemTest(t, RootfsProviderType)
	top := devicetest.Dir(t)
	mountTmpfs(t, "parent", top, "8m")
	ft.dir = filepath.Join(top, "storage")
	ft.restart()
	ft.create()
	ft.checkRemark("")
	for range 2 {
		ft.attach()
		ft.checkRemark("size is not enforced: the filesystem of " + ft.dir + "/filesystems has no project quota")
	}
	ft.detach()
	ft.checkRemark("")
	ft.destroy()
}

// TestRemarksAreSafeForConcurrentUse is for the race detector.
func TestRemarksAreSafeForConcurrentUse(t *testing.T) {
	ft := newFilesystemTest(t, RootfsProviderType)
	ft.create()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			ft.source.(storage.FilesystemRemarker).FilesystemRemark(ft.id)
		}
	}()
	ft.attach()
	ft.detach()
	<-done
	ft.destroy()
}

// TestRootfsWithoutTheCapability is an agent that could neither mount what it makes
// nor remove it: it makes nothing.
func TestRootfsWithoutTheCapability(t *testing.T) {
	ft := newFilesystemTest(t, RootfsProviderType)
	from := ft.top + "/from"
	ft.fillDir(from)
	without(t, unix.CAP_SYS_ADMIN, func() {
		err := ft.tryCreate(1)
		checkError(t, err, true, "creating filesystem 0/1", "needs CAP_SYS_ADMIN")
		if !errors.Is(err, errors.NotSupported) {
			t.Errorf("creating: %v", err)
		}
		if _, err := ft.tryImport(from); !errors.Is(err, errors.NotSupported) {
			t.Errorf("importing: %v", err)
		}
	})
	checkNoFiles(t, ft.dir)
	ft.take(from)
	ft.checkTaken(from)
}

// without runs f on a thread that lacks a capability, and ends with the test.
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
