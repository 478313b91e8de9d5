package storageprovisioner

import (
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// Observer is told what the worker does, as it does it: for metrics, a progress
// display, a trace. Its methods are called one at a time, and must return at once:
// the worker waits for them. One that panics is logged, and nothing else comes of it.
// When the worker has ended, all that was started has finished, and no queue has any
// depth. Package worker/storageprovisioner/metrics
// has one for Prometheus.
type Observer interface {
	// OperationStarted tells that an operation has been handed to its source.
	OperationStarted(Operation)

	// OperationFinished tells how an operation ended that had been started. An
	// operation that is tried again is started again. All operations of one bulk
	// call have taken as long as the call; the error is nil unless the source
	// gave one.
	OperationFinished(Operation, Outcome, time.Duration, error)

	// QueueDepth tells that the number of operations of a kind that are due, and
	// wait only for their source to be free, has changed. It is zero at first.
	QueueDepth(OperationKind, int)
}

// Operation is one operation on one entity.
type Operation struct {
	Kind OperationKind
	// Source is who carries it out: the type of the provider, "managed" for
	// filesystems on volumes, or "plans" for attachment plans.
	Source string
	// Entity is the tag of the volume or filesystem.
	Entity names.Tag
	// Machine is the tag of the host, for an attachment or plan; else nil.
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
	// CheckVolume and CheckFilesystem look whether what is attached still is as it was
	// attached.
	CheckVolume     OperationKind = "check-volume"
	CheckFilesystem OperationKind = "check-filesystem"
	// AttachPlan and DetachPlan are what a machine does to make an attached
	// volume visible, and to undo that.
	AttachPlan OperationKind = "attach-plan"
	DetachPlan OperationKind = "detach-plan"
)

// Outcome says how an attempt at an operation ended.
type Outcome string

const (
	// Success is an operation that is done.
	Success Outcome = "success"
	// Failure is tried again later.
	Failure Outcome = "failure"
	// Permanent is not tried again until something changes.
	Permanent Outcome = "permanent"
	// InProgress goes on somewhere, as far as is known, and is asked for again.
	InProgress Outcome = "in-progress"
	// Ignored concerns an entity that does not belong to the source.
	Ignored Outcome = "ignored"
	// Deferred is held back by a qualifier or guard of the source, or, with its error, for
	// parameters that are not complete.
	Deferred Outcome = "deferred"
)

// observer tells an Observer, if there is one, what the loop does.
type observer struct {
	Observer
	shelter *shelter
	// reported are the queue depths that were last reported to the Observer.
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
	if o.Observer == nil {
		return
	}
	o.notify(len(batch.Items), func(i int) {
		o.OperationStarted(newOperation(batch, batch.Items[i].Key))
	})
}

// notify calls f, which calls the Observer, for each number below n.
func (o *observer) notify(n int, f func(int)) {
	what := func(int) string { return "observing" }
	// That one has failed is logged, and concerns nobody else.
	each(o.shelter.runInGoroutine, theObserver, n, what, f, func(int, error) {})
}

func (o *observer) finished(resp response) {
	if o.Observer == nil {
		return
	}
	o.notify(len(resp.results), func(i int) {
		result := resp.results[i]
		o.OperationFinished(newOperation(resp.batch, result.Key), outcomeOf(result), resp.took, result.Err)
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

// depths tells the depths of the queues that have changed.
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
