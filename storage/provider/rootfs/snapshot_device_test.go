//go:build linux

package rootfs

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	recordstore "github.com/stowage-io/stowage/storage/provider/internal/record"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// cloneTag is that of the filesystem that is made from the one of a filesystemTest.
var cloneTag = names.NewFilesystemTag("0/2")

func newSnapshotTags() map[string]string {
	return map[string]string{storage.ModelUUIDTag: "4b0f0f0e-25ef-4a2f-8d2e-0f6e0fcb6a10", storage.EntityUUIDTag: uuid.NewString()}
}

func (t *filesystemTest) trySnapshot(tags map[string]string) (*storage.SnapshotInfo, error) {
	t.Helper()
	results, err := t.Source.(storage.FilesystemSnapshotter).CreateFilesystemSnapshots(t.Ctx, []storage.FilesystemSnapshotParams{
		{FilesystemId: t.ID, ResourceTags: tags},
	})
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0].Snapshot, results[0].Error
}

func (t *filesystemTest) snapshot() *storage.SnapshotInfo {
	t.Helper()
	info, err := t.trySnapshot(newSnapshotTags())
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func (t *filesystemTest) destroySnapshot(id string) {
	t.Helper()
	errs, err := t.Source.(storage.FilesystemSnapshotter).DestroyFilesystemSnapshots(t.Ctx, []string{id})
	if err != nil || errs[0] != nil {
		t.Errorf("destroying %s: %v, %v", id, errs, err)
	}
}

func (t *filesystemTest) tryClone(of storage.Origin, size uint64) error {
	t.Helper()
	results, err := t.Source.(storage.FilesystemCloner).CloneFilesystems(t.Ctx, []storage.FilesystemCloneParams{
		{FilesystemParams: storage.FilesystemParams{Tag: cloneTag, Size: size, Provider: ProviderType}, Origin: of},
	})
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0].Error
}

// clone makes a filesystem, and returns a test of it.
func (t *filesystemTest) clone(of storage.Origin, size uint64) *filesystemTest {
	t.Helper()
	if err := t.tryClone(of, size); err != nil {
		t.Fatal(err)
	}
	clone := *t
	clone.ID = cloneTag.String()
	return &clone
}

// written makes the filesystem with a file in it.
func (t *filesystemTest) written() {
	t.Helper()
	t.Create()
	t.Attach()
	t.Write()
	t.Detach()
}

// checkClone checks that the filesystem has the file that written wrote.
func (t *filesystemTest) checkClone() {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(t.Dir, "filesystems", t.ID, "file"))
	if err != nil || string(data) != "precious" {
		t.Errorf("read %q, %v", data, err)
	}
}

func (t *filesystemTest) snapshotDir(id string) string {
	return filepath.Join(t.Dir, "snapshots", "filesystems", id)
}

func (t *filesystemTest) snapshotStore() *recordstore.Store {
	t.Helper()
	snapshots := *t
	snapshots.Dir = object.SnapshotsDir(t.Dir)
	return snapshots.Store()
}

