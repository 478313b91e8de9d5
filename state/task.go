package state

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
)

// A task is a part of a user's request that the agent of a machine carries out. A server creates it,
// and waits until it has ended; the agent begins it, and answers it, each in its current session. A
// task that was not begun in time has ended: a late agent cannot begin it. One that was begun ends with
// the agent's answer, or with the machine. If the agent is started again before, it answers that it was
// interrupted, and does not begin the task again.

const (
	// maxOpenTasks bounds the tasks of a machine that have not ended, and maxEndedTasks those that have
	// ended and are kept.
	maxOpenTasks  = 16
	maxEndedTasks = 64
	// taskRetention is how long a task is kept after it has ended.
	taskRetention = time.Hour
)

// taskRecord is a task.
type taskRecord struct {
	// Request is a task.Request in JSON, and Result a task.Result.
	Request []byte `cbor:"1,keyasint"`
	// Deadline is until when it can be begun.
	Deadline time.Time `cbor:"2,keyasint"`
	// Claim identifies the run of the agent that has begun it. It is empty before.
	Claim     string `cbor:"3,keyasint,omitempty"`
	Cancelled bool   `cbor:"4,keyasint,omitempty"`
	// Ended is when it ended: it has a result, an error, or neither if it was not begun in time.
	Ended     time.Time `cbor:"5,keyasint,omitzero"`
	Result    []byte    `cbor:"6,keyasint,omitempty"`
	Failure   string    `cbor:"7,keyasint,omitempty"`
	ErrorCode string    `cbor:"8,keyasint,omitempty"`
	// Deletes is the UUID of the volume or filesystem that it destroys, or empty.
	Deletes string `cbor:"9,keyasint,omitempty"`
}

// isOpen reports whether the task may still be begun, or has been begun and is not answered.
func (t *taskRecord) isOpen(now time.Time) bool {
	return t.Ended.IsZero() && (t.Claim != "" || now.Before(t.Deadline))
}

// tasksRecord lists the IDs of the tasks of a machine, in the order in which they were created, or have
// ended.
type tasksRecord struct {
	Open  []string `cbor:"1,keyasint,omitempty"`
	Ended []string `cbor:"2,keyasint,omitempty"`
}

// Task describes a task to the server that waits for it.
type Task struct {
	// Begun says that the agent has begun it.
	Begun bool
	// Ended says that nothing more will happen. If the task was begun, Result or Err is the answer.
	Ended  bool
	Result task.Result
	Err    error
}

// CreateTask creates a task for the agent of a machine, which may begin it until patience has passed. It
// returns the ID of the task. Errors satisfy errors.IsNotFound if there is no such machine,
// errors.IsNotYetAvailable if its agent is not connected or has too many tasks already, and
// errors.IsNotValid if the request is not valid.
func (st *State) CreateTask(machine names.MachineTag, request task.Request, patience time.Duration) (string, error) {
	encoded, err := encodeRequest(request)
	if err != nil {
		return "", errors.Trace(err)
	}
	at, id := newMachineTag(machine), strings.ToLower(rand.Text())
	err = st.updateIfSpace(func(tx *txn) error {
		if err := tx.checkReachable(at); err != nil {
			return err
		}
		if s := request.Snapshot; s != nil {
			// Who has decided to make it may be late: it may have been deleted since.
			entry, _ := read[indexEntry](&tx.reader, snapshotUUIDKey(storage.OwnerOf(s.ResourceTags).EntityUUID))
			if record, ok := read[snapshotRecord](&tx.reader, snapshotKey(entry.Storage)); !ok || record.Deleting != s.Delete {
				return errors.NotFoundf("a snapshot for which this is to be done")
			}
		}
		list := tx.openTasks(at)
		if len(list.Open) >= maxOpenTasks {
			return errors.NewNotYetAvailable(nil, fmt.Sprintf("machine %s has %d tasks to do already: wait until some have ended", tx.machineName(at), len(list.Open)))
		}
		record := taskRecord{Request: encoded, Deadline: tx.now.Add(patience)}
		if request.Delete != nil {
			record.Deletes = request.Delete.EntityUUID
			if tx.has(deletionKey(record.Deletes)) {
				return errors.NewAlreadyExists(nil, "it is being deleted already")
			}
			tx.write(deletionKey(record.Deletes), &id)
		}
		list.Open = append(list.Open, id)
		tx.write(tasksKey(at), &list)
		tx.write(taskKey(at, id), &record)
		return nil
	})
	return id, errors.Trace(err)
}

func encodeRequest(request task.Request) ([]byte, error) {
	if err := request.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	encoded, err := json.Marshal(request)
	switch {
	case err != nil:
		return nil, errors.NewNotValid(err, "writing a task")
	case len(encoded) > task.MaxRequest:
		return nil, errors.NewNotValid(nil, fmt.Sprintf("a task of %d bytes: it may have %d", len(encoded), task.MaxRequest))
	}
	return encoded, nil
}

