package api

import (
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/internal/agentwire"
	"github.com/stowage-io/stowage/watcher"
)

// Tasks has what the agent is asked to do besides provisioning; see package core/task. A server need not
// have tasks: then its errors satisfy errors.IsNotImplemented.
type Tasks struct{ client *Client }

// Tasks returns the tasks of the agent.
func (c *Client) Tasks() Tasks { return Tasks{c} }

// WatchTasks returns a watcher that notifies when a task changes.
func (t Tasks) WatchTasks() (watcher.NotifyWatcher, error) {
	return watchNotices(t.client, "WatchTasks")
}

// Tasks returns the tasks that may be begun, or have been begun and not answered.
func (t Tasks) Tasks() ([]task.Task, error) {
	return call[[]task.Task](t.client, "Tasks", []byte(`{"args":[]}`))
}

// BeginTask begins a task. claim identifies this run of the agent: when the agent is started again, it
// must have another one. The error satisfies errors.IsNotFound if the task can no longer be begun, and
// errors.IsAlreadyExists if another run has begun it.
func (t Tasks) BeginTask(id, claim string) error {
	return write(t.client, "BeginTask", []agentwire.TaskBegin{{ID: id, Claim: claim}})
}

// AnswerTask ends a task that was begun, with its result or its failure. The first answer counts. The
// error satisfies errors.IsNotFound if there is no such task, and errors.IsNotValid if the result is too
// large.
func (t Tasks) AnswerTask(id string, result task.Result, failure *params.Error) error {
	return write(t.client, "AnswerTask", []agentwire.TaskAnswer{{ID: id, Result: result, Error: failure}})
}
