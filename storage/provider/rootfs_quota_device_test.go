//go:build linux

package provider

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/quota"
)

// forEachQuota runs a test with the storage directory on a filesystem that enforces
// project quotas. It ends with nothing but the storage directory left.
func forEachQuota(t *testing.T, test func(*filesystemTest)) {
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			on := devicetest.QuotaFilesystem(t, fs)
			ft := newFilesystemTest(t, RootfsProviderType)
			ft.dir = filepath.Join(on, "storage")
			ft.restart()
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

// checkFree checks that a project has neither a limit nor files. XFS takes files
// away a moment after they were removed.
func (t *filesystemTest) checkFree(project uint32) {
	t.Helper()
	dir := openDir(t.T, t.dir)
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

// fill writes MiBs as a process that quotas hold for.
func fill(path, mib string) error {
	out, err := exec.Command("setpriv", "--bounding-set=-sys_resource",
		"dd", "if=/dev/zero", "of="+path, "bs=1M", "count="+mib).CombinedOutput()
	return errors.Annotate(err, string(out))
}

func (t *filesystemTest) checkFull(mib string) {
	t.Helper()
	err := fill(filepath.Join(t.path, "too-large"), mib)
	if err == nil || !strings.Contains(err.Error(), "No space left") && !strings.Contains(err.Error(), "quota exceeded") {
		t.Errorf("writing %s MiB: %v", mib, err)
	}
	if err := os.Remove(filepath.Join(t.path, "too-large")); err != nil {
		t.Error(err)
	}
}

func (t *filesystemTest) checkSize(path string, mib uint64) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil || st.Blocks*uint64(st.Bsize) != mib<<20 {
		t.Errorf("it shows %d bytes, %v", st.Blocks*uint64(st.Bsize), err)
	}
}

func (t *filesystemTest) load() rootfsRecord {
	t.Helper()
	var rec rootfsRecord
	if err := t.store().Load("filesystem-0-1", &rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestRootfsSizeIsEnforced(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		other := *ft
		other.dir = filepath.Join(filepath.Dir(ft.dir), "other")
		other.path = filepath.Join(ft.top, "other")
		other.restart()
		for _, ft := range []*filesystemTest{ft, &other} {
			ft.create()
			if _, err := ft.tryAttach(ft.path, false); err != nil {
				ft.Fatal(err)
			}
			ft.checkRemark("")
			ft.checkSize(ft.path, filesystemSize)
		}
		ft.checkFull("3")
		if err := fill(filepath.Join(other.path, "file"), "1"); err != nil {
			ft.Errorf("beside a full filesystem: %v", err)
		}
		ft.resize(8, 8)
		ft.resize(4, 8)
		ft.checkSize(ft.path, 8)
		if err := fill(filepath.Join(ft.path, "file"), "6"); err != nil {
			ft.Error(err)
		}
		ft.checkFull("3")
		other.checkFull("3")
		first, second := ft.load().Project, other.load().Project
		if first == 0 || second == 0 || first == second {
			ft.Errorf("projects %d and %d", first, second)
		}
		for _, ft := range []*filesystemTest{ft, &other} {
			ft.restart()
			if _, err := ft.tryAttach(ft.path, false); err != nil {
				ft.Fatal(err)
			}
			ft.detach()
			if err := ft.tryDestroy(); err != nil {
				ft.Fatal(err)
			}
			checkNoFiles(ft.T, ft.dir)
		}
		ft.checkFree(first)
		ft.checkFree(second)
	})
}

// TestRootfsQuotaCrashes is a process that dies on the way to an enforced size.
func TestRootfsQuotaCrashes(t *testing.T) {
	for _, test := range []struct {
		about string
		crash func(ft *filesystemTest, dir *os.File, rec *rootfsRecord)
	}{{
		about: "no project was chosen yet",
		crash: func(ft *filesystemTest, dir *os.File, rec *rootfsRecord) {
			ft.leaveProject(dir, rec.Project)
			rec.Project = 0
		},
	}, {
		about: "the directory is not in its project yet",
		crash: func(ft *filesystemTest, dir *os.File, rec *rootfsRecord) {
			ft.leaveProject(dir, rec.Project)
		},
	}, {
		about: "there is no limit yet",
		crash: func(ft *filesystemTest, dir *os.File, rec *rootfsRecord) {
			ft.setLimit(dir, rec.Project, 0)
		},
	}, {
		about: "it is complete, and not recorded",
		crash: func(*filesystemTest, *os.File, *rootfsRecord) {},
	}} {
		for _, then := range []string{"create", "destroy"} {
			t.Run(test.about+", then "+then, func(t *testing.T) {
				forEachQuota(t, func(ft *filesystemTest) {
					rec := ft.made()
					project := rec.Project
					dir := openDir(ft.T, filepath.Join(ft.dir, "filesystems", "filesystem-0-1"))
					test.crash(ft, dir, &rec)
					dir.Close()
					rec.Phase = phaseCreating
					if err := ft.store().Save("filesystem-0-1", rec); err != nil {
						ft.Fatal(err)
					}
					ft.restart()
					if then == "create" {
						ft.create()
						ft.attach()
						ft.checkRemark("")
						ft.checkSize(ft.path, filesystemSize)
						ft.checkFull("3")
						if got := ft.load().Project; got != project {
							ft.Errorf("project %d, want %d", got, project)
						}
						ft.detach()
					}
					ft.destroy()
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

// TestRootfsCrashBeforeTheLimitGrows is a resize that was recorded and not carried
// out: attaching finishes it.
func TestRootfsCrashBeforeTheLimitGrows(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		rec := ft.made()
		rec.Size, rec.Limit = 8<<20, 8<<20
		if err := ft.store().Save("filesystem-0-1", rec); err != nil {
			ft.Fatal(err)
		}
		ft.attach()
		ft.checkSize(ft.path, 8)
		ft.detach()
		ft.destroy()
	})
}

// TestRootfsInAProjectOfOthers is a storage directory that an administrator has put
// in a project, whose quota it cannot leave.
func TestRootfsInAProjectOfOthers(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		if err := os.MkdirAll(ft.dir, 0o700); err != nil {
			ft.Fatal(err)
		}
		if err := quota.MoveTree(ft.dir, 0, 7); err != nil {
			ft.Fatal(err)
		}
		ft.create()
		ft.attach()
		ft.checkRemark("size is not enforced: its directory has no quota project of its own")
		if got := projectOf(ft.T, ft.path); got != 7 {
			ft.Errorf("it is in project %d", got)
		}
		ft.resize(4, 4)
		ft.detach()
		ft.destroy()

		from := filepath.Join(filepath.Dir(ft.dir), "from")
		ft.fillDir(from)
		_, err := ft.tryImport(from)
		checkError(ft.T, err, true, from, "in another quota project than "+ft.dir)
		checkNoFiles(ft.T, ft.dir)
	})
}

func TestRootfsReleaseLeavesTheProject(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		project := ft.made().Project
		ft.attach()
		ft.write()
		ft.detach()
		results, err := ft.source.ReleaseFilesystems(ft.ctx, []string{filesystemTag.String()})
		if err != nil || results[0] != nil {
			ft.Fatal(results, err)
		}
		dir := filepath.Join(ft.dir, "filesystems", "filesystem-0-1")
		for _, path := range []string{dir, filepath.Join(dir, "file")} {
			if got := projectOf(ft.T, path); got != 0 {
				ft.Errorf("%s is in project %d", path, got)
			}
		}
		ft.checkFree(project)
		if err := os.RemoveAll(dir); err != nil {
			ft.Fatal(err)
		}
	})
}

func TestRootfsImportIsBoundedOnceItGrows(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		from := filepath.Join(filepath.Dir(ft.dir), "from")
		run(ft.T, "mkdir", "-p", from+"/deep")
		run(ft.T, "dd", "if=/dev/zero", "of="+from+"/deep/file", "bs=1M", "count=3")
		info, err := ft.tryImport(from)
		if err != nil {
			ft.Fatal(err)
		}
		ft.id = info.FilesystemId
		ft.attach()
		ft.checkRemark("size is not enforced: it was imported, and has not grown since")
		if err := fill(filepath.Join(ft.path, "more"), "4"); err != nil {
			ft.Error(err)
		}
		ft.resize(8, 8)
		ft.checkRemark("")
		ft.checkSize(ft.path, 8)
		ft.checkFull("4")
		ft.detach()
		ft.destroy()
	})
}

