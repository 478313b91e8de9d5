package remote

import (
	"context"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/csi"
	"github.com/stowage-io/stowage/cmd/stowage/internal/space"
	"github.com/stowage-io/stowage/watcher"
)

// startCSI starts the node service of a CSI driver. The machine has the name that the server has for it.
func (a *Agent) startCSI() (worker.Worker, error) {
	settings := *a.config.CSI
	settings.Machine = a.identity.name
	return csi.NewServer(csi.Config{
		Settings: settings, Node: &volumes{a.client.Asked(), a.client.Server, a.machine, a.identity.name, a.dir.Storage()},
		Ready: a.Ready, Clock: a.config.Clock, Logger: a.config.Logger,
	})
}

// volumes is the storage that others ask for, in the state of the server. It implements asked.Volumes. Without
// a connection, calls fail at once, with errors that satisfy errors.Is(err, asked.ErrUnreachable).
type volumes struct {
	remote api.Asked
	server func() string
	// tag and machine identify the agent's machine, whose storage is in dir.
	tag     names.MachineTag
	machine string
	dir     string
}

// readTimeout bounds reads, for which their callers do not say how long they wait.
const readTimeout = 5 * time.Second

// explain returns the error of a call with ctx as callers of this package know it.
func (v *volumes) explain(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, api.ErrNotConnected), errors.Is(err, api.ErrClosed):
		return errors.WithType(err, asked.ErrUnreachable)
	case errors.Is(err, errors.NotImplemented):
		return errors.WithType(errors.Errorf("server %s is older than this agent, and does not let it use volumes: install the version of the agent there", v.server()), asked.ErrUnreachable)
	}
	var wire *params.Error
	if errors.As(err, &wire) {
		err = asked.ParseError(wire)
	}
	if errors.Is(err, context.Canceled) && ctx.Err() == nil { // by a server that stops
		return errors.WithType(errors.Errorf("server %s has not answered: %v", v.server(), err), asked.ErrUnreachable)
	}
	return err
}

// read returns volumes, and the error of each.
func (v *volumes) read(ctx context.Context, ids []string) ([]params.AskedVolumeResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readTimeout,
		errors.WithType(errors.Errorf("server %s has not answered in %s", v.server(), readTimeout), asked.ErrUnreachable))
	defer cancel()
	results, err := v.remote.Volumes(ctx, ids)
	return results, v.explain(ctx, err)
}

// Volume implements asked.Volumes.
func (v *volumes) Volume(id string) (asked.Volume, error) { return v.one(context.Background(), id) }

func (v *volumes) one(ctx context.Context, id string) (asked.Volume, error) {
	results, err := v.read(ctx, []string{id})
	if err != nil {
		return asked.Volume{}, err
	}
	return asked.Volume(results[0].Result), asked.ParseError(results[0].Error)
}

// Inspect implements asked.Volumes.
func (v *volumes) Inspect(ids ...string) (found []asked.Volume, err error) {
	results, err := v.read(context.Background(), ids)
	for _, r := range results {
		switch err := asked.ParseError(r.Error); {
		case err == nil:
			found = append(found, asked.Volume(r.Result))
		case !errors.Is(err, errors.NotFound):
			return nil, err
		}
	}
	return found, err
}

// Attach implements asked.Volumes. The server attaches volumes to the machine of the agent only.
func (v *volumes) Attach(ctx context.Context, id, machine string) error {
	if machine != v.machine {
		return errors.WithType(errors.Errorf("machine %q is another one than this", machine), asked.ErrElsewhere)
	}
	results, err := v.remote.Attach(ctx, []string{id})
	return v.change(ctx, results, err)
}

// Detach implements asked.Volumes.
func (v *volumes) Detach(ctx context.Context, id string) error {
	results, err := v.remote.Detach(ctx, []string{id})
	return v.change(ctx, results, err)
}

// Resize implements asked.Volumes.
func (v *volumes) Resize(ctx context.Context, id string, sizeMiB uint64) error {
	results, err := v.remote.Resize(ctx, []params.AskedVolumeSize{{ID: id, SizeMiB: sizeMiB}})
	return v.change(ctx, results, err)
}

// change returns the error of a call with one argument.
func (v *volumes) change(ctx context.Context, results []params.ErrorResult, err error) error {
	if err != nil {
		return v.explain(ctx, err)
	}
	return asked.ParseError(results[0].Error)
}

// Await implements asked.Volumes. It ends when the connection is lost.
func (v *volumes) Await(caller context.Context, id string, done asked.Done) (last asked.Volume, err error) {
	ctx, cancel, err := v.remote.Connection(caller)
	if err != nil {
		return asked.Volume{}, v.explain(caller, err)
	}
	defer cancel()
	volume, err := v.remote.Watch(ctx, id)
	if err != nil {
		return asked.Volume{}, v.explain(caller, err)
	}
	defer stop(volume)
	devices, err := v.remote.Devices(ctx, v.tag)
	if err != nil {
		return asked.Volume{}, v.explain(caller, err)
	}
	defer stop(devices)
	for {
		if last, err = v.one(ctx, id); err != nil {
			return last, err
		}
		if ok, err := done(&last); ok || err != nil {
			return last, err
		}
		var of watcher.NotifyWatcher
		var ok bool
		select {
		case <-ctx.Done():
			return last, v.explain(caller, context.Cause(ctx))
		case _, ok = <-volume.Changes():
			of = volume
		case _, ok = <-devices.Changes():
			of = devices
		}
		if !ok {
			return last, v.explain(caller, watcher.EnsureErr(of))
		}
	}
}

// stop stops a watcher, whose error was looked at before.
func stop(w worker.Worker) {
	w.Kill()
	_ = w.Wait()
}

// Remarks implements asked.Volumes. They are about this machine, and need no server.
func (v *volumes) Remarks() ([]asked.Remark, error) {
	size, free, err := space.Host(v.dir)
	if err != nil {
		return nil, errors.Trace(err)
	}
	promised, err := space.Promised(v.dir)
	return asked.RemarksOn(v.dir, size, free, promised), errors.Trace(err)
}
