package api

import (
	"context"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/watcher"
)

// Asked has the storage that other programs ask for, as the agent's machine uses it. Those programs repeat
// their calls themselves, so a call here is made once: without a connection, or if it is lost, the error
// satisfies errors.Is(err, [ErrNotConnected]). A server need not have such storage: then its errors satisfy
// errors.IsNotImplemented.
type Asked struct{ client *Client }

// Asked returns the storage that other programs ask for.
func (c *Client) Asked() Asked { return Asked{c} }

// Volumes returns volumes by their IDs.
func (a Asked) Volumes(ctx context.Context, ids []string) ([]params.AskedVolumeResult, error) {
	return bulkOnce[params.AskedVolumeResult](ctx, a.client, "AskedVolumes", ids)
}

// Attach requests that volumes be attached to the agent's machine.
func (a Asked) Attach(ctx context.Context, ids []string) ([]params.ErrorResult, error) {
	return bulkOnce[params.ErrorResult](ctx, a.client, "AttachAskedVolumes", ids)
}

// Detach requests that volumes be detached from the agent's machine.
func (a Asked) Detach(ctx context.Context, ids []string) ([]params.ErrorResult, error) {
	return bulkOnce[params.ErrorResult](ctx, a.client, "DetachAskedVolumes", ids)
}

// Resize requests that volumes that are attached to the agent's machine grow.
func (a Asked) Resize(ctx context.Context, sizes []params.AskedVolumeSize) ([]params.ErrorResult, error) {
	return bulkOnce[params.ErrorResult](ctx, a.client, "ResizeAskedVolumes", sizes)
}

// Watch returns a watcher that notifies when a volume may have changed, and Devices one that notifies when the
// block devices of a machine have. The context bounds the wait until the server runs the watcher.
func (a Asked) Watch(ctx context.Context, id string) (watcher.NotifyWatcher, error) {
	return startWatch(ctx, a.client, "WatchAskedVolume", []string{id}, mergeNotices)
}

// Devices: see [Asked.Watch].
func (a Asked) Devices(ctx context.Context, machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return startWatch(ctx, a.client, "WatchBlockDevices", []string{machine.String()}, mergeNotices)
}

// Connection returns a context that also ends when the present connection is lost: its cause then satisfies
// errors.Is(err, [ErrNotConnected]), as the error does if there is no connection. The caller calls cancel.
func (a Asked) Connection(ctx context.Context) (_ context.Context, cancel func(), err error) {
	return a.client.connection(ctx)
}

func (c *Client) connection(ctx context.Context) (_ context.Context, cancel func(), err error) {
	c.mu.Lock()
	s, server := c.stream, c.config.URLs[c.server]
	c.mu.Unlock()
	if s == nil {
		return nil, nil, errors.WithType(errors.Errorf("there is no connection to %s", server), ErrNotConnected)
	}
	connected, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() {
		end(errors.WithType(errors.Errorf("the connection to %s was lost", server), ErrNotConnected))
	})
	return connected, func() {
		stop()
		end(nil)
	}, nil
}

// bulkOnce is bulk for few arguments, without repetition.
func bulkOnce[R, A any](ctx context.Context, c *Client, method string, args []A) ([]R, error) {
	if !c.begin() {
		return nil, errors.Annotate(errors.WithType(c.failure(), ErrNotConnected), method)
	}
	defer c.busy.Done()
	connected, cancel, err := c.connection(ctx)
	if err != nil {
		return nil, errors.Annotate(err, method)
	}
	defer cancel()
	body, err := encode(args)
	if err != nil {
		return nil, err
	}
	data, err := c.attempt(connected, method, body)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case isLost(err):
		return nil, errors.Annotate(errors.WithType(err, ErrNotConnected), method)
	case errors.Is(err, ErrRefused):
		c.tomb.Kill(err)
		return nil, err
	default:
		return nil, err
	}
	results, err := decode[[]R](data)
	if err == nil && len(results) != len(args) {
		err = errors.Errorf("%s: the server returns %d results for %d arguments", method, len(results), len(args))
	}
	return results, err
}
