//go:build linux

package provider

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/record"
)

const filesystemSize = 2 // MiB

var filesystemTag = names.NewFilesystemTag("0/1")

// filesystemTest is a storage directory with one filesystem of a provider, wanted
// at a path whose last two directories are missing.
type filesystemTest struct {
	*testing.T
	provider storage.ProviderType
	top      string
	dir      string
	path     string
	id       string
	source   storage.FilesystemSource
	ctx      envcontext.ProviderCallContext
}

func newFilesystemTest(t *testing.T, p storage.ProviderType) *filesystemTest {
	top := devicetest.Dir(t)
	ft := &filesystemTest{
		T:        t,
		provider: p,
		top:      top,
		dir:      filepath.Join(top, "storage"),
		path:     filepath.Join(top, "srv", "data"),
		id:       filesystemTag.String(),
		ctx:      envcontext.New(context.Background()),
	}
	ft.restart()
	return ft
}

// forBoth runs a test with tmpfs and with rootfs.
func forBoth(t *testing.T, test func(*filesystemTest)) {
	for _, p := range []storage.ProviderType{TmpfsProviderType, RootfsProviderType} {
		t.Run(string(p), func(t *testing.T) {
			test(newFilesystemTest(t, p))
		})
	}
}

// restart is what a new process does.
func (t *filesystemTest) restart() {
	t.Helper()
	config := poolOf(t.T, t.provider, storage.Attrs{storage.ConfigStorageDir: t.dir})
	source, err := commonProvider(t.T, t.provider).FilesystemSource(config)
	if err != nil {
		t.Fatal(err)
	}
	t.source = source
}

func (t *filesystemTest) tryCreate(size uint64) error {
	t.Helper()
	results, err := t.source.CreateFilesystems(t.ctx, []storage.FilesystemParams{{Tag: filesystemTag, Size: size, Provider: t.provider}})
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	if results[0].Error != nil {
		return results[0].Error
	}
	want := &storage.Filesystem{
		Tag:            filesystemTag,
		FilesystemInfo: storage.FilesystemInfo{FilesystemId: "filesystem-0-1", Size: size},
	}
	if !reflect.DeepEqual(results[0].Filesystem, want) {
		t.Errorf("created %+v, want %+v", results[0].Filesystem, want)
	}
	return nil
}

func (t *filesystemTest) create() {
	t.Helper()
	if err := t.tryCreate(filesystemSize); err != nil {
		t.Fatal(err)
	}
}

func (t *filesystemTest) attachment(path string, readOnly bool) []storage.FilesystemAttachmentParams {
	return []storage.FilesystemAttachmentParams{{
		AttachmentParams: storage.AttachmentParams{Provider: t.provider, Machine: names.NewMachineTag("0"), ReadOnly: readOnly},
		Filesystem:       filesystemTag,
		FilesystemId:     t.id,
		Path:             path,
	}}
}

// tryAttach attaches the filesystem and returns the path where it is then.
func (t *filesystemTest) tryAttach(path string, readOnly bool) (string, error) {
	t.Helper()
	results, err := t.source.AttachFilesystems(t.ctx, t.attachment(path, readOnly))
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	got := results[0].FilesystemAttachment
	if results[0].Error != nil {
		return "", results[0].Error
	}
	if path == "" {
		path = got.Path
	}
	want := &storage.FilesystemAttachment{
		Filesystem:               filesystemTag,
		Machine:                  names.NewMachineTag("0"),
		FilesystemAttachmentInfo: storage.FilesystemAttachmentInfo{Path: path, ReadOnly: readOnly},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("attached %+v, want %+v", got, want)
	}
	return path, nil
}

func (t *filesystemTest) attach() {
	t.Helper()
	if _, err := t.tryAttach(t.path, false); err != nil {
		t.Fatal(err)
	}
	t.checkMounts(1)
}

func (t *filesystemTest) tryDetach() error {
	t.Helper()
	results, err := t.source.DetachFilesystems(t.ctx, t.attachment(t.path, false))
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0]
}

