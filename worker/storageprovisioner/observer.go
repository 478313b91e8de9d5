package storageprovisioner

import (
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// Observer is notified of what the worker does, as the worker does it: for metrics, a progress
// display, a trace. Its methods are called one at a time. They must return at once, because
// the worker waits for them. A method that panics is logged, without other consequences. When
// the worker has ended, every started operation has finished and every queue depth is zero.
// Package worker/storageprovisioner/metrics provides an Observer for Prometheus.
type Observer interface {
	// OperationStarted reports that an operation has been handed to its source.
	OperationStarted(Operation)

	// OperationFinished reports how a started operation ended. An operation that is retried is
	// started again. The duration of an operation is that of its bulk call. The error is nil
	// unless the source returned one.
	OperationFinished(Operation, Outcome, time.Duration, error)

	// QueueDepth reports a new number of operations of a kind that are due and wait only for
	// their source to be free. The number is zero at first.
	QueueDepth(OperationKind, int)
}

// Operation is one operation on one entity.
type Operation struct {
	Kind OperationKind
	// Source names the source that carries out the operation: the type of the provider,
	// "managed" for managed filesystems, or "plans" for attachment plans.
	Source string
	// Entity is the tag of the volume or filesystem.
	Entity names.Tag
	// Machine is the tag of the host of an attachment or plan; nil for other entities.
	Machine names.Tag
}

// OperationKind says what an operation does, and to what.
type OperationKind string

const (
	CreateVolume      OperationKind = "create-volume"
	AttachVolume      OperationKind = "attach-volume"
	DetachVolume      OperationKind = "detach-volume"
	DestroyVolume     OperationKind = "destroy-volume"
	ResizeVolume      OperationKind = "resize-volume"
	CreateFilesystem  OperationKind = "create-filesystem"
	AttachFilesystem  OperationKind = "attach-filesystem"
	DetachFilesystem  OperationKind = "detach-filesystem"
	DestroyFilesystem OperationKind = "destroy-filesystem"
	ResizeFilesystem  OperationKind = "resize-filesystem"
	// CheckVolume and CheckFilesystem check whether what is attached is still as it was
	// attached.
	CheckVolume     OperationKind = "check-volume"
	CheckFilesystem OperationKind = "check-filesystem"
	// AttachPlan and DetachPlan carry out and undo an attachment plan, with which a machine
	// makes an attached volume visible.
	AttachPlan OperationKind = "attach-plan"
	DetachPlan OperationKind = "detach-plan"
)

// Outcome says how an attempt at an operation ended.
type Outcome string

const (
	// Success means that the operation is done.
	Success Outcome = "success"
	// Failure means that the operation is retried later.
	Failure Outcome = "failure"
	// Permanent means that the operation is not retried until something changes.
	Permanent Outcome = "permanent"
	// InProgress means that the operation may still be going on; it is repeated to learn how
	// it ends.
	InProgress Outcome = "in-progress"
	// Ignored means that the entity does not belong to the source.
	Ignored Outcome = "ignored"
	// Deferred means that a qualifier or deletion guard holds the operation back, or, with an
	// error, that its parameters are incomplete.
	Deferred Outcome = "deferred"
)

// observer notifies an Observer, if there is one, of what the loop does.
type observer struct {
	Observer
	guard *guard.Guard
	// reported holds the queue depths that were last reported to the Observer.
	reported map[OperationKind]int
}

// operationKinds names the operations that an Observer is notified of.
var operationKinds = map[plan.Kind]map[plan.Op]OperationKind{
	plan.Volume:               {plan.Create: CreateVolume, plan.Destroy: DestroyVolume, plan.Resize: ResizeVolume},
	plan.VolumeAttachment:     {plan.Attach: AttachVolume, plan.Detach: DetachVolume, plan.Check: CheckVolume},
	plan.Filesystem:           {plan.Create: CreateFilesystem, plan.Destroy: DestroyFilesystem, plan.Resize: ResizeFilesystem},
	plan.FilesystemAttachment: {plan.Attach: AttachFilesystem, plan.Detach: DetachFilesystem, plan.Check: CheckFilesystem},
	plan.Plan:                 {plan.Attach: AttachPlan, plan.Detach: DetachPlan},
}

func newOperation(batch plan.Batch, key plan.Key) Operation {
	o := Operation{Kind: operationKinds[key.Kind][batch.Op], Source: batch.Source.Provider, Entity: key.Tag()}
	switch {
	case batch.Source.Managed:
		o.Source = "managed"
	case key.Kind == plan.Plan:
		o.Source = "plans"
	}
	o.Machine, _ = names.ParseTag(key.Host) // nil if the key has no host
	return o
}

func (o *observer) started(batch plan.Batch) {
	if o.Observer != nil {
		o.notifyStarted(batch)
	}
}

func (o *observer) notifyStarted(batch plan.Batch) {
	o.notify(len(batch.Items), func(i int) {
		o.OperationStarted(newOperation(batch, batch.Items[i].Key()))
	})
}

// notify calls f, which calls the Observer, for each number below n.
func (o *observer) notify(n int, f func(int)) {
	what := func(int) string { return "observing" }
	// The guard logs a failed notification, which affects nothing else.
	o.guard.EachInGoroutine(guard.Observer, n, what, f, func(int, error) {})
}

func (o *observer) finished(resp response) {
	if o.Observer != nil {
		o.notifyFinished(resp)
	}
}

func (o *observer) notifyFinished(resp response) {
	o.notify(len(resp.results), func(i int) {
		result := resp.results[i]
		o.OperationFinished(newOperation(resp.batch, result.Key()), outcomeOf(result), resp.took, result.Err)
	})
}

func outcomeOf(r plan.Result) Outcome {
	switch {
	case r.Deferred:
		return Deferred
	case r.Err == nil:
		return Success
	case storage.IsIncomplete(r.Err):
		return Deferred
	case errors.Is(r.Err, storage.ErrIgnored):
		return Ignored
	case plan.MayStillRun(r.Err):
		return InProgress
	case storage.IsPermanent(r.Err):
		return Permanent
	}
	return Failure
}

// depths reports the queue depths that have changed.
func (o *observer) depths(queued func(plan.Kind, plan.Op) int) {
	if o.Observer == nil {
		return
	}
	if o.reported == nil {
		o.reported = make(map[OperationKind]int)
	}
	var changed []OperationKind
	for kind, names := range operationKinds {
		for op, name := range names {
			if n := queued(kind, op); n != o.reported[name] {
				o.reported[name] = n
				changed = append(changed, name)
			}
		}
	}
	o.notify(len(changed), func(i int) { o.QueueDepth(changed[i], o.reported[changed[i]]) })
}
