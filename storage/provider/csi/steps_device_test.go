//go:build linux && faults

package csi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/csi"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// childEnv has the task of a child process.
const childEnv = "STOWAGE_CSI_TASK"

// task is one call, and the step at which the process is killed.
type task struct {
	Config csi.Config
	Block  bool
	Tags   map[string]string
	// Snapshot and Copy are the resource tags of a snapshot of the volume, and of a volume from that.
	Snapshot, Copy map[string]string
	Mount          string
	Op             string
	Step           int
}

func TestMain(m *testing.M) {
	text := os.Getenv(childEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		panic(err)
	}
	steps := 0
	crash.Hook = func(string) {
		if steps++; steps == t.Step {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	if err := t.do(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (t task) id() string {
	if t.Block {
		return "volume-0-0-" + t.Tags[storage.EntityUUIDTag]
	}
	return "filesystem-0-0-" + t.Tags[storage.EntityUUIDTag]
}

func (t task) snapshotID() string { return "snapshot-" + t.Snapshot[storage.EntityUUIDTag] }

// do makes the call.
func (t task) do() error {
	ctx := envcontext.New(context.Background())
	p, err := csi.New(t.Config)
	if err != nil {
		return err
	}
	pool, err := storage.NewConfig("fake", "fake", nil)
	if err != nil {
		return err
	}
	at := storage.AttachmentParams{Provider: "fake", Machine: names.NewMachineTag("0")}
	if t.Block {
		s, err := p.VolumeSource(pool)
		if err != nil {
			return err
		}
		tag := names.NewVolumeTag("0/0")
		where := []storage.VolumeAttachmentParams{{AttachmentParams: at, Volume: tag, VolumeId: t.id()}}
		switch t.Op {
		case "create":
			r, err := s.CreateVolumes(ctx, []storage.VolumeParams{{Tag: tag, Size: 8, ResourceTags: t.Tags}})
			return first(err, r, func(r storage.CreateVolumesResult) error { return r.Error })
		case "attach":
			r, err := s.AttachVolumes(ctx, where)
			return first(err, r, func(r storage.AttachVolumesResult) error { return r.Error })
		case "detach":
			r, err := s.DetachVolumes(ctx, where)
			return first(err, r, func(err error) error { return err })
		case "snapshot":
			r, err := s.(storage.VolumeSnapshotter).CreateVolumeSnapshots(ctx, []storage.VolumeSnapshotParams{{VolumeId: t.id(), ResourceTags: t.Snapshot}})
			return first(err, r, func(r storage.CreateSnapshotsResult) error { return r.Error })
		case "copy":
			p := storage.VolumeParams{Tag: names.NewVolumeTag("0/1"), Size: 8, ResourceTags: t.Copy}
			r, err := s.(storage.VolumeCloner).CloneVolumes(ctx, []storage.VolumeCloneParams{{VolumeParams: p, Origin: storage.Origin{SnapshotId: t.snapshotID()}}})
			return first(err, r, func(r storage.CreateVolumesResult) error { return r.Error })
		case "destroy snapshot":
			r, err := s.(storage.VolumeSnapshotter).DestroyVolumeSnapshots(ctx, []string{t.snapshotID()})
			return first(err, r, func(err error) error { return err })
		case "destroy copy":
			r, err := s.DestroyVolumes(ctx, []string{"volume-0-1-" + t.Copy[storage.EntityUUIDTag]})
			return first(err, r, func(err error) error { return err })
		}
		r, err := s.DestroyVolumes(ctx, []string{t.id()})
		return first(err, r, func(err error) error { return err })
	}
	s, err := p.FilesystemSource(pool)
	if err != nil {
		return err
	}
	tag := names.NewFilesystemTag("0/0")
	where := []storage.FilesystemAttachmentParams{{AttachmentParams: at, Filesystem: tag, FilesystemId: t.id(), Path: t.Mount}}
	switch t.Op {
	case "create":
		r, err := s.CreateFilesystems(ctx, []storage.FilesystemParams{{Tag: tag, Size: 8, ResourceTags: t.Tags}})
		return first(err, r, func(r storage.CreateFilesystemsResult) error { return r.Error })
	case "attach":
		r, err := s.AttachFilesystems(ctx, where)
		return first(err, r, func(r storage.AttachFilesystemsResult) error { return r.Error })
	case "detach":
		r, err := s.DetachFilesystems(ctx, where)
		return first(err, r, func(err error) error { return err })
	}
	r, err := s.DestroyFilesystems(ctx, []string{t.id()})
	return first(err, r, func(err error) error { return err })
}

// first returns the error of a bulk call with one item.
func first[R any](err error, results []R, failure func(R) error) error {
	if err != nil {
		return err
	}
	return failure(results[0])
}

// The process is killed at each step of each call. The next one repeats the call, or undoes it, and
// nothing is lost, made twice or left.
func TestKilledAtSteps(t *testing.T) {
	order := []string{"create", "attach", "detach", "destroy"}
	for _, block := range []bool{true, false} {
		for i, op := range order {
			for _, then := range []string{op, "undo"} {
				t.Run(fmt.Sprintf("block %v, %s, %s", block, op, then), func(t *testing.T) {
					h := newHarness(t)
					h.config.StorageDir = h.dir
					mount := filepath.Join(devicetest.Dir(t), "deep", "data")
					for step := 1; ; step++ {
						w := task{Config: h.config, Block: block, Tags: ownerTags(), Mount: mount, Step: step}
						must := func(ops ...string) {
							t.Helper()
							for _, op := range ops {
								w.Op = op
								if err := w.do(); err != nil {
									t.Fatalf("killed at step %d of %s, then %s: %v", step, order[i], op, err)
								}
							}
						}
						must(order[:i]...)
						killed := w.killed(t, op)
						if then == op {
							must(op)
						}
						if used := devicetest.Loops(t, h.driver.dir); then == op && op == "attach" && block && len(used) != 1 {
							t.Errorf("step %d: attached at %q", step, used)
						}
						must("detach", "destroy")
						h.requireClean()
						if _, err := os.Stat(filepath.Dir(mount)); !os.IsNotExist(err) {
							t.Errorf("step %d: the directories of the mount point are left: %v", step, err)
						}
						if !killed {
							if step < 3 {
								t.Errorf("%s has only %d steps", op, step-1)
							}
							break
						}
					}
				})
			}
		}
	}
}

// The same with snapshots, and volumes that are made from them.
func TestCopiesKilledAtSteps(t *testing.T) {
	order := []string{"create", "snapshot", "copy", "destroy snapshot"}
	for i, op := range order[1:] {
		for _, then := range []string{op, "undo"} {
			t.Run(op+", "+then, func(t *testing.T) {
				h := newHarness(t)
				h.config.StorageDir = h.dir
				for step := 1; ; step++ {
					w := task{Config: h.config, Block: true, Tags: ownerTags(), Snapshot: ownerTags(), Copy: ownerTags(), Step: step}
					must := func(ops ...string) {
						t.Helper()
						for _, next := range ops {
							w.Op = next
							if err := w.do(); err != nil {
								t.Fatalf("killed at step %d of %s, then %s: %v", step, op, next, err)
							}
						}
					}
					must(order[:i+1]...)
					killed := w.killed(t, op)
					if then == op {
						must(op)
					}
					must("destroy copy", "destroy snapshot", "destroy")
					h.requireClean()
					if !killed {
						if step < 3 {
							t.Errorf("%s has only %d steps", op, step-1)
						}
						break
					}
				}
			})
		}
	}
}

// killed makes a call in a process of its own, and reports whether that was killed.
func (t task) killed(tb testing.TB, op string) bool {
	tb.Helper()
	t.Op = op
	text, err := json.Marshal(t)
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	if !strings.Contains(err.Error(), "signal: killed") {
		tb.Fatalf("%s at step %d: %v\n%s", op, t.Step, err, out)
	}
	return true
}
