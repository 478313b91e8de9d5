//go:build linux

package program_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/program"
	"github.com/stowage-io/stowage/storage/provider/providertest"
)

// example builds a program of the examples. It returns its directory, and what opens its provider.
func example(t *testing.T, name string) (dir string, open func() storage.Provider) {
	t.Helper()
	dir = devicetest.Dir(t)
	path := filepath.Join(dir, "provider")
	build := exec.Command("go", "build", "-o", path, "../../../examples/"+name)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the example: %v\n%s", err, out)
	}
	return dir, func() storage.Provider {
		p, err := program.New("files", path)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
}

// The example provider of the documentation conforms like any other provider.
func TestExampleConforms(t *testing.T) {
	dir, open := example(t, "provider")
	config := exampleConfig(t, dir, open)
	config.OpenVolume = func(a storage.VolumeAttachment, write bool) (providertest.File, error) {
		flag := os.O_RDONLY
		if write {
			flag = os.O_RDWR | os.O_SYNC
		}
		return os.OpenFile("/dev/"+a.DeviceName, flag, 0)
	}
	providertest.Run(t, config)
}

// So does the one for several machines, which lists attachments. The data of its volumes are
// visible only after its plan has been carried out.
func TestSharedDirectoryConforms(t *testing.T) {
	dir, open := example(t, "shared-directory")
	config := exampleConfig(t, dir, open)
	source, err := config.Provider.VolumeSource(config.SourceConfig)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := source.(storage.AttachmentLister).ListVolumeAttachments(envcontext.New(t.Context())); err != nil {
		t.Errorf("listing attachments: %v", err)
	}
	providertest.Run(t, config)
}

func exampleConfig(t *testing.T, dir string, open func() storage.Provider) providertest.Config {
	t.Helper()
	pool, err := storage.NewConfig("files", "files", storage.Attrs{"tier": "any"})
	if err != nil {
		t.Fatal(err)
	}
	volumes := filepath.Join(dir, "volumes")
	return providertest.Config{
		Provider:     open(),
		Restart:      open,
		SourceConfig: pool,
		InvalidAttrs: storage.Attrs{"fs": "fat"},
		Size:         4,
		TakeReleased: func(id string) error { return os.Remove(filepath.Join(volumes, id+".released")) },
		Leaks: func() []string {
			files, err := filepath.Glob(filepath.Join(dir, "[htv]*s", "*"))
			if err != nil {
				t.Fatal(err)
			}
			return append(files, devicetest.Loops(t, dir)...)
		},
	}
}