func (t *filesystemTest) detach() {
	t.Helper()
	if err := t.tryDetach(); err != nil {
		t.Error(err)
	}
}

func (t *filesystemTest) tryDestroy() error {
	t.Helper()
	results, err := t.source.DestroyFilesystems(t.ctx, []string{t.id})
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0]
}

// destroy destroys the filesystem and checks that nothing of it is left, the
// directories of its mount point included.
func (t *filesystemTest) destroy() {
	t.Helper()
	if err := t.tryDestroy(); err != nil {
		t.Error(err)
	}
	checkNoFiles(t.T, t.dir)
	t.checkMounts(0)
	if _, err := os.Lstat(filepath.Dir(t.path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %s: %v", filepath.Dir(t.path), err)
	}
}

func (t *filesystemTest) tryResize(size uint64) (uint64, error) {
	t.Helper()
	results, err := t.source.(storage.FilesystemResizer).ResizeFilesystems(t.ctx,
		[]storage.FilesystemResizeParams{{Tag: filesystemTag, FilesystemId: t.id, Size: size}})
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	if results[0].Error != nil {
		return 0, results[0].Error
	}
	if got := results[0].FilesystemInfo.FilesystemId; got != t.id {
		t.Errorf("resized %q, want %q", got, t.id)
	}
	return results[0].FilesystemInfo.Size, nil
}

// resize asks for a size in MiB and checks which the filesystem has then.
func (t *filesystemTest) resize(size, want uint64) {
	t.Helper()
	if got, err := t.tryResize(size); err != nil || got != want {
		t.Errorf("resized to %d MiB: it has %d, %v, want %d", size, got, err, want)
	}
}

func (t *filesystemTest) checkRemark(want string) {
	t.Helper()
	if got := t.source.(storage.FilesystemRemarker).FilesystemRemark(t.id); got != want {
		t.Errorf("the remark is %q, want %q", got, want)
	}
}

func (t *filesystemTest) checkMounts(want int) {
	t.Helper()
	if mounts := devicetest.Mounts(t, t.top); len(mounts) != want {
		t.Errorf("%d mounts, want %d", len(mounts), want)
	}
}

func (t *filesystemTest) write() {
	t.Helper()
	if err := os.WriteFile(filepath.Join(t.path, "file"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (t *filesystemTest) checkWritten() {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(t.path, "file"))
	if err != nil || string(data) != "precious" {
		t.Errorf("read %q, %v", data, err)
	}
}

func (t *filesystemTest) unmountBehindOurBack() {
	t.Helper()
	if err := unix.Unmount(t.path, 0); err != nil {
		t.Fatal(err)
	}
}

func (t *filesystemTest) store() *record.Store {
	t.Helper()
	store, err := record.Open(filepath.Join(t.dir, "records"))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestFilesystemLife(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		for range 2 {
			ft.create()
		}
		for range 2 {
			ft.attach()
		}
		ft.write()
		for range 2 {
			ft.restart()
			ft.create()
			ft.attach()
			ft.checkWritten()
		}
		m := devicetest.Mounts(ft, ft.top)[0]
		if m.Mountpoint != ft.path || mount.IsReadOnly(m) {
			ft.Errorf("mounted %+v", m)
		}
		checkError(ft.T, ft.tryDestroy(), false, "destroying filesystem-0-1", "mounted at "+ft.path, "detach it first")
		for range 2 {
			ft.detach()
		}
		ft.checkMounts(0)
		for range 2 {
			ft.destroy()
		}
	})
}

func TestFilesystemOptions(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.create()
		ft.attach()
		var st unix.Statfs_t
		if err := unix.Statfs(ft.path, &st); err != nil {
			ft.Fatal(err)
		}
		if want := int64(unix.ST_NOSUID | unix.ST_NODEV); st.Flags&want != want {
			ft.Errorf("flags %x lack nosuid or nodev", st.Flags)
		}
		if size := st.Blocks * uint64(st.Bsize); ft.provider == TmpfsProviderType && size != filesystemSize<<20 {
			ft.Errorf("%d bytes large", size)
		}
		ft.detach()
		ft.destroy()
	})
}

