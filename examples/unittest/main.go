// Unittest is a program that embeds the storage provisioner, and shows how to test it without
// a machine, a disk or a wait of half a minute: provisioner_test.go has a provider that fails,
// and a clock that the test advances.
//
//	go test -v ./examples/unittest
//	go run ./examples/unittest
//
// The program makes the worker create one directory and mount it, which needs root, prints the
// outcome of each attempt, and removes the directory. The tested code is in provisioner.go.
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
	if os.Geteuid() != 0 {
		fmt.Println("not root: nothing is made, since mounting a directory needs root")
		return
	}
	dir, err := os.MkdirTemp("", "unittest-")
	if err == nil {
		if err = run(ctx, dir); err == nil {
			err = os.RemoveAll(dir) // nothing is mounted in it any more
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "unittest:", err)
		os.Exit(1)
	}
}

// machine is the machine that the directory is attached to.
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
	// The waits below end when the worker ends.
	waiting, end := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end(worker.Wait())
	}()
	err = await(waiting, st)
	if err == nil {
		err = takeAway(waiting, st)
	}
	worker.Kill()
	<-ended
	return firstError(err, worker.Wait())
}

// want sets up the state, and adds a directory to it.
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

// await waits until the directory is attached, or has been given up.
func await(ctx context.Context, st *state.State) error {
	return follow(ctx, st, func(all []state.Storage) (bool, error) {
		switch scratch := all[0]; scratch.Status {
		case status.Attached:
			fmt.Println("scratch is attached")
			return true, nil
		case status.Error:
			return false, errors.Errorf("making scratch: %s", scratch.Message)
		}
		return false, nil
	})
}

// takeAway requests that the directory be unmounted and removed, and waits until it is.
func takeAway(ctx context.Context, st *state.State) error {
	if err := st.RemoveStorage([]string{"scratch"}); err != nil {
		return errors.Trace(err)
	}
	return follow(ctx, st, func(all []state.Storage) (bool, error) {
		if len(all) > 0 {
			return false, nil
		}
		fmt.Println("scratch is gone")
		return true, nil
	})
}

// follow calls done with all storage, at first and after each change, until done returns true.
func follow(ctx context.Context, st *state.State, done func([]state.Storage) (bool, error)) error {
	changes, err := st.WatchStorage()
	if err != nil {
		return errors.Trace(err)
	}
	defer func() {
		changes.Kill()
		// Ignore its error: the relevant one is returned already.
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
		all, err := st.AllStorage()
		if err != nil {
			return errors.Trace(err)
		}
		if ended, err := done(all); ended || err != nil {
			return err
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
