// Stowage makes the storage that a file declares on this machine, keeps it over
// restarts, and takes it away again. See `stowage --help`.
package main

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/cmd/stowage/internal/cli"
)

func main() {
	// What is made here, and by the programs that are run, is its owner's alone unless
	// something else is said of it.
	unix.Umask(0o077)
	signals := []os.Signal{os.Interrupt, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) { // nohup has it ignored
		signals = append(signals, unix.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	os.Exit(cli.Main(ctx, os.Args[1:], cli.Env{
		Stdin:  os.Stdin,
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		Getenv: os.Getenv,
	}))
}
