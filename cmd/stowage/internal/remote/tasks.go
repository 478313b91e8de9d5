package remote

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime/debug"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/executor"
	"github.com/stowage-io/stowage/cmd/stowage/internal/inventory"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
)

// tasks is a worker that carries out the tasks of the machine. Of those that change something, it carries
// out one at a time, and of the others, too.
type tasks struct {
	tomb     tomb.Tomb
	tasks    api.Tasks
	executor *executor.Executor
	logger   process.Logger
	// claim identifies this worker. The tasks that another one has begun, before the agent was started
	// again, were interrupted.
	claim string

	// running has the tasks that this worker carries out, and only its loop uses it.
	running map[string]running
	done    chan string
}

// running is a task that is being carried out.
type running struct {
	changes bool // see task.Kind.Changes
	cancel  context.CancelFunc
}

func (a *Agent) startTasks() (worker.Worker, error) {
	w := &tasks{
		tasks: a.client.Tasks(),
		executor: executor.New(executor.Config{
			Registry: a.config.Registry, Dir: a.dir, Clock: a.config.Clock, Owners: a.owners, Progress: a.Progress,
		}),
		logger:  a.config.Logger,
		claim:   rand.Text(),
		running: make(map[string]running),
		done:    make(chan string),
	}
	w.tomb.Go(w.loop)
	return w, nil
}

// Kill implements worker.Worker.
func (w *tasks) Kill() { w.tomb.Kill(nil) }

// Wait implements worker.Worker. When it returns, no task is being carried out.
func (w *tasks) Wait() error { return w.tomb.Wait() }

func (w *tasks) loop() error {
	changes, err := w.tasks.WatchTasks()
	if errors.Is(err, errors.NotImplemented) {
		w.logger.Warningf("the server is older than this agent, and has no tasks for it")
		<-w.tomb.Dying()
		return tomb.ErrDying
	}
	if err != nil {
		return errors.Trace(err)
	}
	defer watcher.Stop(changes, &w.tomb)
	for {
		select {
		case <-w.tomb.Dying():
			return tomb.ErrDying
		case id := <-w.done:
			w.running[id].cancel()
			delete(w.running, id)
		case _, ok := <-changes.Changes():
			if !ok {
				return watcher.EnsureErr(changes)
			}
		}
		open, err := w.tasks.Tasks()
		if err != nil {
			return errors.Trace(err)
		}
		for _, t := range open {
			if err := w.handle(t); err != nil {
				return errors.Trace(err)
			}
		}
	}
}

// handle begins a task, unless it has to wait for another one.
func (w *tasks) handle(t task.Task) error {
	now, isRunning := w.running[t.ID]
	switch {
	case isRunning && t.Cancelled:
		now.cancel()
		return nil
	case isRunning:
		return nil
	case t.Claim != "":
		// The request may have been carried out, in part or as a whole.
		return w.answer(t.ID, task.Result{}, errors.New("the agent was interrupted before it had finished: repeat the command"))
	}
	request, invalid := task.ParseRequest(t.Request)
	for _, other := range w.running {
		if other.changes == request.Kind().Changes() {
			return nil
		}
	}
	err := w.tasks.BeginTask(t.ID, w.claim)
	switch {
	case errors.Is(err, errors.NotFound):
		return nil // it is too late
	case err != nil:
		return errors.Trace(err)
	case invalid != nil:
		return w.answer(t.ID, task.Result{}, errors.NewNotSupported(invalid, "the agent does not know the task: install the version of the server"))
	}
	ctx, cancel := context.WithCancel(w.tomb.Context(context.Background()))
	w.running[t.ID] = running{request.Kind().Changes(), cancel}
	w.logger.Infof("carrying out task %s (%s) for the server", t.ID, request.Kind())
	w.tomb.Go(func() error {
		result, failure := w.carryOut(ctx, request)
		if failure != nil {
			w.logger.Warningf("task %s (%s): %v", t.ID, request.Kind(), failure)
			if w.tomb.Err() != tomb.ErrStillAlive {
				failure = errors.Annotate(failure, "the agent is stopping")
			}
		}
		if err := w.answer(t.ID, result, failure); err != nil {
			return errors.Trace(err)
		}
		select {
		case w.done <- t.ID:
		case <-w.tomb.Dying():
			cancel()
		}
		return nil
	})
	return nil
}

// carryOut carries out a task. A provider that panics fails the task only.
func (w *tasks) carryOut(ctx context.Context, request task.Request) (result task.Result, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			w.logger.Errorf("panic in a task: %v\n%s", cause, debug.Stack())
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return w.executor.Do(ctx, request)
}

func (w *tasks) answer(id string, result task.Result, failure error) error {
	err := w.tasks.AnswerTask(id, result, params.ServerError(failure))
	if errors.Is(err, errors.NotValid) {
		err = w.tasks.AnswerTask(id, task.Result{}, params.ServerError(err))
	}
	if errors.Is(err, errors.NotFound) {
		return nil // nobody is interested any more
	}
	return errors.Trace(err)
}

// owners returns the owner of each object that the state has with the entity and the UUID that the
// object's tags name, and an empty one otherwise.
func (a *Agent) owners(objects []inventory.Object) ([]storage.Owner, error) {
	found := make([]storage.Owner, len(objects))
	var tags []names.Tag
	var of []int // the object of each tag
	for n, o := range objects {
		if tag, err := names.ParseTag(o.ResourceTags[storage.EntityTag]); err == nil {
			tags, of = append(tags, tag), append(of, n)
		}
	}
	owners, err := a.client.Accessors().Owners(tags)
	if err != nil {
		return nil, errors.Trace(err)
	}
	for n, owner := range owners {
		if owner.Error == nil {
			found[of[n]] = storage.Owner{ModelUUID: owner.ModelUUID, EntityUUID: owner.EntityUUID}
		}
	}
	return found, nil
}