// CheckReachable returns an error that satisfies errors.IsNotYetAvailable unless the agent of a machine
// is connected, and errors.IsNotFound if there is no such machine.
func (st *State) CheckReachable(machine names.MachineTag) error {
	return errors.Trace(st.view(func(r *reader, _ kv.Snapshot) error { return r.checkReachable(newMachineTag(machine)) }))
}

func (r *reader) checkReachable(at machineTag) error {
	record, ok := read[machineRecord](r, machineKey(at))
	name := record.name(at)
	switch {
	case !ok:
		return errors.NotFoundf("%s", at)
	case record.Fenced != nil:
		return errors.NewNotYetAvailable(nil, fmt.Sprintf("machine %s is fenced: restart it, and try again when `stowage machines` shows it as up", name))
	case !r.presence(at).Connected:
		return errors.NewNotYetAvailable(nil, fmt.Sprintf("machine %s is not connected: start its agent, and try again when `stowage machines` shows it as up", name))
	}
	return nil
}

// openTasks returns the list of a machine's tasks, without those that can no longer be begun.
func (tx *txn) openTasks(at machineTag) tasksRecord {
	list, _ := read[tasksRecord](&tx.reader, tasksKey(at))
	for _, id := range slices.Clone(list.Open) {
		record, ok := read[taskRecord](&tx.reader, taskKey(at, id))
		if ok && !record.isOpen(tx.now) && record.Ended.IsZero() {
			tx.endTask(at, id, record)
		}
	}
	list, _ = read[tasksRecord](&tx.reader, tasksKey(at))
	return list
}

// endTask writes a task that has ended.
func (tx *txn) endTask(at machineTag, id string, record taskRecord) {
	record.Ended = tx.now
	tx.write(taskKey(at, id), &record)
	if record.Deletes != "" {
		tx.remove(deletionKey(record.Deletes))
	}
	list, _ := read[tasksRecord](&tx.reader, tasksKey(at))
	list.Open = slices.DeleteFunc(list.Open, func(open string) bool { return open == id })
	list.Ended = append(list.Ended, id)
	for len(list.Ended) > maxEndedTasks {
		tx.remove(taskKey(at, list.Ended[0]))
		list.Ended = list.Ended[1:]
	}
	tx.write(tasksKey(at), &list)
}

// WatchTasks returns a watcher that notifies when a task of a machine changes.
func (st *State) WatchTasks(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return st.newNotifyWatcher(taskPrefix(newMachineTag(machine)))
}

// Task returns a task of a machine. The error satisfies errors.IsNotFound if there is no such task, or
// no longer.
func (st *State) Task(machine names.MachineTag, id string) (found Task, err error) {
	at := newMachineTag(machine)
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		record, ok := read[taskRecord](r, taskKey(at, id))
		if !ok {
			return errors.NotFoundf("task %s of %s", id, at)
		}
		found = Task{Begun: record.Claim != "", Ended: !record.Ended.IsZero()}
		if record.Failure != "" {
			found.Err = params.TranslateWellKnownError(&params.Error{Message: record.Failure, Code: record.ErrorCode})
		}
		if record.Result != nil {
			return errors.Annotatef(json.Unmarshal(record.Result, &found.Result), "task %s of %s", id, at)
		}
		return nil
	})
	return found, errors.Trace(err)
}

// WithdrawTask ends a task unless the agent has begun it, and reports whether it has.
func (st *State) WithdrawTask(machine names.MachineTag, id string) (begun bool, err error) {
	return st.withdrawTask(machine, id, false)
}

// CancelTask is WithdrawTask when nobody waits for the answer any more. An agent that has begun the task
// need not go on.
func (st *State) CancelTask(machine names.MachineTag, id string) error {
	_, err := st.withdrawTask(machine, id, true)
	return err
}

func (st *State) withdrawTask(machine names.MachineTag, id string, cancel bool) (begun bool, err error) {
	at := newMachineTag(machine)
	err = st.update(func(tx *txn) error {
		record, ok := read[taskRecord](&tx.reader, taskKey(at, id))
		begun = record.Claim != ""
		switch {
		case !ok || !record.Ended.IsZero():
		case !begun:
			tx.endTask(at, id, record)
		case cancel:
			record.Cancelled = true
			tx.write(taskKey(at, id), &record)
		}
		return nil
	})
	return begun, errors.Annotatef(err, "withdrawing a task of machine %s", machine.Id())
}

// RemoveOldTasks removes the tasks that ended some time ago.
func (st *State) RemoveOldTasks() error {
	var machines []machineTag
	err := st.view(func(_ *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(tasksPrefix, func(key string, _ []byte) error {
			machines = append(machines, machineTag(key[len(tasksPrefix):]))
			return nil
		})
	})
	for _, at := range machines {
		if err != nil {
			break
		}
		err = st.update(func(tx *txn) error {
			tx.removeTasks(at, func(t *taskRecord) bool { return tx.now.Sub(t.Ended) >= taskRetention })
			return nil
		})
	}
	return errors.Annotate(err, "removing old tasks")
}

