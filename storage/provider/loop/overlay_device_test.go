//go:build linux

package loop

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// The files of a container without a volume may be on an overlay of several filesystems. There the kernel
// says of a file that it is on another device than its directory. The error says so, and nothing is left.
func TestLoopOnOverlay(t *testing.T) {
	dir := devicetest.Dir(t)
	mount := func(at, kind, options string) {
		t.Helper()
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("none", at, kind, 0, options); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(at, 0); err != nil {
				t.Error(err)
			}
		})
	}
	lower, upper, merged := filepath.Join(dir, "lower"), filepath.Join(dir, "upper"), filepath.Join(dir, "merged")
	mount(lower, "tmpfs", "")
	mount(upper, "tmpfs", "")
	for _, name := range []string{"u", "w"} {
		if err := os.Mkdir(filepath.Join(upper, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount(merged, "overlay", fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, filepath.Join(upper, "u"), filepath.Join(upper, "w")))
	lt := loopTestIn(t, filepath.Join(merged, "storage"))
	tag := sourcetest.Volume(1)
	err := lt.TryCreate(tag, sourcetest.VolumeSize)
	sourcetest.CheckError(t, err, true, "as on an overlay of several filesystems", "such as a volume of the container")
	lt.Destroy(tag)
	lt.CheckLoops(0)
}
