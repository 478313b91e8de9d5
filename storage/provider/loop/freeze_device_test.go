//go:build linux

package loop

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stowage-io/stowage/internal/looptest"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// A program that writes to a mounted volume of 1 GiB all the time waits only for a moment while a
// snapshot is made, if the filesystem of the storage directory copies by reference. The test
// reports the longest wait, and promises no more than the limit. Freezing alone needs three grace
// periods of the kernel's RCU, which take ten times as long on a busy machine as on an idle one.
func TestLoopFreezeIsShort(t *testing.T) {
	const size, atMost = 1024, defaultFreezeLimit
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			disk := devicetest.NewDisk(t, 12<<30, "mkfs.xfs", "-q")
			lt := loopTestIn(t, filepath.Join(disk.Dir, "storage"))
			tag := sourcetest.Volume(1)
			lt.make(tag, size, nil)
			dir := lt.mountOf(lt.Attach(tag, false), fsType)
			if err := os.WriteFile(filepath.Join(dir, "data"), pattern(1, size/16), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				var id string
				begun := time.Now()
				longest := lt.longestWait(dir, func() { id = lt.snapshot(tag) })
				t.Logf("waited for %v in %v", longest, time.Since(begun))
				if longest > atMost {
					t.Errorf("a write took %v", longest)
				}
				lt.destroySnapshot(id)
			}
			if err := looptest.Unmount(dir); err != nil {
				t.Error(err)
			}
			lt.Detach(tag)
			lt.Destroy(tag)
		})
	}
}

// longestWait returns how long the longest of the writes to a filesystem took while do ran.
func (t *loopTest) longestWait(dir string, do func()) time.Duration {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	longest, begun := make(chan time.Duration, 1), make(chan struct{})
	go func() {
		var most time.Duration
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n := int64(0); ctx.Err() == nil; n++ {
			at := time.Now()
			if _, err := f.WriteAt(make([]byte, 4096), n%1000<<12); err != nil {
				t.Error(err)
			}
			most = max(most, time.Since(at))
			if n == 0 {
				close(begun)
			}
			<-tick.C
		}
		longest <- most
	}()
	<-begun
	do()
	cancel()
	return <-longest
}
