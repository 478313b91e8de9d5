//go:build linux && faults

package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The process is killed while a directory is copied by a program that it has started. The copy ends
// with it, and the next one finds nothing of it.
// Fault F42.
func TestKillWhileDirectoryIsCopied(t *testing.T) {
	r := begin(t, "kill -9 while a directory is copied")
	const files = 10000 // so many that the copy takes longer than it takes to kill its caller
	for _, op := range []string{"snapshot", "clone"} {
		r.run(t, op, func(t *testing.T) {
			b := newBaseOf(t, "ext4", baseSize("rootfs", 1))
			s := stepTest{base: b, world: newWorld("rootfs", b.dir, 1), op: operation{op, []string{"create", "attach"}, true, false}}
			s.setup()
			many := filepath.Join(s.path(0), "many")
			if err := os.Mkdir(many, 0o700); err != nil {
				t.Fatal(err)
			}
			for i := range files {
				if err := os.WriteFile(filepath.Join(many, fmt.Sprint(i)), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s.must(s.world, "detach")
			copies := filepath.Join(s.world.dir(), "snapshots", "trash", s.snapshotID(0))
			if op == "clone" {
				s.must(s.world, "snapshot")
				s.must(s.world, "destroy")
				copies = filepath.Join(s.world.dir(), "trash", s.id(0))
			}
			pid, wait := task{World: s.world, Op: op}.start(t)
			copied := func() int {
				names, _ := os.ReadDir(filepath.Join(copies, "many"))
				return len(names)
			}
			again := time.NewTicker(time.Millisecond)
			defer again.Stop()
			for deadline := time.Now().Add(patience); copied() == 0; <-again.C {
				if time.Now().After(deadline) {
					t.Fatal("nothing is copied")
				}
			}
			kill(t, pid)
			if o := wait(); !o.killed {
				t.Fatalf("the copy was complete: %v", o.err)
			}
			r.steps++
			s.repeat()
			s.verify()
			if names, err := os.ReadDir(filepath.Join(s.world.dir(), "snapshots", "filesystems", s.snapshotID(0), "many")); err != nil || len(names) != files {
				t.Errorf("the snapshot has %d files, %v", len(names), err)
			}
			for _, op := range []string{"destroy", "destroy snapshots"} {
				if err := s.world.do(context.Background(), op); err != nil {
					t.Errorf("%s: %v", op, err)
				}
			}
			s.checkLeaks()
		})
	}
}
