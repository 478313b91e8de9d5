package main

import (
	"os"
	"testing"

	"github.com/stowage-io/stowage/examples/internal/program"
)

func TestMain(m *testing.M) { program.Main(m, main) }

func TestProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
			t.Fatal("mounting needs root, which STOWAGE_REQUIRE_ROOT=1 promises")
		}
		t.Skip("mounting needs root")
	}
	dir := program.TempDir(t)
	output := program.Run(t, program.Command(t, dir))
	program.ExpectEmpty(t, dir)
	program.ExpectLines(t, output,
		"create-filesystem filesystem-0-0: success",
		"attach-filesystem filesystem-0-0: success",
		"scratch is attached",
		"detach-filesystem filesystem-0-0: success",
		"scratch is gone",
	)
}
