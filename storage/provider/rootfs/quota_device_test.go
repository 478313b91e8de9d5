//go:build linux

package rootfs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/quota"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// forEachQuota runs a test with the storage directory on a filesystem that enforces
// project quotas. The test must leave nothing but the storage directory.
func forEachQuota(t *testing.T, test func(*filesystemTest)) {
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			on := devicetest.QuotaFilesystem(t, fs)
			ft := newFilesystemTest(t)
			ft.Dir = filepath.Join(on, "storage")
			ft.Restart()
			test(ft)
		})
	}
}

func openDir(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func projectOf(t *testing.T, path string) uint32 {
	t.Helper()
	f := openDir(t, path)
	defer f.Close()
	project, err := quota.ProjectOf(f)
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// checkFree checks that a project has neither a limit nor files. XFS frees the space of
// removed files with a delay.
func (t *filesystemTest) checkFree(project uint32) {
	t.Helper()
	dir := openDir(t.T, t.Dir)
	defer dir.Close()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(10 * time.Second); ; <-again.C {
		free, err := quota.FreeProject(dir, uint64(project)&(1<<30-1))
		if err == nil && free == project {
			return
		}
		if err != nil || time.Now().After(deadline) {
			t.Errorf("project %d is not free: %d is, %v", project, free, err)
			return
		}
	}
}

// fill writes MiBs as a process that quotas apply to.
func fill(path, mib string) error {
	out, err := exec.Command("setpriv", "--bounding-set=-sys_resource",
		"dd", "if=/dev/zero", "of="+path, "bs=1M", "count="+mib).CombinedOutput()
	return errors.Annotate(err, string(out))
}

func (t *filesystemTest) checkFull(mib string) {
	t.Helper()
	err := fill(filepath.Join(t.Path, "too-large"), mib)
	if err == nil || !strings.Contains(err.Error(), "No space left") && !strings.Contains(err.Error(), "quota exceeded") {
		t.Errorf("writing %s MiB: %v", mib, err)
	}
	if err := os.Remove(filepath.Join(t.Path, "too-large")); err != nil {
		t.Error(err)
	}
}

func (t *filesystemTest) load() record {
	t.Helper()
	var rec record
	if err := t.Store().Load("filesystem-0-1", &rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestRootfsSizeIsEnforced(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		other := *ft
		other.Dir = filepath.Join(filepath.Dir(ft.Dir), "other")
		other.Path = filepath.Join(ft.Top, "other")
		other.Restart()
		for _, ft := range []*filesystemTest{ft, &other} {
			ft.Create()
			if _, err := ft.TryAttach(ft.Path, false); err != nil {
				ft.Fatal(err)
			}
			ft.CheckRemark("")
			ft.CheckSize(ft.Path, sourcetest.FilesystemSize)
		}
		ft.checkFull("3")
		if err := fill(filepath.Join(other.Path, "file"), "1"); err != nil {
			ft.Errorf("beside a full filesystem: %v", err)
		}
		ft.Resize(8, 8)
		ft.Resize(4, 8)
		ft.CheckSize(ft.Path, 8)
		if err := fill(filepath.Join(ft.Path, "file"), "6"); err != nil {
			ft.Error(err)
		}
		ft.checkFull("3")
		other.checkFull("3")
		first, second := ft.load().Project, other.load().Project
		if first == 0 || second == 0 || first == second {
			ft.Errorf("projects %d and %d", first, second)
		}
		for _, ft := range []*filesystemTest{ft, &other} {
			ft.Restart()
			if _, err := ft.TryAttach(ft.Path, false); err != nil {
				ft.Fatal(err)
			}
			ft.Detach()
			if err := ft.TryDestroy(); err != nil {
				ft.Fatal(err)
			}
			sourcetest.CheckNoFiles(ft.T, ft.Dir)
		}
		ft.checkFree(first)
		ft.checkFree(second)
	})
}

// The process dies on the way to an enforced size.
func TestRootfsQuotaCrashes(t *testing.T) {
	for _, test := range []struct {
		about string
		crash func(ft *filesystemTest, dir *os.File, rec *record)
	}{{
		about: "no project was chosen yet",
		crash: func(ft *filesystemTest, dir *os.File, rec *record) {
			ft.leaveProject(dir, rec.Project)
			rec.Project = 0
		},
	}, {
		about: "the directory is not in its project yet",
		crash: func(ft *filesystemTest, dir *os.File, rec *record) {
			ft.leaveProject(dir, rec.Project)
		},
	}, {
		about: "there is no limit yet",
		crash: func(ft *filesystemTest, dir *os.File, rec *record) {
			ft.setLimit(dir, rec.Project, 0)
		},
	}, {
		about: "it is complete, and not recorded",
		crash: func(*filesystemTest, *os.File, *record) {},
	}} {
		for _, then := range []string{"create", "destroy"} {
			t.Run(test.about+", then "+then, func(t *testing.T) {
				forEachQuota(t, func(ft *filesystemTest) {
					rec := ft.createRecorded()
					project := rec.Project
					dir := openDir(ft.T, filepath.Join(ft.Dir, "filesystems", "filesystem-0-1"))
					test.crash(ft, dir, &rec)
					dir.Close()
					rec.Phase = object.PhaseCreating
					if err := ft.Store().Save("filesystem-0-1", rec); err != nil {
						ft.Fatal(err)
					}
					ft.Restart()
					if then == "create" {
						ft.Create()
						ft.Attach()
						ft.CheckRemark("")
						ft.CheckSize(ft.Path, sourcetest.FilesystemSize)
						ft.checkFull("3")
						if got := ft.load().Project; got != project {
							ft.Errorf("project %d, want %d", got, project)
						}
						ft.Detach()
					}
					ft.Destroy()
					ft.checkFree(project)
				})
			})
		}
	}
}

func (t *filesystemTest) leaveProject(dir *os.File, project uint32) {
	t.Helper()
	t.setLimit(dir, project, 0)
	if err := quota.MoveTree(dir.Name(), project, 0); err != nil {
		t.Fatal(err)
	}
}

func (t *filesystemTest) setLimit(dir *os.File, project uint32, bytes uint64) {
	t.Helper()
	if err := quota.SetLimit(dir, project, bytes); err != nil {
		t.Fatal(err)
	}
}

// A resize was recorded and not carried out. Attaching finishes it.
func TestRootfsCrashBeforeLimitGrows(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		rec := ft.createRecorded()
		rec.Size, rec.Limit = 8<<20, 8<<20
		if err := ft.Store().Save("filesystem-0-1", rec); err != nil {
			ft.Fatal(err)
		}
		ft.Attach()
		ft.CheckSize(ft.Path, 8)
		ft.Detach()
		ft.Destroy()
	})
}

