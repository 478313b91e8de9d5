//go:build linux

package program_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/program"
	"github.com/stowage-io/stowage/storage/provider/providertest"
)

// The example provider of the documentation conforms like any other provider.
func TestExampleConforms(t *testing.T) {
	dir := devicetest.Dir(t)
	path := filepath.Join(dir, "provider")
	build := exec.Command("go", "build", "-o", path, "../../../examples/provider")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the example: %v\n%s", err, out)
	}
	open := func() storage.Provider {
		p, err := program.New("files", path)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	pool, err := storage.NewConfig("files", "files", storage.Attrs{"tier": "any"})
	if err != nil {
		t.Fatal(err)
	}
	volumes := filepath.Join(dir, "volumes")
	providertest.Run(t, providertest.Config{
		Provider:     open(),
		Restart:      open,
		SourceConfig: pool,
		InvalidAttrs: storage.Attrs{"fs": "fat"},
		Size:         4,
		OpenVolume: func(a storage.VolumeAttachment, write bool) (providertest.File, error) {
			flag := os.O_RDONLY
			if write {
				flag = os.O_RDWR | os.O_SYNC
			}
			return os.OpenFile("/dev/"+a.DeviceName, flag, 0)
		},
		TakeReleased: func(id string) error { return os.Remove(filepath.Join(volumes, id+".released")) },
		Leaks: func() []string {
			files, err := filepath.Glob(filepath.Join(dir, "[tv]*s", "*"))
			if err != nil {
				t.Fatal(err)
			}
			return append(files, devicetest.Loops(t, dir)...)
		},
	})
}
