//go:build linux && faults

package rootfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// dieAt runs do up to a step, the first being 1. The goroutine that reaches the step ends
// there. It returns false if there are fewer steps. Deferred calls run: a killed process
// leaves more to the kernel, and the same state in the storage directory.
func dieAt(step int, do func()) (died bool) {
	crash.Hook = func(string) {
		if step--; step == 0 {
			died = true
			runtime.Goexit()
		}
	}
	defer func() { crash.Hook = nil }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	<-done
	return died
}

// TestRootfsCrashAtAllSteps dies at each step of creating, importing, growing, releasing
// and destroying a filesystem. Repeating the call in a new process leads to the same
// result, with and without project quotas.
func TestRootfsCrashAtAllSteps(t *testing.T) {
	for _, fs := range []string{"", "ext4", "xfs"} {
		for _, test := range []struct {
			about   string
			prepare func(ft *filesystemTest, from string)
			do      func(ft *filesystemTest, from string) error
			check   func(ft *filesystemTest, from string)
		}{{
			about: "create",
			do:    func(ft *filesystemTest, _ string) error { return ft.TryCreate(sourcetest.FilesystemSize) },
			check: func(ft *filesystemTest, _ string) { ft.checkEnforced(fs != "", sourcetest.FilesystemSize) },
		}, {
			about: "import",
			prepare: func(ft *filesystemTest, from string) {
				ft.fillDir(from)
			},
			do: func(ft *filesystemTest, from string) error {
				info, err := ft.tryImport(from)
				if err == nil {
					ft.ID = info.FilesystemId
				}
				return err
			},
			check: func(ft *filesystemTest, from string) {
				ft.checkEnforced(false, 0)
				ft.Resize(4, 4)
				ft.checkEnforced(fs != "", 4)
				ft.Attach()
				ft.CheckWritten()
				ft.Detach()
			},
		}, {
			about:   "resize",
			prepare: func(ft *filesystemTest, _ string) { ft.Create() },
			do: func(ft *filesystemTest, _ string) error {
				_, err := ft.TryResize(4)
				return err
			},
			check: func(ft *filesystemTest, _ string) { ft.checkEnforced(fs != "", 4) },
		}, {
			about: "release",
			prepare: func(ft *filesystemTest, from string) {
				ft.Create()
				ft.Attach()
				ft.Write()
				ft.Detach()
			},
			do: func(ft *filesystemTest, _ string) error {
				results, err := ft.Source.ReleaseFilesystems(ft.Ctx, []string{ft.ID})
				if err != nil {
					return err
				}
				return results[0]
			},
			check: func(ft *filesystemTest, _ string) {
				dir := filepath.Join(ft.Dir, "filesystems", ft.ID)
				if data, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(data) != "precious" {
					ft.Errorf("read %q, %v", data, err)
				}
				if fs != "" && projectOf(ft.T, filepath.Join(dir, "file")) != 0 {
					ft.Error("the released file is in a quota project")
				}
				sourcetest.Run(ft.T, "rm", "-r", dir)
			},
		}, {
			about:   "destroy",
			prepare: func(ft *filesystemTest, _ string) { ft.Create() },
			do:      func(ft *filesystemTest, _ string) error { return ft.TryDestroy() },
		}, {
			about:   "snapshot",
			prepare: func(ft *filesystemTest, _ string) { ft.written() },
			do: func(ft *filesystemTest, _ string) error {
				_, err := ft.trySnapshot(stepTags)
				return err
			},
			check: func(ft *filesystemTest, _ string) {
				id := "snapshot-" + stepTags[storage.EntityUUIDTag]
				clone := ft.clone(storage.Origin{SnapshotId: id}, sourcetest.FilesystemSize)
				clone.checkClone()
				ft.destroySnapshot(id)
				clone.checkEnforced(fs != "", sourcetest.FilesystemSize)
				if err := clone.TryDestroy(); err != nil {
					ft.Error(err)
				}
			},
		}, {
			about:   "clone",
			prepare: func(ft *filesystemTest, _ string) { ft.written() },
			do: func(ft *filesystemTest, _ string) error {
				return ft.tryClone(storage.Origin{Id: ft.ID}, 4)
			},
			check: func(ft *filesystemTest, _ string) {
				clone := *ft
				clone.ID = cloneTag.String()
				clone.checkClone()
				clone.checkEnforced(fs != "", 4)
				project := clone.recordedProject()
				if err := clone.TryDestroy(); err != nil {
					ft.Error(err)
				}
				if project != 0 {
					ft.checkFree(project)
				}
			},
		}} {
			t.Run(fs+" "+test.about, func(t *testing.T) {
				base := devicetest.Dir(t)
				if fs != "" {
					base = devicetest.QuotaFilesystem(t, fs)
				}
				steps, stride := 0, 1
				if testing.Short() {
					stride = 3
				}
				for died := true; died; steps += stride {
					ft := newFilesystemTest(t)
					top := filepath.Join(base, fmt.Sprint("step-", steps))
					sourcetest.Run(t, "mkdir", top)
					from := filepath.Join(top, "from")
					ft.Dir = filepath.Join(top, "storage")
					ft.Restart()
					if test.prepare != nil {
						test.prepare(ft, from)
					}
					died = dieAt(steps+1, func() {
						if err := test.do(ft, from); err != nil {
							t.Errorf("step %d: %v", steps+1, err)
						}
					})
					for range 2 {
						ft.Restart()
						if err := test.do(ft, from); err != nil {
							t.Errorf("after step %d: %v", steps+1, err)
						}
					}
					if test.check != nil {
						test.check(ft, from)
					}
					project := uint32(0)
					if fs != "" {
						project = ft.recordedProject()
					}
					ft.Destroy()
					if project != 0 {
						ft.checkFree(project)
					}
				}
				if steps < 2 {
					t.Errorf("%d steps", steps)
				}
			})
		}
	}
}