func TestFilesystemReadOnly(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.create()
		for range 2 {
			if _, err := ft.tryAttach(ft.path, true); err != nil {
				ft.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(ft.path, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			ft.Errorf("writing: %v", err)
		}
		_, err := ft.tryAttach(ft.path, false)
		checkError(ft.T, err, true, "read-only", "wanted read-write", "detach it first")
		ft.checkMounts(1)
		ft.detach()
		ft.attach()
		_, err = ft.tryAttach(ft.path, true)
		checkError(ft.T, err, true, "read-write", "wanted read-only")
		ft.detach()
		ft.destroy()
	})
}

// TestFilesystemUnmountedBehindOurBack is also a reboot, but for the contents of a
// directory.
func TestFilesystemUnmountedBehindOurBack(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.create()
		ft.attach()
		ft.unmountBehindOurBack()
		ft.restart()
		ft.attach()
		ft.unmountBehindOurBack()
		ft.detach()
		ft.destroy()
	})
}

func TestFilesystemMovesToAnotherPath(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.create()
		ft.attach()
		_, err := ft.tryAttach(filepath.Join(ft.top, "other"), false)
		checkError(ft.T, err, true, "mounted at "+ft.path+": detach it first")
		ft.unmountBehindOurBack()
		ft.path = filepath.Join(ft.top, "other", "path")
		ft.attach()
		if _, err := os.Lstat(filepath.Join(ft.top, "srv")); !errors.Is(err, os.ErrNotExist) {
			ft.Errorf("left at the old path: %v", err)
		}
		ft.detach()
		ft.destroy()
	})
}

func TestFilesystemBusyDetachNamesTheHolder(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.create()
		ft.attach()
		ft.write()
		cmd := exec.Command("cat")
		cmd.Dir = ft.path
		stdin, err := cmd.StdinPipe()
		if err != nil {
			ft.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			ft.Fatal(err)
		}
		err = ft.tryDetach()
		stdin.Close()
		if werr := cmd.Wait(); werr != nil {
			ft.Error(werr)
		}
		checkError(ft.T, err, false, "detaching filesystem 0/1", "(cat): working directory "+ft.path)
		ft.attach()
		ft.checkWritten()
		ft.detach()
		ft.destroy()
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
			run(ft.T, "mkdir", "-p", ft.path)
			ft.write()
		},
		permanent: true,
		words:     []string{"not empty"},
	}, {
		about: "a symbolic link",
		prepare: func(ft *filesystemTest) {
			run(ft.T, "mkdir", "-p", filepath.Dir(ft.path), ft.top+"/elsewhere")
			run(ft.T, "ln", "-s", ft.top+"/elsewhere", ft.path)
		},
		permanent: true,
		words:     []string{"symbolic link"},
	}, {
		about: "beneath a symbolic link",
		prepare: func(ft *filesystemTest) {
			run(ft.T, "mkdir", ft.top+"/elsewhere")
			run(ft.T, "ln", "-s", ft.top+"/elsewhere", filepath.Dir(ft.path))
		},
		permanent: true,
		words:     []string{"symbolic link"},
	}, {
		about: "somebody's mount",
		prepare: func(ft *filesystemTest) {
			run(ft.T, "mkdir", "-p", ft.path)
			mountTmpfs(ft.T, "foreign", ft.path, "1m")
		},
		permanent: true,
		words:     []string{"tmpfs from foreign", "unmount it or choose another"},
	}, {
		about:     "a relative path",
		prepare:   func(ft *filesystemTest) { ft.path = "srv/data" },
		permanent: true,
		words:     []string{"relative"},
	}} {
		t.Run(test.about, func(t *testing.T) {
			forBoth(t, func(ft *filesystemTest) {
				ft.create()
				test.prepare(ft)
				before := len(devicetest.Mounts(ft, ft.top))
				_, err := ft.tryAttach(ft.path, false)
				checkError(ft.T, err, test.permanent, append(test.words, "attaching filesystem 0/1")...)
				ft.checkMounts(before)
				ft.detach()
				ft.checkMounts(before)
				if err := ft.tryDestroy(); err != nil {
					ft.Error(err)
				}
			})
		})
	}
}

