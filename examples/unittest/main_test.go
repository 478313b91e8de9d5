package main

import (
	"testing"

	"github.com/stowage-io/stowage/examples/internal/program"
)

func TestMain(m *testing.M) { program.Main(m, main) }

func TestProgram(t *testing.T) {
	dir := program.TempDir(t)
	output := program.Run(t, program.Command(t, dir))
	program.ExpectEmpty(t, dir)
	program.ExpectLines(t, output,
		"create-filesystem filesystem-0-0: success",
		"attach-filesystem filesystem-0-0: success",
		"scratch is attached",
	)
}
