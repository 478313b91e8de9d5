// Machineagent embeds the storage provisioner in a machine agent: under a dependency engine,
// beside the disk manager, over a state in one file.
//
//	go run ./examples/machineagent
//
// It makes three filesystems: a directory, one in memory, and ext4 on a loop device. It writes
// to them, prints what was counted, and removes them. A real agent would continue, and leave
// its storage as it is when it stops. Making storage needs root: without it the agent prints
// that, and has nothing to do. With -wait it runs until Ctrl-C.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

func main() {
	wait := flag.Bool("wait", false, "go on until a signal comes")
	flag.Parse()
	// The first signal removes everything; a second one ends the program at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := run(ctx, *wait); err != nil {
		fmt.Fprintln(os.Stderr, "machineagent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, wait bool) error {
	// Providers do not mount at a path that leads through a symbolic link.
	tmp, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return errors.Trace(err)
	}
	dir, err := os.MkdirTemp(tmp, "machineagent-")
	if err != nil {
		return errors.Trace(err)
	}
	agent, err := newAgent(dir)
	if err != nil {
		return firstError(err, os.RemoveAll(dir))
	}
	err = agent.use(ctx, dir, wait)
	if ctx.Err() != nil {
		fmt.Println("interrupted")
		err = nil
	}
	left := agent.removeAll()
	err = firstError(err, agent.stop())
	if left != nil {
		// Something may be mounted in the directory.
		return errors.Annotatef(left, "taking away the storage in %s", dir)
	}
	return firstError(err, os.RemoveAll(dir))
}

// use adds storage, waits until it is attached, and uses it.
func (a *agent) use(ctx context.Context, dir string, wait bool) error {
	if err := a.state.AddStorage(wanted(dir)...); err != nil {
		return errors.Trace(err)
	}
	// If a worker cannot start, it logs the reason, and the engine retries forever; this
	// program does not.
	making, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	all, err := a.await(making, func(all []state.Storage) (bool, error) {
		attached := 0
		for _, s := range all {
			switch {
			case s.Status == status.Error:
				return false, errors.Errorf("%s: %s", s.Name, s.Message)
			case s.Status == status.Attached && s.Location != "":
				// The status is set first, and the location is recorded next.
				attached++
			}
		}
		return attached == len(all), nil
	})
	if err != nil {
		return errors.Annotate(err, "making storage")
	}
	for _, s := range all {
		file := filepath.Join(s.Location, "hello")
		if err := os.WriteFile(file, []byte("hello\n"), 0o600); err != nil {
			return errors.Trace(err)
		}
		fmt.Println("wrote", file)
	}
	if err := a.showMetrics(filepath.Join(dir, "metrics.prom")); err != nil {
		return errors.Trace(err)
	}
	if wait {
		fmt.Println("waiting for Ctrl-C")
		<-ctx.Done()
	}
	return nil
}

// wanted returns the storage that a user requests. The pool of each is the default pool of a
// provider, which has the provider's name.
func wanted(dir string) []state.StorageParams {
	if os.Geteuid() != 0 {
		fmt.Println("not root: nothing is made, since a machine's providers need root to mount and for loop devices")
		return nil
	}
	return []state.StorageParams{{
		// Without a mount point it is mounted in the storage directory.
		Name: "scratch", Kind: storage.StorageKindFilesystem, Pool: string(provider.RootfsProviderType),
		Size: 16, Machine: machine,
	}, {
		Name: "cache", Kind: storage.StorageKindFilesystem, Pool: string(provider.TmpfsProviderType),
		Size: 16, Machine: machine, MountPoint: filepath.Join(dir, "mnt", "cache"),
	}, {
		// The provider only makes volumes: the worker's managed source makes the filesystem on
		// it, once the disk manager has published the device.
		Name: "data", Kind: storage.StorageKindFilesystem, Pool: string(provider.LoopProviderType),
		Size: 64, Machine: machine, MountPoint: filepath.Join(dir, "mnt", "data"),
	}}
}

// removeAll removes all storage, even after a signal.
func (a *agent) removeAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	all, err := a.state.AllStorage()
	if err != nil {
		return errors.Trace(err)
	}
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	if err := a.state.RemoveStorage(names); err != nil {
		return errors.Trace(err)
	}
	_, err = a.await(ctx, func(all []state.Storage) (bool, error) { return len(all) == 0, nil })
	return errors.Trace(err)
}