// TestFilesystemBeneathAForeignMount is a mount over ours: neither is touched.
func TestFilesystemBeneathAForeignMount(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.create()
		ft.attach()
		run(ft.T, "mount", "-t", "tmpfs", "-o", "size=1m", "foreign", ft.path)
		checkError(ft.T, ft.tryDetach(), false, "tmpfs from foreign is mounted over it")
		ft.checkMounts(2)
		ft.unmountBehindOurBack()
		ft.detach()
		ft.destroy()
	})
}

func TestFilesystemForeignMountInItsPlace(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.create()
		ft.attach()
		ft.unmountBehindOurBack()
		run(ft.T, "mount", "-t", "tmpfs", "-o", "size=1m", "foreign", ft.path)
		ft.detach()
		ft.checkMounts(1)
		ft.unmountBehindOurBack()
		// Its directories are left to whoever put the mount there.
		run(ft.T, "rmdir", "-p", "--ignore-fail-on-non-empty", ft.path)
		ft.destroy()
	})
}

// TestFilesystemCrashBeforeTheMount is a record of a mount that was never made,
// and of directories that were.
func TestFilesystemCrashBeforeTheMount(t *testing.T) {
	for _, then := range []string{"attach", "detach", "destroy"} {
		t.Run(then, func(t *testing.T) {
			forBoth(t, func(ft *filesystemTest) {
				ft.create()
				ft.attach()
				ft.unmountBehindOurBack()
				ft.restart()
				switch then {
				case "attach":
					ft.attach()
					ft.detach()
				case "detach":
					ft.detach()
				}
				ft.destroy()
			})
		})
	}
}

func TestFilesystemDirectoryThatWasThereStays(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		run(ft.T, "mkdir", "-p", ft.path)
		ft.create()
		ft.attach()
		ft.detach()
		if err := os.Remove(ft.path); err != nil {
			ft.Error(err)
		}
		if err := os.Remove(filepath.Dir(ft.path)); err != nil {
			ft.Error(err)
		}
		ft.destroy()
	})
}

func TestFilesystemWithoutAPath(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.create()
		path, err := ft.tryAttach("", false)
		if err != nil {
			ft.Fatal(err)
		}
		if again, err := ft.tryAttach("", false); err != nil || again != path {
			ft.Errorf("attached at %s, then %s, %v", path, again, err)
		}
		if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); err != nil {
			ft.Error(err)
		}
		ft.detach()
		ft.destroy()
	})
}

func TestFilesystemCreateRefusals(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		checkError(ft.T, ft.tryCreate(0), true, "creating filesystem 0/1", "0 MiB")
		if err := ft.source.ValidateFilesystemParams(storage.FilesystemParams{Tag: filesystemTag}); !errors.Is(err, errors.NotValid) {
			ft.Errorf("no size: %v", err)
		}
		if err := ft.source.ValidateFilesystemParams(storage.FilesystemParams{Tag: filesystemTag, Size: 1}); err != nil {
			ft.Error(err)
		}
		_, err := ft.tryAttach(ft.path, false)
		checkError(ft.T, err, true, "it was not made here")
		ft.create()
		checkError(ft.T, ft.tryCreate(filesystemSize-1), true, "exists with 2 MiB, not 1 MiB")
		ft.destroy()
	})
}

func TestTmpfsOfAnotherSizeIsNotAdopted(t *testing.T) {
	ft := newFilesystemTest(t, TmpfsProviderType)
	ft.create()
	run(t, "mkdir", "-p", ft.path)
	mountTmpfs(t, "tmpfs-filesystem-0-1", ft.path, "1m")
	_, err := ft.tryAttach(ft.path, false)
	checkError(t, err, true, "has 1048576 bytes, not 2097152")
}

