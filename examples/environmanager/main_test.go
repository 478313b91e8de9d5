package main

import (
	"slices"
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
	if !slices.ContainsFunc(output, func(line string) bool { return strings.HasSuffix(line, "pending the cloud is busy") }) {
		t.Error("no creation has failed first")
	}
	// The order of lines about different volumes is not fixed.
	for _, volume := range []string{"volume-0", "volume-2"} {
		on := "inventory: " + volume + " is on machine-0: /dev/disk/by-id/cloud-" + volume
		program.ExpectLines(t, output, on+", alive", "manager:   all are attached; removing them", on+", dying",
			"status:    "+volume+" detached ", "inventory: "+volume+" is gone")
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
