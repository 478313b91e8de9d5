package state_test

import (
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// connectAgent opens a session of machine 0, whose agent then counts as connected.
func (w *world) connectAgent() state.Session {
	w.t.Helper()
	s := w.openSession("")
	w.must(w.SetPresence(s, state.Presence{Connected: true, Since: w.clock.Now()}))
	return s
}

var (
	scan    = task.Request{Scan: &task.Scan{}}
	scanned = task.Result{Scan: &task.Scanned{Objects: []task.Object{}}}
)

const taskPatience = time.Minute

func (w *world) createTask(request task.Request) string {
	w.t.Helper()
	id, err := w.CreateTask(machine0, request, taskPatience)
	w.must(err)
	return id
}

func (w *world) task(id string) state.Task {
	w.t.Helper()
	found, err := w.Task(machine0, id)
	w.must(err)
	return found
}

// taskKeys returns the keys that are about tasks.
func (w *world) taskKeys() (found []string) {
	for key := range w.dump() {
		if strings.HasPrefix(key, "task") || strings.HasPrefix(key, "deletion") {
			found = append(found, key)
		}
	}
	return found
}

// A task is begun by one run of the agent, and answered once. Its agent can repeat its calls.
func TestTaskIsAnsweredOnce(t *testing.T) {
	w := newWorld(t)
	agent := w.TasksForSession(w.connectAgent())
	id := w.createTask(scan)
	open, err := agent.Tasks()
	w.must(err)
	if len(open) != 1 || open[0].ID != id || open[0].Claim != "" || string(open[0].Request) != `{"scan":{}}` {
		t.Errorf("the agent has the tasks %+v", open)
	}
	wantError(t, agent.AnswerTask(id, scanned, nil), errors.NotValid, "was not begun")
	for range 2 {
		w.must(agent.BeginTask(id, "this run"))
	}
	wantError(t, agent.BeginTask(id, "another run"), errors.AlreadyExists, "another run of the agent has begun it")
	if now := w.task(id); !now.Begun || now.Ended {
		t.Errorf("a task that was begun is %+v", now)
	}
	wantError(t, agent.AnswerTask(id, task.Result{Tag: &task.Tagged{}}, nil), errors.NotValid, `the result of a task "tag" for one of kind "scan"`)
	w.must(agent.AnswerTask(id, scanned, nil))
	w.must(agent.AnswerTask(id, task.Result{}, params.ServerError(errors.NotFoundf("x"))))
	if now := w.task(id); !now.Ended || now.Err != nil || now.Result.Scan == nil {
		t.Errorf("a task that was answered is %+v", now)
	}
	if open, err := agent.Tasks(); err != nil || len(open) != 0 {
		t.Errorf("after the answer the agent has %+v, %v", open, err)
	}
	failed := w.createTask(scan)
	w.must(agent.BeginTask(failed, "this run"))
	w.must(agent.AnswerTask(failed, task.Result{}, params.ServerError(errors.NotFoundf("x"))))
	wantError(t, w.task(failed).Err, errors.NotFound, "x not found")
	w.check()
}

// An agent can neither see nor answer the tasks of another machine, nor its own when its session has ended.
func TestTaskIsOfItsMachine(t *testing.T) {
	w := newWorld(t)
	first := w.connectAgent()
	id := w.createTask(scan)
	s, err := w.OpenSession(machine1, nil, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(s))
	other := w.TasksForSession(s)
	if open, err := other.Tasks(); err != nil || len(open) != 0 {
		t.Errorf("another machine has the tasks %+v, %v", open, err)
	}
	for _, at := range []string{id, "../machine-0/" + id} {
		wantError(t, other.BeginTask(at, "run"), errors.NotFound)
		wantError(t, other.AnswerTask(at, scanned, nil), errors.NotFound)
	}
	w.must(w.TasksForSession(first).BeginTask(id, "run"))
	w.openSession(first.Secret)
	ended := w.TasksForSession(first)
	_, err = ended.Tasks()
	for _, err := range []error{err, ended.BeginTask(id, "run"), ended.AnswerTask(id, scanned, nil)} {
		wantError(t, err, state.ErrSessionEnded)
	}
	if now := w.task(id); now.Ended {
		t.Errorf("the task is %+v", now)
	}
}

// A task that was not begun in time cannot be begun any more. One that was begun may take its time.
func TestTaskThatIsNotBegunInTime(t *testing.T) {
	w := newWorld(t)
	agent := w.TasksForSession(w.connectAgent())
	late, withdrawn, begun := w.createTask(scan), w.createTask(scan), w.createTask(scan)
	if was, err := w.WithdrawTask(machine0, withdrawn); err != nil || was {
		t.Errorf("withdrawn: %v, %v", was, err)
	}
	w.must(agent.BeginTask(begun, "run"))
	wantError(t, agent.BeginTask(withdrawn, "run"), errors.NotFound)
	w.clock.Advance(taskPatience)
	wantError(t, agent.BeginTask(late, "run"), errors.NotFound, "a task that can be begun not found")
	if open, err := agent.Tasks(); err != nil || len(open) != 1 || open[0].ID != begun || open[0].Claim != "run" {
		t.Errorf("the agent has %+v, %v", open, err)
	}
	if was, err := w.WithdrawTask(machine0, begun); err != nil || !was || w.task(begun).Ended {
		t.Errorf("a task that was begun: %v, %v, %+v", was, err, w.task(begun))
	}
	w.must(w.CancelTask(machine0, begun))
	if open, err := agent.Tasks(); err != nil || !open[0].Cancelled {
		t.Errorf("the agent has %+v, %v", open, err)
	}
	w.must(agent.AnswerTask(begun, scanned, nil))
}

// Tasks that have ended are kept for an hour, and those that the agent has begun until it answers, or its
// machine is removed.
func TestOldTasksAreRemoved(t *testing.T) {
	w := newWorld(t)
	agent := w.TasksForSession(w.connectAgent())
	answered, _, begun := w.createTask(scan), w.createTask(scan), w.createTask(task.Request{Delete: &task.Delete{Owned: lost}})
	w.must(agent.BeginTask(answered, "run"))
	w.must(agent.AnswerTask(answered, scanned, nil))
	w.must(agent.BeginTask(begun, "run"))
	w.clock.Advance(time.Hour - time.Second)
	w.must(w.RemoveOldTasks())
	if w.task(answered).Result.Scan == nil {
		t.Error("the answer was removed too early")
	}
	w.clock.Advance(time.Second)
	w.must(w.RemoveOldTasks())
	if _, err := w.Task(machine0, answered); !errors.Is(err, errors.NotFound) {
		t.Errorf("after an hour: %v", err)
	}
	w.clock.Advance(time.Hour) // that of the task that was found to be late
	w.must(w.RemoveOldTasks())
	w.check()
	if keys := w.taskKeys(); len(keys) != 3 || !w.task(begun).Begun {
		t.Errorf("the keys %q are left, want the list, the task that was begun, and its deletion", keys)
	}
	w.must(w.RemoveMachine(machine0))
	if keys := w.taskKeys(); len(keys) != 0 {
		t.Errorf("with the machine, the keys %q are left", keys)
	}
}

// A machine has a bounded number of tasks, and its agent's answers have a bounded size.
func TestTasksAreBounded(t *testing.T) {
	w := newWorld(t)
	agent := w.TasksForSession(w.connectAgent())
	var first string
	for n := range 16 {
		if id := w.createTask(scan); n == 0 {
			first = id
		}
	}
	_, err := w.CreateTask(machine0, scan, taskPatience)
	wantError(t, err, errors.NotYetAvailable, "machine 0 has 16 tasks to do already: wait until some have ended")
	w.must(agent.BeginTask(first, "run"))
	large := task.Result{Scan: &task.Scanned{Objects: []task.Object{{Path: strings.Repeat("x", task.MaxResult)}}}}
	wantError(t, agent.AnswerTask(first, large, nil), errors.NotValid, "a result of ")
	w.must(agent.AnswerTask(first, task.Result{}, &params.Error{Message: strings.Repeat("x", task.MaxResult)}))
	if size := len(w.task(first).Err.Error()); size > 20<<10 {
		t.Errorf("the error has %d bytes", size)
	}
	w.clock.Advance(taskPatience) // those that were not begun make place
	for range 100 {
		id := w.createTask(scan)
		w.must(agent.BeginTask(id, "run"))
		w.must(agent.AnswerTask(id, scanned, nil))
	}
	if keys := w.taskKeys(); len(keys) != 65 {
		t.Errorf("%d keys are left, want those of 64 tasks and the list", len(keys))
	}
	w.check()
}

// A machine whose agent cannot do a task gets none, and the error says what to do.
func TestTaskForUnreachableMachine(t *testing.T) {
	w := newWorld(t)
	create := func(machine names.MachineTag) error {
		_, err := w.CreateTask(machine, scan, taskPatience)
		return err
	}
	wantError(t, create(names.NewMachineTag("9")), errors.NotFound)
	wantError(t, create(machine0), errors.NotYetAvailable, "machine 0 is not connected: start its agent")
	s := w.connectAgent()
	w.must(create(machine0))
	w.must(w.SetPresence(s, state.Presence{Since: w.clock.Now()}))
	wantError(t, create(machine0), errors.NotYetAvailable, "machine 0 is not connected")
	w.must(w.FenceMachine(machine0))
	wantError(t, create(machine0), errors.NotYetAvailable, "machine 0 is fenced: restart it")
	_, err := w.CreateTask(machine0, task.Request{}, taskPatience)
	wantError(t, err, errors.NotValid)
}

// lost is an orphan of machine 0.
var lost = task.Owned{
	Ref:        task.Ref{Provider: "loop", Kind: "volume", ID: "lost"},
	EntityUUID: "11111111-2222-3333-4444-555555555555", ModelUUID: "of the state",
}

// What an agent may be deleting cannot be adopted, or deleted by another task.
func TestOrphanThatIsBeingDeletedIsNotAdopted(t *testing.T) {
	w := newWorld(t)
	agent := w.TasksForSession(w.connectAgent())
	object := state.Recovered{
		Of: storage.StorageKindBlock, Provider: "loop", ProviderID: lost.ID, Size: 10, Kind: storage.StorageKindBlock, Machine: machine0,
		Owner: storage.Owner{ModelUUID: w.UUID(), EntityUUID: lost.EntityUUID},
	}
	deletion := task.Request{Delete: &task.Delete{Owned: lost}}
	id := w.createTask(deletion)
	w.must(agent.BeginTask(id, "run"))
	w.clock.Advance(2 * taskPatience)
	wantError(t, w.Adopt("data", []state.Recovered{object}), errors.NotValid, "it is being deleted")
	_, err := w.CreateTask(machine0, deletion, taskPatience)
	wantError(t, err, errors.AlreadyExists, "it is being deleted already")
	w.must(agent.AnswerTask(id, task.Result{}, params.ServerError(errors.New("the disk is full"))))
	w.must(w.Adopt("data", []state.Recovered{object}))
}

// The resource tags of what was adopted are pending until they are set, each by itself.
func TestAdoptedStampsArePending(t *testing.T) {
	w := newWorld(t)
	for n, name := range []string{"a", "b"} {
		object := state.Recovered{
			Of: storage.StorageKindBlock, Provider: "loop", ProviderID: name, Size: 10, Kind: storage.StorageKindBlock, Machine: []names.MachineTag{machine0, machine1}[n],
			Owner: storage.Owner{ModelUUID: w.UUID(), EntityUUID: strings.Replace(lost.EntityUUID, "1", string(rune('2'+n)), 1)},
		}
		w.must(w.Adopt(name, []state.Recovered{object}))
	}
	pending, err := w.PendingStamps()
	w.must(err)
	w.must(w.AdoptedStamped(pending[0].Entities[:1]))
	after, err := w.PendingStamps()
	w.must(err)
	if len(after) != 1 || len(after[0].Entities) != 1 || after[0].Entities[0].Tag != pending[0].Entities[1].Tag {
		t.Errorf("after the first of %+v, %+v are pending", pending, after)
	}
	w.must(w.AdoptedStamped(after[0].Entities))
	if after, err = w.PendingStamps(); err != nil || len(after) != 0 {
		t.Errorf("after all, %+v are pending (%v)", after, err)
	}
}