// TestTmpfsOfAnotherAgent is a mount with the same name that belongs to somebody
// else.
func TestTmpfsOfAnotherAgent(t *testing.T) {
	ft, other := newFilesystemTest(t, TmpfsProviderType), newFilesystemTest(t, TmpfsProviderType)
	for _, ft := range []*filesystemTest{ft, other} {
		ft.create()
		ft.attach()
	}
	other.write()
	ft.detach()
	ft.destroy()
	other.checkWritten()
	other.detach()
	other.destroy()
}

func TestTmpfsIsNotReleased(t *testing.T) {
	ft := newFilesystemTest(t, TmpfsProviderType)
	ft.create()
	results, err := ft.source.ReleaseFilesystems(ft.ctx, []string{filesystemTag.String()})
	if err != nil || !errors.Is(results[0], errors.NotSupported) {
		t.Errorf("releasing: %v, %v", results, err)
	}
	ft.destroy()
}

func TestRootfsKeepsItsContents(t *testing.T) {
	ft := newFilesystemTest(t, RootfsProviderType)
	ft.create()
	ft.attach()
	ft.write()
	ft.detach()
	ft.restart()
	ft.attach()
	ft.checkWritten()
	ft.detach()

	results, err := ft.source.ReleaseFilesystems(ft.ctx, []string{filesystemTag.String()})
	if err != nil || results[0] != nil {
		t.Errorf("releasing: %v, %v", results, err)
	}
	dir := filepath.Join(ft.dir, "filesystems", "filesystem-0-1")
	if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
		t.Errorf("the released directory: %v", err)
	}
	checkError(t, ft.tryCreate(filesystemSize), true, dir, "no record belongs to")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	ft.destroy()
}

func TestRootfsTooSmallAParent(t *testing.T) {
	top := devicetest.Dir(t)
	mountTmpfs(t, "small", top, "4m")
	ft := newFilesystemTest(t, RootfsProviderType)
	ft.dir = filepath.Join(top, "storage")
	ft.restart()
	checkError(t, ft.tryCreate(100), false, "100 MiB needed", "MiB available in "+ft.dir)
	checkNoFiles(t, ft.dir)
}

func TestRootfsAtItsOwnDirectory(t *testing.T) {
	ft := newFilesystemTest(t, RootfsProviderType)
	ft.create()
	dir := filepath.Join(ft.dir, "filesystems", "filesystem-0-1")
	path, err := ft.tryAttach(dir, false)
	if err != nil || path != dir {
		t.Errorf("attached at %s, %v", path, err)
	}
	ft.checkMounts(0)
	_, err = ft.tryAttach(dir, true)
	checkError(t, err, true, "read-only", dir)
	ft.detach()
	ft.destroy()
}

func TestRootfsReplacedDirectoryIsNotTouched(t *testing.T) {
	ft := newFilesystemTest(t, RootfsProviderType)
	ft.create()
	dir := filepath.Join(ft.dir, "filesystems", "filesystem-0-1")
	run(t, "mkdir", dir+".foreign")
	run(t, "rmdir", dir)
	run(t, "mv", dir+".foreign", dir)
	_, err := ft.tryAttach(ft.path, false)
	checkError(t, err, true, "was replaced")
	checkError(t, ft.tryDestroy(), true, "was replaced")
	run(t, "rmdir", dir)
	_, err = ft.tryAttach(ft.path, false)
	checkError(t, err, true, "is missing")
	ft.destroy()
}