// TestRootfsWhoseFilesystemHasNoQuotaAnyMore is a parent that was mounted anew
// without quotas: nothing fails, and the user is told.
func TestRootfsWhoseFilesystemHasNoQuotaAnyMore(t *testing.T) {
	forEachQuota(t, func(ft *filesystemTest) {
		ft.create()
		on := filepath.Dir(ft.dir)
		m := devicetest.Mounts(ft, on)[0]
		run(ft.T, "umount", on)
		run(ft.T, "mount", m.Source, on)
		ft.attach()
		ft.checkRemark("size is not enforced: the filesystem of " + ft.dir + "/filesystems has no project quota")
		ft.resize(4, 4)
		ft.detach()
		ft.destroy()
	})
}

var _ storage.FilesystemImporter = (*rootfsSource)(nil)

// TestRootfsRecordsThatNoCallWrites is records by which the quota project of others
// would lose its limit, or a directory of others move.
func TestRootfsRecordsThatNoCallWrites(t *testing.T) {
	for _, test := range []struct {
		about string
		rec   rootfsRecord
		ok    bool
	}{
		{"without a project", rootfsRecord{Phase: phaseReady}, true},
		{"with a project", rootfsRecord{Phase: phaseReady, Project: 1<<30 + 5}, true},
		{"with a project of others", rootfsRecord{Phase: phaseReady, Project: 7}, false},
		{"with a project beyond", rootfsRecord{Phase: phaseReady, Project: 1<<31 + 5}, false},
		{"imported", rootfsRecord{Phase: phaseReady, ImportedFrom: "/srv/a"}, true},
		{"importing", rootfsRecord{Phase: phaseImporting, ImportedFrom: "/srv/a"}, true},
		{"importing nothing", rootfsRecord{Phase: phaseImporting}, false},
		{"imported from no path", rootfsRecord{Phase: phaseReady, ImportedFrom: "../a"}, false},
	} {
		test.rec.Size = 1 << 20
		if err := test.rec.Validate(); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.about, err)
		}
	}
}