// An administrator has put the storage directory in a quota project, which stays in
// force.
func TestRootfsInForeignProject(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		if err := os.MkdirAll(ft.Dir, 0o700); err != nil {
			ft.Fatal(err)
		}
		if err := quota.MoveTree(ft.Dir, 0, 7); err != nil {
			ft.Fatal(err)
		}
		ft.Create()
		ft.Attach()
		ft.CheckRemark("size is not enforced: its directory has no quota project of its own")
		if got := projectOf(ft.T, ft.Path); got != 7 {
			ft.Errorf("the directory is in project %d, want 7", got)
		}
		ft.Resize(4, 4)
		ft.Detach()
		ft.Destroy()

		from := filepath.Join(filepath.Dir(ft.Dir), "from")
		ft.fillDir(from)
		_, err := ft.tryImport(from)
		sourcetest.CheckError(ft.T, err, true, from, "in another quota project than "+ft.Dir)
		sourcetest.CheckNoFiles(ft.T, ft.Dir)
	})
}

func TestRootfsReleaseLeavesTheProject(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		project := ft.createRecorded().Project
		ft.Attach()
		ft.Write()
		ft.Detach()
		results, err := ft.Source.ReleaseFilesystems(ft.Ctx, []string{sourcetest.FilesystemTag.String()})
		if err != nil || results[0] != nil {
			ft.Fatal(results, err)
		}
		dir := filepath.Join(ft.Dir, "filesystems", "filesystem-0-1")
		for _, path := range []string{dir, filepath.Join(dir, "file")} {
			if got := projectOf(ft.T, path); got != 0 {
				ft.Errorf("%s is in project %d", path, got)
			}
		}
		ft.checkFree(project)

		// After another import the size is enforced again.
		if _, err := ft.tryImport("filesystem-0-1"); err != nil {
			ft.Fatal(err)
		}
		if got := projectOf(ft.T, filepath.Join(dir, "file")); got == 0 {
			ft.Error("the imported file is in no project")
		}
		ft.Attach()
		ft.checkFull("3")
		ft.Detach()
		ft.Destroy()
	})
}