// TestRootfsNeverRemovesWhatIsMountedInIt is k8s #72257: clearing up reached into
// what was mounted there.
func TestRootfsNeverRemovesWhatIsMountedInIt(t *testing.T) {
	ft := newFilesystemTest(t, RootfsProviderType)
	ft.create()
	dir := filepath.Join(ft.dir, "filesystems", "filesystem-0-1")
	inner := filepath.Join(dir, "inner")
	run(t, "mkdir", inner)
	run(t, "mount", "-t", "tmpfs", "-o", "size=1m", "foreign", inner)
	precious := filepath.Join(inner, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	checkError(t, ft.tryDestroy(), false, "tmpfs from foreign is mounted in it, at "+inner)
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
	run(t, "umount", inner)
	ft.destroy()
}

// TestRootfsMountedInAnotherNamespace is a container that shows the directory. The
// mount point is not ours to remove: removing it would end the container's mount
// too.
func TestRootfsMountedInAnotherNamespace(t *testing.T) {
	ft := newFilesystemTest(t, RootfsProviderType)
	run(t, "mkdir", "-p", ft.path)
	ft.create()
	ft.attach()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// What comes back has gone through the namespace.
	if _, err := stdin.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ft.detach()
	checkError(t, ft.tryDestroy(), false, "(cat)", "mounted at "+ft.path)
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	run(t, "rmdir", ft.path, filepath.Dir(ft.path))
	ft.destroy()
}

// TestRootfsCrashes leaves records and directories as a crash would.
func TestRootfsCrashes(t *testing.T) {
	for _, test := range []struct {
		about string
		crash func(ft *filesystemTest, dir, trash string) rootfsRecord
	}{{
		about: "recorded that it is being made",
		crash: func(ft *filesystemTest, _, _ string) rootfsRecord {
			return rootfsRecord{Size: filesystemSize << 20, Phase: phaseCreating}
		},
	}, {
		about: "made but not recorded",
		crash: func(ft *filesystemTest, dir, _ string) rootfsRecord {
			run(ft.T, "mkdir", "-p", dir)
			return rootfsRecord{Size: filesystemSize << 20, Phase: phaseCreating}
		},
	}, {
		about: "recorded that it is being destroyed",
		crash: func(ft *filesystemTest, dir, _ string) rootfsRecord {
			rec := ft.made()
			rec.Phase = phaseDestroying
			run(ft.T, "mkdir", filepath.Join(dir, "full"))
			return rec
		},
	}, {
		about: "in the trash",
		crash: func(ft *filesystemTest, dir, trash string) rootfsRecord {
			rec := ft.made()
			rec.Phase = phaseDestroying
			run(ft.T, "mkdir", "-p", filepath.Join(dir, "full"), trash)
			run(ft.T, "mv", dir, trash)
			return rec
		},
	}, {
		about: "destroyed but not recorded",
		crash: func(ft *filesystemTest, dir, _ string) rootfsRecord {
			rec := ft.made()
			rec.Phase = phaseDestroying
			run(ft.T, "rmdir", dir)
			return rec
		},
	}} {
		for _, then := range []string{"create", "destroy"} {
			t.Run(test.about+", then "+then, func(t *testing.T) {
				ft := newFilesystemTest(t, RootfsProviderType)
				rec := test.crash(ft, filepath.Join(ft.dir, "filesystems", "filesystem-0-1"), filepath.Join(ft.dir, "trash"))
				if err := ft.store().Save("filesystem-0-1", rec); err != nil {
					t.Fatal(err)
				}
				_, err := ft.tryAttach(ft.path, false)
				checkError(t, err, false, "not complete")
				for range 2 {
					ft.restart()
					if then == "create" {
						ft.create()
						ft.attach()
						ft.detach()
						if full, err := filepath.Glob(filepath.Join(ft.dir, "filesystems", "*", "*")); err != nil || len(full) != 0 {
							t.Errorf("made with %v, %v", full, err)
						}
					} else if err := ft.tryDestroy(); err != nil {
						t.Error(err)
					}
				}
				ft.destroy()
			})
		}
	}
}

// made creates the filesystem and returns its record.
func (t *filesystemTest) made() rootfsRecord {
	t.Helper()
	t.create()
	var rec rootfsRecord
	if err := t.store().Load("filesystem-0-1", &rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

type recordingLogger struct{ lines []string }

func (l *recordingLogger) Debugf(format string, _ ...any) { l.lines = append(l.lines, format) }

func TestRootfsSaysThatTheSizeIsNotEnforced(t *testing.T) {
	dir := devicetest.Dir(t)
	logger := new(recordingLogger)
	source, err := NewRootfsProvider(RootfsOptions{StorageDir: dir, Logger: logger}).FilesystemSource(poolOf(t, RootfsProviderType, nil))
	if err != nil {
		t.Fatal(err)
	}
	results, err := source.CreateFilesystems(envcontext.New(context.Background()),
		[]storage.FilesystemParams{{Tag: filesystemTag, Size: 1}})
	if err != nil || results[0].Error != nil {
		t.Fatal(results, err)
	}
	if len(logger.lines) != 1 {
		t.Errorf("logged %q", logger.lines)
	}
}

// TestTmpfsOfAnotherAgentAtTheSamePlace is two agents of one machine that want the
// same mount point for filesystems of the same name: the first has it.
func TestTmpfsOfAnotherAgentAtTheSamePlace(t *testing.T) {
	first, second := newFilesystemTest(t, TmpfsProviderType), newFilesystemTest(t, TmpfsProviderType)
	second.path = first.path
	first.create()
	second.create()
	first.attach()
	first.write()
	_, err := second.tryAttach(second.path, false)
	checkError(t, err, true, "is mounted at "+first.path, "choose another mount point")
	second.detach()
	if err := second.tryDestroy(); err != nil {
		t.Error(err)
	}
	first.restart()
	first.attach()
	first.checkWritten()
	// The record of the second may say that it was here before the first was.
	second.create()
	first.unmountBehindOurBack()
	if _, err := second.tryAttach(second.path, false); err != nil {
		t.Fatal(err)
	}
	second.unmountBehindOurBack()
	first.attach()
	first.write()
	second.detach()
	first.checkWritten()
	first.detach()
	first.destroy()
	if err := second.tryDestroy(); err != nil {
		t.Error(err)
	}
}

// TestTmpfsWhoseDirectoryWasRenamed is still mounted, under another name: there is
// no second one, and it is not forgotten.
func TestTmpfsWhoseDirectoryWasRenamed(t *testing.T) {
	ft := newFilesystemTest(t, TmpfsProviderType)
	ft.create()
	ft.attach()
	renamed := ft.top + "/renamed"
	run(t, "mv", filepath.Dir(ft.path), renamed)
	_, err := ft.tryAttach(ft.path, false)
	checkError(t, err, false, "it is mounted at "+renamed+"/data: unmount that first")
	ft.detach()
	checkError(t, ft.tryDestroy(), false, "it is mounted at "+renamed+"/data: unmount that first")
	run(t, "umount", renamed+"/data")
	ft.destroy()
}

// TestFilesystemIsNotForgottenBeneathAForeignMount is a filesystem that is wanted
// at another path while a mount hides it.
func TestFilesystemIsNotForgottenBeneathAForeignMount(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.create()
		ft.attach()
		run(ft.T, "mount", "-t", "tmpfs", "-o", "size=1m", "foreign", ft.path)
		_, err := ft.tryAttach(ft.path+"2", false)
		checkError(ft.T, err, false, "tmpfs from foreign is mounted over it at "+ft.path)
		ft.checkMounts(2)
		ft.unmountBehindOurBack()
		ft.detach()
		ft.destroy()
	})
}

// TestFilesystemInAStorageDirectoryBehindALink is a storage directory that is
// reached through a symbolic link.
func TestFilesystemInAStorageDirectoryBehindALink(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		run(ft.T, "mkdir", ft.top+"/real")
		run(ft.T, "ln", "-s", ft.top+"/real", ft.top+"/link")
		ft.dir = ft.top + "/link/storage"
		ft.restart()
		ft.create()
		if _, err := ft.tryAttach("", false); err != nil {
			ft.Fatal(err)
		}
		ft.detach()
		ft.destroy()
	})
}