// removeTasks removes the tasks of a machine that have ended, and satisfy the condition.
func (tx *txn) removeTasks(at machineTag, old func(*taskRecord) bool) {
	list := tx.openTasks(at)
	list.Ended = slices.DeleteFunc(list.Ended, func(id string) bool {
		record, _ := read[taskRecord](&tx.reader, taskKey(at, id))
		remove := old(&record)
		if remove {
			tx.remove(taskKey(at, id))
		}
		return remove
	})
	if len(list.Open)+len(list.Ended) == 0 {
		tx.remove(tasksKey(at))
	} else {
		tx.write(tasksKey(at), &list)
	}
}

// removeTasksOf removes all tasks of a machine, when it is removed.
func (tx *txn) removeTasksOf(at machineTag) {
	list, _ := read[tasksRecord](&tx.reader, tasksKey(at))
	for _, id := range list.Open {
		if record, ok := read[taskRecord](&tx.reader, taskKey(at, id)); ok {
			tx.endTask(at, id, record)
		}
	}
	tx.removeTasks(at, func(*taskRecord) bool { return true })
}

// MachineTasks has the tasks of a machine for its agent, in its session. Its calls fail as those of
// [State.ForSession] do.
type MachineTasks struct{ accessor *Accessor }

// TasksForSession returns the tasks of the machine of a session.
func (st *State) TasksForSession(s Session) *MachineTasks { return &MachineTasks{st.ForSession(s)} }

// WatchTasks returns a watcher that notifies when a task of the machine changes.
func (m *MachineTasks) WatchTasks() (watcher.NotifyWatcher, error) {
	return m.accessor.st.newNotifyWatcher(taskPrefix(m.accessor.machine))
}

// Tasks returns the tasks that may be begun, or have been begun and not answered.
func (m *MachineTasks) Tasks() ([]task.Task, error) {
	at := m.accessor.machine
	open := []task.Task{}
	now := m.accessor.st.clock.Now()
	err := m.accessor.st.view(func(r *reader, _ kv.Snapshot) error {
		if err := m.accessor.checkSession(r); err != nil {
			return err
		}
		list, _ := read[tasksRecord](r, tasksKey(at))
		for _, id := range list.Open {
			if record, ok := read[taskRecord](r, taskKey(at, id)); ok && record.isOpen(now) {
				open = append(open, task.Task{ID: id, Request: record.Request, Claim: record.Claim, Cancelled: record.Cancelled})
			}
		}
		return nil
	})
	return open, errors.Trace(err)
}

// BeginTask begins a task. claim identifies this run of the agent: a task that was begun with another
// one must not be begun again. The call can be repeated. Errors satisfy errors.IsNotFound if the machine
// has no such task, or it can no longer be begun, and errors.IsAlreadyExists if it was begun by another
// run.
func (m *MachineTasks) BeginTask(id, claim string) error {
	at := m.accessor.machine
	err := m.accessor.update(func(tx *txn) error {
		record, ok := read[taskRecord](&tx.reader, taskKey(at, id))
		switch {
		case claim == "":
			return errors.NotValidf("an empty claim")
		case !ok || !record.isOpen(tx.now):
			return errors.NotFoundf("a task that can be begun")
		case record.Claim != "" && record.Claim != claim:
			return errors.NewAlreadyExists(nil, "another run of the agent has begun it")
		}
		record.Claim = claim
		tx.write(taskKey(at, id), &record)
		return nil
	})
	return errors.Annotatef(err, "beginning task %q of %s", id, at)
}

// AnswerTask ends a task that was begun, with its result or its failure. The first answer counts; others
// have no effect. Errors satisfy errors.IsNotFound if the machine has no such task, and errors.IsNotValid
// if it was not begun, or if the result is too large or is not one of its kind.
func (m *MachineTasks) AnswerTask(id string, result task.Result, failure *params.Error) error {
	at := m.accessor.machine
	encoded, err := json.Marshal(result)
	if err == nil && len(encoded) > task.MaxResult {
		err = errors.NotValidf("a result of %d bytes, more than %d,", len(encoded), task.MaxResult)
	}
	if err == nil {
		err = m.accessor.update(func(tx *txn) error {
			record, ok := read[taskRecord](&tx.reader, taskKey(at, id))
			switch {
			case !ok:
				return errors.NotFoundf("this task")
			case !record.Ended.IsZero():
				return nil
			case record.Claim == "":
				return errors.NotValidf("the answer to a task that was not begun")
			}
			if failure != nil {
				record.Failure, record.ErrorCode = truncate(failure.Message, maxFailure), truncate(failure.Code, maxFailure)
				if record.Failure == "" {
					record.Failure = "failed"
				}
			} else {
				var request task.Request
				if err := json.Unmarshal(record.Request, &request); err != nil {
					return errors.Trace(err)
				}
				if request.Kind() != result.Kind() {
					return errors.NotValidf("the result of a task %q for one of kind %q", result.Kind(), request.Kind())
				}
				record.Result = encoded
			}
			tx.endTask(at, id, record)
			return nil
		})
	}
	return errors.Annotatef(err, "answering task %q of %s", id, at)
}

// maxFailure bounds the text of an error that an agent answers with.
const maxFailure = 16 << 10

func truncate(text string, size int) string { return text[:min(len(text), size)] }