// The storage directory was moved to another filesystem, where no file of the copy is in
// a project.
func TestRootfsMovedSizeIsEnforced(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		ft.Create()
		from := ft.Dir
		ft.Dir += "-moved"
		sourcetest.Run(ft.T, "cp", "-a", from, ft.Dir)
		ft.Restart()
		for range 2 {
			if err := Reidentify(ft.Ctx, ft.Dir, object.Moved); err != nil {
				ft.Fatal(err)
			}
		}
		rec := ft.load()
		if got := projectOf(ft.T, filepath.Join(ft.Dir, "filesystems", "filesystem-0-1")); got == 0 || got != rec.Project {
			ft.Errorf("the directory is in project %d, recorded is %d", got, rec.Project)
		}
		ft.Attach()
		ft.checkFull("3")
		ft.Detach()

		// Purging the trash removes its limit too.
		if err := Trash(ft.Ctx, ft.Dir, ft.ID, storage.Owner{}, time.Unix(1, 0)); err != nil {
			ft.Fatal(err)
		}
		if err := PurgeTrash(ft.Ctx, ft.Dir, time.Unix(2, 0)); err != nil {
			ft.Fatal(err)
		}
		ft.checkFree(rec.Project)
	})
}

func TestRootfsImportSizeEnforcedAfterGrowth(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		from := filepath.Join(filepath.Dir(ft.Dir), "from")
		sourcetest.Run(ft.T, "mkdir", "-p", from+"/deep")
		sourcetest.Run(ft.T, "dd", "if=/dev/zero", "of="+from+"/deep/file", "bs=1M", "count=3")
		info, err := ft.tryImport(from)
		if err != nil {
			ft.Fatal(err)
		}
		ft.ID = info.FilesystemId
		ft.Attach()
		ft.CheckRemark("size is not enforced: it has not been resized since its import")
		if err := fill(filepath.Join(ft.Path, "more"), "4"); err != nil {
			ft.Error(err)
		}
		ft.Resize(8, 8)
		ft.CheckRemark("")
		ft.CheckSize(ft.Path, 8)
		ft.checkFull("4")
		ft.Detach()
		ft.Destroy()
	})
}

// The parent filesystem is mounted again without quotas. Nothing fails, and a remark
// tells the user.
func TestRootfsQuotaRemoved(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		ft.Create()
		on := filepath.Dir(ft.Dir)
		m := devicetest.Mounts(ft, on)[0]
		sourcetest.Run(ft.T, "umount", on)
		sourcetest.Run(ft.T, "mount", m.Source, on)
		ft.Attach()
		ft.CheckRemark("size is not enforced: the filesystem of " + ft.Dir + "/filesystems has no project quota")
		ft.Resize(4, 4)
		ft.Detach()
		ft.Destroy()
	})
}

var _ storage.FilesystemImporter = (*source)(nil)

// These records are refused: with them the quota project of others would lose its limit,
// or a directory of others would be moved.
func TestRootfsRecordValidation(t *testing.T) {
	for _, test := range []struct {
		about string
		rec   record
		ok    bool
	}{
		{"without a project", record{Phase: object.PhaseReady}, true},
		{"with a project", record{Phase: object.PhaseReady, Project: 1<<30 + 5}, true},
		{"with a foreign project", record{Phase: object.PhaseReady, Project: 7}, false},
		{"with a project number out of range", record{Phase: object.PhaseReady, Project: 1<<31 + 5}, false},
		{"imported", record{Phase: object.PhaseReady, ImportedFrom: "/srv/a"}, true},
		{"importing", record{Phase: object.PhaseImporting, ImportedFrom: "/srv/a"}, true},
		{"importing nothing", record{Phase: object.PhaseImporting}, false},
		{"imported from a relative path", record{Phase: object.PhaseReady, ImportedFrom: "../a"}, false},
	} {
		test.rec.Size = 1 << 20
		if err := test.rec.Validate(); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.about, err)
		}
	}
}
