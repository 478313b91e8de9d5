package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/examples/internal/program"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/providertest"
	"github.com/stowage-io/stowage/worker/storageprovisioner/accessortest"
)

func TestMain(m *testing.M) { program.Main(m, main) }

func TestProgram(t *testing.T) {
	dir := program.TempDir(t)
	output := program.Run(t, program.Command(t, dir))
	program.ExpectEmpty(t, dir)
	if !slices.ContainsFunc(output, func(line string) bool { return strings.HasSuffix(line, "pending the cloud is busy") }) {
		t.Error("no creation has failed first")
	}
	// The order of lines about different volumes is not fixed.
	for _, order := range [][]string{{
		"inventory: volume-0 is volume-0, 1024 MiB",
		"inventory: volume-0 is on machine-0: /dev/disk/by-id/cloud-volume-0",
		"manager:   all are attached; removing them",
		"inventory: volume-0 is gone",
	}, {
		"inventory: volume-2 is volume-2, 1024 MiB",
		"inventory: volume-2 is on machine-0: /dev/disk/by-id/cloud-volume-2",
		"manager:   all are attached; removing them",
		"status:    volume-2 detached ",
		"inventory: volume-2 is gone",
	}} {
		program.ExpectLines(t, output, order...)
	}
}

// The suite checks the example's provider for the properties that the worker relies on.
func TestConformance(t *testing.T) {
	pool, err := storage.NewConfig("cloud", "cloud", nil)
	if err != nil {
		t.Fatal(err)
	}
	providertest.Run(t, providertest.Config{
		Provider:     newProvider(false),
		SourceConfig: pool,
		InvalidAttrs: storage.Attrs{"colour": "blue"},
	})
}

// The suite for accessors checks the inventory.
func TestInventoryConformance(t *testing.T) {
	accessortest.Run(t, accessortest.Config{Open: func(t testing.TB) accessortest.Subject {
		environ, err := config.New(map[string]any{"name": "example", "type": "cloud", "uuid": uuid.NewString()})
		if err != nil {
			t.Fatal(err)
		}
		i := newInventory(environ, "volume-0")
		return accessortest.Subject{
			Accessors: i, Volume: names.NewVolumeTag("0"), Machine: machine,
			Remove: func() {
				if err := i.remove("volume-0"); err != nil {
					t.Error(err)
				}
			},
		}
	}})
}