// A directory that is attached or in use is neither a snapshot made of nor copied: the error is
// permanent, says how to go on, and leaves nothing.
func TestRootfsNoSnapshotOfUsedDirectory(t *testing.T) {
	for about, use := range map[string]func(ft *filesystemTest, dir string) (words []string, end func()){
		"mounted": func(ft *filesystemTest, _ string) ([]string, func()) {
			ft.Attach()
			return []string{"mounted at " + ft.Path, "detach it first"}, ft.Detach
		},
		"attached in its own place": func(ft *filesystemTest, dir string) ([]string, func()) {
			if _, err := ft.TryAttach("", false); err != nil {
				ft.Fatal(err)
			}
			ft.Restart()
			return []string{"attached at its own directory " + dir, "detach it first"}, ft.Detach
		},
		"mounted in another namespace": func(ft *filesystemTest, dir string) ([]string, func()) {
			return []string{"held by process", "detach it first"}, sourcetest.Holder(ft.T, exec.Command("unshare", "--mount", "--propagation", "private",
				"sh", "-c", "mount --bind "+dir+" /mnt; echo ready; read line"))
		},
		"a part is mounted": func(ft *filesystemTest, dir string) ([]string, func()) {
			part, at := filepath.Join(dir, "part"), filepath.Join(ft.Top, "part")
			sourcetest.Run(ft.T, "mkdir", part, at)
			sourcetest.Run(ft.T, "mount", "--bind", part, at)
			return []string{"mounted at " + at, "detach it first"}, func() { sourcetest.Run(ft.T, "umount", at) }
		},
		"something is mounted in it": func(ft *filesystemTest, dir string) ([]string, func()) {
			inner := filepath.Join(dir, "inner")
			sourcetest.Run(ft.T, "mkdir", inner)
			sourcetest.Run(ft.T, "mount", "-t", "tmpfs", "-o", "size=1m", "foreign", inner)
			return []string{"foreign is mounted in it, at " + inner, "unmount that first"}, func() { sourcetest.Run(ft.T, "umount", inner) }
		},
		"a process has a file open": func(ft *filesystemTest, dir string) ([]string, func()) {
			return []string{"it is in use, held by process", "end that first"},
				sourcetest.Holder(ft.T, exec.Command("sh", "-c", "exec 3<"+dir+"/file; echo ready; read line"))
		},
	} {
		t.Run(about, func(t *testing.T) {
			ft := newFilesystemTest(t)
			ft.written()
			tags := newSnapshotTags()
			words, end := use(ft, filepath.Join(ft.Dir, "filesystems", ft.ID))
			_, err := ft.trySnapshot(tags)
			sourcetest.CheckError(t, err, true, append(words, "creating a snapshot of "+ft.ID)...)
			if !errors.Is(err, storage.ErrNothingMade) {
				t.Errorf("something may be made: %v", err)
			}
			sourcetest.CheckError(t, ft.tryClone(storage.Origin{Id: ft.ID}, sourcetest.FilesystemSize), true, append(words, "creating filesystem 0/2")...)
			if left := sourcetest.Files(t, object.SnapshotsDir(ft.Dir)); len(left) > 0 {
				t.Errorf("left %q", left)
			}
			end()
			info, err := ft.trySnapshot(tags)
			if err != nil {
				t.Fatal(err)
			}
			clone := ft.clone(storage.Origin{Id: ft.ID}, sourcetest.FilesystemSize)
			clone.checkClone()
			if err := clone.TryDestroy(); err != nil {
				t.Error(err)
			}
			ft.destroySnapshot(info.SnapshotId)
			ft.Destroy()
		})
	}
}

// A snapshot and a clone are quota projects of their own. A full directory can be copied, and what is
// made of it has the new size.
func TestRootfsSnapshotQuota(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Attach()
		ft.Write()
		ft.checkFull("3")
		_ = fill(filepath.Join(ft.Path, "filler"), "3") // as much as there is space for
		ft.Detach()
		info := ft.snapshot()
		if info.Size != sourcetest.FilesystemSize {
			ft.Errorf("the snapshot has %d MiB", info.Size)
		}
		var snapshot record
		if err := ft.snapshotStore().Load(info.SnapshotId, &snapshot); err != nil {
			ft.Fatal(err)
		}
		original := ft.load().Project
		if snapshot.Project == 0 || snapshot.Project == original || snapshot.Limit != sourcetest.FilesystemSize<<20 {
			ft.Errorf("the snapshot has project %d, limit %d; the original has project %d", snapshot.Project, snapshot.Limit, original)
		}
		if got := projectOf(ft.T, filepath.Join(ft.snapshotDir(info.SnapshotId), "filler")); got != snapshot.Project {
			ft.Errorf("a file of the snapshot has project %d", got)
		}
		if err := ft.TryDestroy(); err != nil {
			ft.Fatal(err)
		}
		ft.checkFree(original)

		clone := ft.clone(storage.Origin{SnapshotId: info.SnapshotId}, 8)
		clone.Attach()
		clone.CheckRemark("")
		clone.CheckSize(clone.Path, 8)
		clone.CheckWritten()
		if err := fill(filepath.Join(clone.Path, "more"), "4"); err != nil {
			ft.Error(err)
		}
		clone.checkFull("3")
		clone.Detach()
		var cloned record
		if err := clone.Store().Load(clone.ID, &cloned); err != nil {
			ft.Fatal(err)
		}
		ft.destroySnapshot(info.SnapshotId)
		ft.checkFree(snapshot.Project)
		clone.Destroy()
		ft.checkFree(cloned.Project)
	})
}

