//go:build linux && faults

package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// dieAt carries out what do does up to a step, the first being 1: the goroutine that
// comes to it ends there. It returns false if there are fewer. What is deferred is
// carried out: a process that is killed there leaves more to the kernel, and the same
// in the storage directory.
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

// TestRootfsStepsOfImportingAndGrowing dies at each step of making, taking over,
// growing, releasing and destroying a filesystem. The same again, by a new process,
// comes to the same end, with and without project quotas.
func TestRootfsStepsOfImportingAndGrowing(t *testing.T) {
	for _, fs := range []string{"", "ext4", "xfs"} {
		for _, test := range []struct {
			about   string
			prepare func(ft *filesystemTest, from string)
			do      func(ft *filesystemTest, from string) error
			check   func(ft *filesystemTest, from string)
		}{{
			about: "create",
			do:    func(ft *filesystemTest, _ string) error { return ft.tryCreate(filesystemSize) },
			check: func(ft *filesystemTest, _ string) { ft.checkBounded(fs != "", filesystemSize) },
		}, {
			about: "import",
			prepare: func(ft *filesystemTest, from string) {
				ft.fillDir(from)
			},
			do: func(ft *filesystemTest, from string) error {
				info, err := ft.tryImport(from)
				if err == nil {
					ft.id = info.FilesystemId
				}
				return err
			},
			check: func(ft *filesystemTest, from string) {
				ft.checkBounded(false, 0)
				ft.resize(4, 4)
				ft.checkBounded(fs != "", 4)
				ft.attach()
				ft.checkWritten()
				ft.detach()
			},
		}, {
			about:   "resize",
			prepare: func(ft *filesystemTest, _ string) { ft.create() },
			do: func(ft *filesystemTest, _ string) error {
				_, err := ft.tryResize(4)
				return err
			},
			check: func(ft *filesystemTest, _ string) { ft.checkBounded(fs != "", 4) },
		}, {
			about: "release",
			prepare: func(ft *filesystemTest, from string) {
				ft.create()
				ft.attach()
				ft.write()
				ft.detach()
			},
			do: func(ft *filesystemTest, _ string) error {
				results, err := ft.source.ReleaseFilesystems(ft.ctx, []string{ft.id})
				if err != nil {
					return err
				}
				return results[0]
			},
			check: func(ft *filesystemTest, _ string) {
				dir := filepath.Join(ft.dir, "filesystems", ft.id)
				if data, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(data) != "precious" {
					ft.Errorf("read %q, %v", data, err)
				}
				if fs != "" && projectOf(ft.T, filepath.Join(dir, "file")) != 0 {
					ft.Error("it is in a quota project")
				}
				run(ft.T, "rm", "-r", dir)
			},
		}, {
			about:   "destroy",
			prepare: func(ft *filesystemTest, _ string) { ft.create() },
			do:      func(ft *filesystemTest, _ string) error { return ft.tryDestroy() },
		}} {
			t.Run(fs+" "+test.about, func(t *testing.T) {
				base := devicetest.Dir(t)
				if fs != "" {
					base = devicetest.QuotaFilesystem(t, fs)
				}
				steps := 0
				for died := true; died; steps++ {
					ft := newFilesystemTest(t, RootfsProviderType)
					top := filepath.Join(base, fmt.Sprint("step-", steps))
					run(t, "mkdir", top)
					from := filepath.Join(top, "from")
					ft.dir = filepath.Join(top, "storage")
					ft.restart()
					if test.prepare != nil {
						test.prepare(ft, from)
					}
					died = dieAt(steps+1, func() {
						if err := test.do(ft, from); err != nil {
							t.Errorf("step %d: %v", steps+1, err)
						}
					})
					for range 2 {
						ft.restart()
						if err := test.do(ft, from); err != nil {
							t.Errorf("after step %d: %v", steps+1, err)
						}
					}
					if test.check != nil {
						test.check(ft, from)
					}
					project := uint32(0)
					if fs != "" {
						project = ft.projectNow()
					}
					ft.destroy()
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

// projectNow returns the project in the record, 0 where there is no record.
func (t *filesystemTest) projectNow() uint32 {
	t.Helper()
	var rec rootfsRecord
	if has, err := t.store().List(); err != nil || len(has) == 0 {
		return 0
	}
	if err := t.store().Load(t.id, &rec); err != nil {
		t.Fatal(err)
	}
	return rec.Project
}

// checkBounded attaches the filesystem and checks whether its size is enforced.
func (t *filesystemTest) checkBounded(want bool, mib uint64) {
	t.Helper()
	t.attach()
	if remark := t.source.(storage.FilesystemRemarker).FilesystemRemark(t.id); (remark == "") != want {
		t.Errorf("the remark is %q", remark)
	}
	if want {
		t.checkSize(t.path, mib)
	}
	t.detach()
}
