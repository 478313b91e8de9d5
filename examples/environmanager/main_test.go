package main

import (
	"io"
	"strings"
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
		"report:    volume 0: create waits for machine-0 to be provisioned",
		"report:    volume 1: create waits for machine-0 to be provisioned",
		"report:    volume 2: create waits for machine-0 to be provisioned",
		"manager:   machine 0 is instance i-0",
		"cloud:     asked for 3 disks in one call",
		"status:    volume-2 pending (the cloud makes 2 disks at a time)",
		"cloud:     asked for 1 disks in one call",
		"inventory: volume-2 is volume-2, 1024 MiB",
		"inventory: volume-2 is on machine-0: /dev/disk/by-id/cloud-volume-2",
		"manager:   all are attached; removing them",
		"status:    volume-2 detached",
		"inventory: volume-2 is gone",
	}, {
		"inventory: volume-0 is volume-0, 1024 MiB",
		"inventory: volume-0 is on machine-0: /dev/disk/by-id/cloud-volume-0",
		"manager:   all are attached; removing them",
		"inventory: volume-0 is gone",
	}, {
		"inventory: volume-1 is on machine-0: /dev/disk/by-id/cloud-volume-1",
		"inventory: volume-1 is gone",
	}} {
		program.ExpectLines(t, output, order...)
	}
}

// The suite checks the example's provider for the properties that the worker relies on.
func TestConformance(t *testing.T) {
	opened, err := newCloud(io.Discard).open(strings.NewReader("{}"), storage.ProviderEnviron{Scope: storage.ScopeEnviron})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := storage.NewConfig("cloud", "cloud", nil)
	if err != nil {
		t.Fatal(err)
	}
	providertest.Run(t, providertest.Config{
		Provider:     opened,
		SourceConfig: pool,
		InvalidAttrs: storage.Attrs{"colour": "blue"},
	})
}