// stepTags are those of the snapshot that TestRootfsCrashAtAllSteps makes.
var stepTags = newSnapshotTags()

// Nobody attaches or removes a directory, or its snapshot, while it is copied.
func TestRootfsCopyLocksSteps(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.written()
	steps := 0
	crash.Hook = func(step string) {
		if step != "directory copied" {
			return
		}
		steps++
		for _, dir := range []string{ft.Dir, object.SnapshotsDir(ft.Dir)} {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if c, err := begin(ctx, dir); err == nil {
				c.End()
				t.Errorf("a call on %s does not wait for the copy", dir)
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			cancel()
		}
	}
	defer func() { crash.Hook = nil }()
	info := ft.snapshot()
	clone := ft.clone(storage.Origin{Id: ft.ID}, sourcetest.FilesystemSize)
	if steps != 2 {
		t.Errorf("%d directories were copied", steps)
	}
	if err := clone.TryDestroy(); err != nil {
		t.Error(err)
	}
	ft.destroySnapshot(info.SnapshotId)
	ft.Destroy()
}

// recordedProject returns the project in the record, 0 where there is no record.
func (t *filesystemTest) recordedProject() uint32 {
	t.Helper()
	var rec record
	if has, err := t.Store().List(); err != nil || len(has) == 0 {
		return 0
	}
	if err := t.Store().Load(t.ID, &rec); err != nil {
		t.Fatal(err)
	}
	return rec.Project
}

// checkEnforced attaches the filesystem and checks whether its size is enforced.
func (t *filesystemTest) checkEnforced(want bool, mib uint64) {
	t.Helper()
	t.Attach()
	if remark := t.Source.(storage.FilesystemRemarker).FilesystemRemark(t.ID); (remark == "") != want {
		t.Errorf("the remark is %q", remark)
	}
	if want {
		t.CheckSize(t.Path, mib)
	}
	t.Detach()
}

// A process begins to use the directory during the import, after the check for users.
func TestRootfsImportUsedDuringImport(t *testing.T) {
	ft, from := newRootfsImportTest(t)
	kill := func() {}
	crash.Hook = func(step string) {
		if step == "directory moved here" {
			to := filepath.Join(ft.Dir, "filesystems")
			kill = sourcetest.Holder(t, exec.Command("sh", "-c", "cd "+to+"/*; echo ready; read line"))
		}
	}
	defer func() { crash.Hook = nil }()
	_, err := ft.tryImport(from)
	sourcetest.CheckError(t, err, true, "(sh): working directory")
	sourcetest.CheckNoFiles(t, ft.Dir)
	if data, err := os.ReadFile(filepath.Join(from, "file")); err != nil || string(data) != "precious" {
		t.Errorf("read %q, %v", data, err)
	}
	crash.Hook = nil
	kill()
	if _, err := ft.tryImport(from); err != nil {
		t.Error(err)
	}
}
