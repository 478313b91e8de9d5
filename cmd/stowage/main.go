// Stowage makes the storage that a file declares on this machine, keeps it over restarts, and
// removes it on request. See `stowage --help`.
package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/cmd/stowage/internal/cli"
)

func main() {
	// Files that this process and the programs that it runs create are private to their owner
	// unless they set another mode.
	unix.Umask(0o077)
	signals := []os.Signal{os.Interrupt, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) { // nohup ignores it
		signals = append(signals, unix.SIGHUP)
	}
	received := make(chan os.Signal, 1)
	signal.Notify(received, signals...)
	ctx, cancel := context.WithCancel(context.Background())
	var hangup atomic.Pointer[func()]
	go func() { // ends with the process
		for s := range received {
			if f := hangup.Load(); f != nil && s == unix.SIGHUP {
				(*f)()
				continue
			}
			signal.Stop(received) // the second signal ends the process at once
			cancel()
			return
		}
	}()
	os.Exit(cli.Main(ctx, os.Args[1:], cli.Env{
		Stdin:    os.Stdin,
		Stdout:   os.Stdout,
		Stderr:   os.Stderr,
		Getenv:   os.Getenv,
		OnHangup: func(f func()) { hangup.Store(&f) },
	}))
}
