// Unittest is a program that embeds the storage provisioner, and shows how it is
// tested without a machine, a disk or half a minute to wait: provisioner_test.go has a
// provider that fails, and a clock that is moved by hand.
//
//	go test -v ./examples/unittest
//	go run ./examples/unittest
//
// The program itself has the worker make one directory, prints how each attempt at
// that ends, and throws all away again. What is tested is in provisioner.go.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "unittest-")
	if err == nil {
		// Nothing is mounted in it, so it can go as it is.
		err = firstError(run(ctx, dir), os.RemoveAll(dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "unittest:", err)
		os.Exit(1)
	}
}

// machine is where the directory is wanted.
var machine = names.NewMachineTag("0")

func run(ctx context.Context, dir string) (err error) {
	store, err := boltkv.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		return errors.Trace(err)
	}
	defer func() { err = firstError(err, store.Close()) }()
	st, err := state.Open(state.Config{Store: store, Clock: clock.WallClock, Registry: provider.CommonStorageProviders()})
	if err != nil {
		return errors.Trace(err)
	}
	defer func() { err = firstError(err, st.Close()) }()
	if err := want(st); err != nil {
		return errors.Trace(err)
	}
	worker, err := start(storageprovisioner.Config{
		Scope:      machine,
		StorageDir: filepath.Join(dir, "storage"),
		Clock:      clock.WallClock,
	}.WithAccessors(st.ForMachine(machine)), os.Stdout)
	if err != nil {
		return errors.Trace(err)
	}
	// Nobody waits longer than the worker lives.
	waiting, end := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end(worker.Wait())
	}()
	err = await(waiting, st)
	worker.Kill()
	<-ended
	return firstError(err, worker.Wait())
}

// want says in the state what there is, and that a directory is wanted.
func want(st *state.State) error {
	err := st.SetEnvironConfig(map[string]any{
		"name": "example", "type": "local", "uuid": "deadbeef-0bad-400d-8000-4b1d0d06f00d",
	})
	if err != nil {
		return errors.Trace(err)
	}
	if err := st.EnsureMachine(machine); err != nil {
		return errors.Trace(err)
	}
	if err := st.SetInstanceId(machine, "this"); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(st.AddStorage(state.StorageParams{
		Name: "scratch", Kind: storage.StorageKindFilesystem, Pool: string(provider.RootfsProviderType),
		Size: 1, Machine: machine,
	}))
}

// await returns when the directory is there, or has been given up.
func await(ctx context.Context, st *state.State) error {
	changes, err := st.WatchStorage()
	if err != nil {
		return errors.Trace(err)
	}
	defer func() {
		changes.Kill()
		// What else it may have ended with is returned already.
		_ = changes.Wait()
	}()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case _, ok := <-changes.Changes():
			if !ok {
				return errors.Annotate(watcher.EnsureErr(changes), "watching storage")
			}
		}
		all, err := st.Storage("scratch")
		if err != nil {
			return errors.Trace(err)
		}
		switch scratch := all[0]; scratch.Status {
		case status.Attached:
			fmt.Println("scratch is attached")
			return nil
		case status.Error:
			return errors.Errorf("making scratch: %s", scratch.Message)
		}
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