// The size of a directory that no quota limits says little: what is made from it has space for what
// is in it.
func TestRootfsSnapshotLargerThanSize(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.written()
	if err := fill(filepath.Join(ft.Dir, "filesystems", ft.ID, "large"), "5"); err != nil {
		t.Fatal(err)
	}
	sourcetest.Run(t, "sync", "-f", ft.Dir)
	info := ft.snapshot()
	if info.Size < 5 || info.Size > 6 {
		t.Errorf("the snapshot has %d MiB", info.Size)
	}
	for _, of := range []storage.Origin{{Id: ft.ID}, {SnapshotId: info.SnapshotId}} {
		err := ft.tryClone(of, 4)
		if !errors.Is(err, errors.NotValid) || !errors.Is(err, storage.ErrNothingMade) {
			t.Errorf("from %+v: %v", of, err)
		}
		clone := ft.clone(of, info.Size)
		clone.checkClone()
		if err := clone.TryDestroy(); err != nil {
			t.Error(err)
		}
	}
	ft.destroySnapshot(info.SnapshotId)
	ft.Destroy()
}

// Where files cannot share blocks, a snapshot needs the space that the files take. Where they can, it
// needs none.
func TestRootfsSnapshotNeedsSpace(t *testing.T) {
	for mkfs, shares := range map[string]bool{"mkfs.ext4": false, "mkfs.xfs": true} {
		t.Run(mkfs, func(t *testing.T) {
			ft := newFilesystemTest(t)
			ft.Dir = filepath.Join(devicetest.NewDisk(t, 320<<20, mkfs, "-q").Dir, "storage")
			ft.Restart()
			ft.written()
			if err := fill(filepath.Join(ft.Dir, "filesystems", ft.ID, "large"), "170"); err != nil {
				t.Fatal(err)
			}
			sourcetest.Run(t, "sync", "-f", ft.Dir)
			info, err := ft.trySnapshot(newSnapshotTags())
			if shares && err != nil {
				t.Fatal(err)
			} else if shares {
				ft.destroySnapshot(info.SnapshotId)
			} else {
				sourcetest.CheckError(t, err, false, "MiB needed", "MiB available in "+ft.Dir)
			}
			sourcetest.CheckError(t, ft.tryClone(storage.Origin{Id: ft.ID}, 1<<20), false, "1048576 MiB needed", "MiB available in "+ft.Dir)
			ft.Destroy()
		})
	}
}

// What an interrupted copy has left is removed, unless it is complete: then it is older than the
// answer, and stays.
func TestRootfsCopyCrashes(t *testing.T) {
	half := func(ft *filesystemTest, dir, trash, id string) {
		sourcetest.Run(ft.T, "rm", "-r", filepath.Join(dir, "filesystems", id))
		sourcetest.Run(ft.T, "mkdir", "-p", filepath.Join(trash, id, "half"))
	}
	for about, crash := range map[string]func(ft *filesystemTest, dir, trash, id string) (complete bool){
		"recorded": func(ft *filesystemTest, dir, _, id string) bool {
			sourcetest.Run(ft.T, "rm", "-r", filepath.Join(dir, "filesystems", id))
			return false
		},
		"half": func(ft *filesystemTest, dir, trash, id string) bool {
			half(ft, dir, trash, id)
			return false
		},
		"moved": func(*filesystemTest, string, string, string) bool { return true },
	} {
		for _, kind := range []string{"snapshot", "clone"} {
			for _, then := range []string{"again", "destroy", "delete"} {
				t.Run(kind+" "+about+", then "+then, func(t *testing.T) {
					ft := newFilesystemTest(t)
					ft.written()
					tags := newSnapshotTags()
					info, err := ft.trySnapshot(tags)
					if err != nil {
						t.Fatal(err)
					}
					origin := storage.Origin{SnapshotId: info.SnapshotId}
					clone := ft.clone(origin, sourcetest.FilesystemSize)
					dir, id, store := ft.Dir, clone.ID, ft.Store()
					if kind == "snapshot" {
						dir, id, store = object.SnapshotsDir(ft.Dir), info.SnapshotId, ft.snapshotStore()
					}
					var rec record
					if err := store.Load(id, &rec); err != nil {
						t.Fatal(err)
					}
					rec.Phase, rec.Identity = object.PhaseCreating, object.Identity{}
					if err := store.Save(id, rec); err != nil {
						t.Fatal(err)
					}
					complete := crash(ft, dir, filepath.Join(dir, "trash"), id)
					ft.Restart()
					clone.Restart()
					for range 2 {
						switch then {
						case "again":
							if kind == "clone" {
								if err := ft.tryClone(origin, sourcetest.FilesystemSize); err != nil {
									t.Fatal(err)
								}
								clone.checkClone()
							} else if again, err := ft.trySnapshot(tags); err != nil || again.SnapshotId != id || again.TakenAt.Equal(info.TakenAt) != complete {
								t.Fatalf("%+v, %v, after %+v", again, err, info)
							}
						case "destroy":
							if kind == "clone" {
								if err := clone.TryDestroy(); err != nil {
									t.Error(err)
								}
							} else {
								ft.destroySnapshot(id)
							}
						case "delete":
							err := Trash(ft.Ctx, ft.Dir, id, rec.Owner(), time.Unix(1, 0))
							if err != nil && !errors.Is(err, errors.NotFound) {
								t.Error(err)
							}
							if err := PurgeTrash(ft.Ctx, ft.Dir, time.Unix(2, 0)); err != nil {
								t.Error(err)
							}
						}
						if names, err := filepath.Glob(dir + "/trash/*"); err != nil || len(names) > 0 {
							t.Errorf("left %q, %v", names, err)
						}
					}
					if err := clone.TryDestroy(); err != nil {
						t.Error(err)
					}
					ft.destroySnapshot(info.SnapshotId)
					ft.Destroy()
				})
			}
		}
	}
}

