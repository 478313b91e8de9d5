//go:build linux && faults

package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// The filesystem on a mounted volume thaws long before the limit on its freezing, and keeps what
// was written to it.
// Fault F41.
func TestKillWhileMountedVolumeIsCopied(t *testing.T) {
	r := begin(t, "kill -9 while a mounted volume is copied")
	devicetest.RequireRoot(t)
	for _, disk := range []string{"xfs", "ext4"} { // with reflinks, and without
		for step, more := 1, true; more && step <= mostSteps && !t.Failed(); step++ {
			r.run(t, fmt.Sprintf("%s %02d", disk, step), func(t *testing.T) {
				b := newBaseOf(t, disk, baseSize("loop", 1))
				s := stepTest{base: b, world: newWorld("loop", b.dir, 1), op: operation{"snapshot", []string{"create", "attach"}, true, true}}
				s.setup()
				device := s.data(0)
				command(t, "mkfs.ext4", "-q", device)
				dir := filepath.Join(b.dir, "mounted")
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				command(t, "mount", "-t", "ext4", device, dir)
				writeDurably(t, filepath.Join(dir, "data"), contents(0))
				o := s.fault(r, "kill", step)
				more = o.killed
				if !o.killed && o.err != nil {
					t.Fatal(o.err)
				}
				written := make(chan error, 1)
				go func() { written <- os.WriteFile(filepath.Join(dir, "later"), contents(1), 0o600) }()
				select {
				case err := <-written:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(freezeLimit / 2):
					t.Error("the filesystem is still frozen")
				}
				for range 2 {
					s.must(s.world, "snapshot")
				}
				check(t, "ext4", filepath.Join(s.world.dir(), "snapshots", "volumes", s.snapshotID(0)))
				checkContents(t, filepath.Join(dir, "data"), 0)
				command(t, "umount", dir)
				if err := os.Remove(dir); err != nil {
					t.Fatal(err)
				}
				for _, op := range []string{"detach", "destroy", "destroy snapshots"} {
					if err := s.world.do(context.Background(), op); err != nil {
						t.Errorf("%s: %v", op, err)
					}
				}
				s.checkLeaks()
			})
		}
	}
}
