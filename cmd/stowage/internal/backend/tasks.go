package backend

import (
	"context"
	"fmt"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/task"
)

// taskPatience is how long an agent that is connected may take to begin a task. It carries out one
// import, adoption or deletion at a time.
const taskPatience = 30 * time.Second

// place is where tasks are carried out: on a machine, by its agent, or in this process.
type place struct {
	// machine is the zero tag for this process.
	machine names.MachineTag
	name    string
}

// here is this process: an agent with its own machine, or a server with the environment.
var here place

func (p place) String() string {
	if p == here {
		return "this machine"
	}
	return "machine " + p.name
}

// placeOf returns the place that has the storage of a machine. The error says what to do if the machine
// is not connected.
func (b *Backend) placeOf(machine names.MachineTag) (place, error) {
	if b.isLocal() {
		return here, nil
	}
	return place{machine, b.machineName(machine)}, errors.Trace(b.state.CheckReachable(machine))
}

// places returns the place of the named machine, or without a name all places that can be asked, and the
// machines that cannot.
func (b *Backend) places(machine string) (found []place, notAsked []user.NotAsked, err error) {
	if machine != "" {
		tag, err := b.state.MachineNamed(machine)
		if err != nil {
			return nil, nil, errors.Trace(err)
		}
		at, err := b.placeOf(tag)
		return []place{at}, nil, errors.Trace(err)
	}
	found = []place{here}
	if b.isLocal() {
		return found, nil, nil
	}
	all, err := b.state.Machines()
	if err != nil {
		return nil, nil, errors.Trace(err)
	}
	for _, m := range all {
		if at, err := b.placeOf(m.Tag); err != nil {
			notAsked = append(notAsked, user.NotAsked{Machine: m.Name, Reason: err.Error()})
		} else {
			found = append(found, at)
		}
	}
	return found, notAsked, nil
}

// atOnce calls f for each number below n, limit of them at the same time, and waits for all.
func atOnce(limit, n int, f func(int)) {
	var group errgroup.Group
	group.SetLimit(limit)
	for i := range n {
		group.Go(func() error {
			f(i)
			return nil
		})
	}
	_ = group.Wait() // f has no error
}

// do has a task carried out, and waits for its result.
func (b *Backend) do(ctx context.Context, at place, request task.Request) (task.Result, error) {
	finish, err := b.begin(ctx, at, request)
	if err != nil {
		return task.Result{}, errors.Trace(err)
	}
	return finish()
}

// begin begins to have a task carried out. When it returns, the state knows about the task, or it has
// been carried out. The caller calls finish for the result, and may make changes of its own before.
func (b *Backend) begin(ctx context.Context, at place, request task.Request) (finish func() (task.Result, error), err error) {
	if at == here {
		result, err := b.executor.Do(ctx, request)
		return func() (task.Result, error) { return result, errors.Trace(err) }, nil
	}
	id, err := b.state.CreateTask(at.machine, request, taskPatience)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return func() (task.Result, error) {
		result, err := b.await(ctx, at, id, request.Kind())
		if err != nil && ctx.Err() != nil {
			if err := b.state.CancelTask(at.machine, id); err != nil {
				b.config.Logger.Warningf("%v", err)
			}
			err = context.Cause(ctx)
		}
		return result, errors.Trace(err)
	}, nil
}

// await waits for the result of a task of a machine.
func (b *Backend) await(ctx context.Context, at place, id string, kind task.Kind) (task.Result, error) {
	changes, err := b.state.WatchTasks(at.machine)
	if err != nil {
		return task.Result{}, errors.Trace(err)
	}
	defer stop(changes)
	presence, err := b.state.WatchPresence()
	if err != nil {
		return task.Result{}, errors.Trace(err)
	}
	defer stop(presence)
	timer := b.config.Clock.NewTimer(taskPatience)
	defer timer.Stop()
	for {
		now, err := b.state.Task(at.machine, id)
		switch {
		case errors.Is(err, errors.NotFound):
			return task.Result{}, errors.Errorf("machine %s was removed before it had answered", at.name)
		case err != nil:
			return task.Result{}, errors.Trace(err)
		case now.Ended && !now.Begun:
			return task.Result{}, errors.NewNotYetAvailable(nil, fmt.Sprintf(
				"machine %s has not begun the task within %v: its agent is busy, or older than the server; nothing was done", at.name, taskPatience))
		case now.Ended && now.Err != nil:
			return task.Result{}, errors.Annotatef(now.Err, "machine %s", at.name)
		case now.Ended && now.Result.Kind() != kind:
			return task.Result{}, errors.Errorf("machine %s has answered task %q with a result of task %q", at.name, kind, now.Result.Kind())
		case now.Ended:
			return now.Result, nil
		case now.Begun:
			if err := b.state.CheckReachable(at.machine); err != nil {
				return task.Result{}, errors.NewNotYetAvailable(err, fmt.Sprintf("machine %s has begun the task, and may have finished it", at.name))
			}
		}
		var ok bool
		select {
		case <-ctx.Done():
			return task.Result{}, context.Cause(ctx)
		case _, ok = <-changes.Changes():
		case _, ok = <-presence.Changes():
		case <-timer.Chan():
			ok = true
			if _, err := b.state.WithdrawTask(at.machine, id); err != nil {
				return task.Result{}, errors.Trace(err)
			}
		}
		if !ok {
			return task.Result{}, errors.New("the server is stopping: repeat the command")
		}
	}
}