// Where a copy would lose something, because the process lacks a capability, none is made.
func TestRootfsSnapshotWithoutCapability(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.written()
	dir := filepath.Join(ft.Dir, "filesystems", ft.ID)
	if err := unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	for name, number := range map[string]uint{"CAP_FSETID": unix.CAP_FSETID, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN} {
		without(t, number, func() {
			_, err := ft.trySnapshot(newSnapshotTags())
			sourcetest.CheckError(t, err, true, "creating a snapshot of "+ft.ID, "needs "+name)
			if !errors.Is(err, errors.NotSupported) {
				t.Errorf("got %v", err)
			}
		})
	}
	if left := sourcetest.Files(t, object.SnapshotsDir(ft.Dir)); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	ft.Destroy()
}

// The directory of snapshots belongs to the storage directory when that is copied, and the names and
// links that users choose lead nowhere.
func TestRootfsSnapshotsMoveWithDirectory(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.written()
	dir := filepath.Join(ft.Dir, "filesystems", ft.ID)
	precious := filepath.Join(ft.Top, "precious")
	sourcetest.Run(t, "mkdir", precious)
	sourcetest.Run(t, "touch", filepath.Join(precious, "file"))
	sourcetest.Run(t, "ln", "-s", precious, filepath.Join(dir, "..link"))
	sourcetest.Run(t, "ln", "-s", precious, filepath.Join(dir, "-rf"))
	sourcetest.Run(t, "touch", filepath.Join(dir, "--target-directory="+filepath.Base(precious)), filepath.Join(dir, "new\nline"))
	info := ft.snapshot()
	moved := *ft
	moved.Dir = filepath.Join(ft.Top, "moved")
	sourcetest.Run(t, "cp", "-a", ft.Dir, moved.Dir)
	moved.Restart()
	origin := storage.Origin{SnapshotId: info.SnapshotId}
	sourcetest.CheckError(t, moved.tryClone(origin, sourcetest.FilesystemSize), true, "was replaced")
	if err := Reidentify(ft.Ctx, moved.Dir, object.Copied); err != nil {
		t.Fatal(err)
	}
	clone := moved.clone(origin, sourcetest.FilesystemSize)
	clone.checkClone()
	if to, err := os.Readlink(filepath.Join(moved.Dir, "filesystems", clone.ID, "-rf")); err != nil || to != precious {
		t.Errorf("a link leads to %q, %v", to, err)
	}
	moved.destroySnapshot(info.SnapshotId)
	for _, each := range []*filesystemTest{clone, &moved} {
		if err := each.TryDestroy(); err != nil {
			t.Error(err)
		}
	}
	sourcetest.CheckNoFiles(t, moved.Dir)
	ft.destroySnapshot(info.SnapshotId)
	ft.Destroy()
	sourcetest.Run(t, "test", "-f", filepath.Join(precious, "file"))
}

