package main

import (
	"testing"

	"github.com/stowage-io/stowage/examples/internal/program"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/providertest"
)

func TestMain(m *testing.M) { program.Main(m, main) }

func TestProgram(t *testing.T) {
	dir := program.TempDir(t)
	output := program.Run(t, program.Command(t, dir))
	program.ExpectEmpty(t, dir)
	// The order of lines about different volumes is not fixed.
	for _, order := range [][]string{{
		"status:    volume-0 pending the cloud is busy",
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