func TestRootfsCapacity(t *testing.T) {
	ft := newFilesystemTest(t)
	reporter := ft.Source.(storage.CapacityReporter)
	if got, err := reporter.Capacity(ft.Ctx, nil); err != nil || got == 0 {
		t.Errorf("%d MiB, %v", got, err)
	}
	_, err := reporter.Capacity(ft.Ctx, map[string]any{"mount-options": "suid"})
	if !errors.Is(err, errors.NotValid) {
		t.Errorf("got %v", err)
	}
}

// Making a filesystem from a snapshot fails at each of its steps in turn. Nothing is left once it is
// removed. A snapshot is made with the same steps, after a look at all processes, which takes as many
// calls as they have files.
// Fault F30.
func TestFailedCopyLeavesNothing(t *testing.T) {
	sourcetest.CheckFailedCreations(t, syscalltest.FailSome, func(t *testing.T) sourcetest.Failing {
		ft := newFilesystemTest(t)
		ft.written()
		of := storage.Origin{SnapshotId: ft.snapshot().SnapshotId}
		t.Cleanup(func() {
			ft.destroySnapshot(of.SnapshotId)
			ft.Destroy()
		})
		remove := func(t *testing.T) {
			ft.Restart()
			clone := ft.clone(of, sourcetest.FilesystemSize)
			clone.checkClone()
			if err := clone.TryDestroy(); err != nil {
				t.Error(err)
			}
		}
		remove(t)
		return sourcetest.Failing{
			Dir: ft.Dir,
			Create: func() error {
				c, err := ft.Source.(*source).beginCopy(ft.Ctx)
				if err != nil {
					return err
				}
				defer c.End()
				_, err = c.clone(storage.FilesystemCloneParams{FilesystemParams: storage.FilesystemParams{Tag: cloneTag, Size: sourcetest.FilesystemSize}, Origin: of})
				return err
			},
			Remove: remove,
		}
	})
}

// A call that is cancelled leaves nothing; a repeated one makes the snapshot.
func TestRootfsSnapshotCancelled(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.written()
	large := filepath.Join(ft.Dir, "filesystems", ft.ID, "large")
	if err := fill(large, "64"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(5*time.Millisecond, cancel)
	tags := newSnapshotTags()
	results, err := ft.Source.(storage.FilesystemSnapshotter).CreateFilesystemSnapshots(envcontext.New(ctx),
		[]storage.FilesystemSnapshotParams{{FilesystemId: ft.ID, ResourceTags: tags}})
	if err == nil {
		err = results[0].Error
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if left := sourcetest.Files(t, object.SnapshotsDir(ft.Dir)); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	info, err := ft.trySnapshot(tags)
	if err != nil {
		t.Fatal(err)
	}
	sourcetest.Run(t, "cmp", large, filepath.Join(ft.snapshotDir(info.SnapshotId), "large"))
	ft.destroySnapshot(info.SnapshotId)
	ft.Destroy()
}

// A snapshot that was reported has its data after a power cut.
func TestRootfsPowerCutAfterSnapshot(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			disk := devicetest.NewDisk(t, 320<<20, "mkfs."+fs, "-q")
			ft := newFilesystemTest(t)
			ft.Dir = filepath.Join(disk.Dir, "storage")
			ft.Restart()
			ft.written()
			tags := newSnapshotTags()
			info, err := ft.trySnapshot(tags)
			if err != nil {
				t.Fatal(err)
			}
			after := *ft
			after.Dir = filepath.Join(disk.CutPower(t).Dir, "storage")
			after.Restart()
			if again, err := after.trySnapshot(tags); err != nil || *again != *info {
				t.Errorf("found %+v, %v, want %+v", again, err, info)
			}
			clone := after.clone(storage.Origin{SnapshotId: info.SnapshotId}, sourcetest.FilesystemSize)
			clone.checkClone()
			after.destroySnapshot(info.SnapshotId)
			for _, each := range []*filesystemTest{clone, &after} {
				if err := each.TryDestroy(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
