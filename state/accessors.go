package state

import (
	"math"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/watcher"
)

// Accessor is the model as one worker sees it: it implements all the accessor interfaces of
// package worker/storageprovisioner, for one scope. It is safe for concurrent use.
//
// Each bulk call that changes something is one transaction, or a few if the store is
// [kv.Bounded]: the changes that succeed are recorded together, and each change that fails has
// its own error. The codes of errors are
// [params.CodeNotFound] for an entity that does not exist, [params.CodeNotProvisioned] for one
// that exists but is not made yet, [params.CodeUnauthorized] for one outside this scope,
// [params.CodeNotValid] for an impossible request, and [params.CodeStorageAttached] for
// removing an entity that is attached.
type Accessor struct {
	st *State

	// machine is empty in the environment's scope.
	machine machineTag
	scope   string

	// session is the number of the agent's session, 0 for a worker in this process.
	session uint64

	// lease, if set, must not have ended when a change is committed. generation is that of the state
	// when the holder of the lease began; the state must still be in it.
	lease      kv.Lease
	generation uint64
}

// ForMachine returns the accessors of the machine's worker. Its scope is the storage that is
// bound to the machine: volumes and filesystems with IDs "MACHINE/N", and their attachments.
// The storage that the environment has attached to the machine can be read too.
func (st *State) ForMachine(machine names.MachineTag) *Accessor {
	return &Accessor{st: st, machine: newMachineTag(machine), scope: machine.String()}
}

// ForEnviron returns the accessors of the environment's worker. Its scope is the storage that
// is bound to no machine, with its attachments to all machines.
func (st *State) ForEnviron() *Accessor {
	return &Accessor{st: st, scope: environScope}
}

// Life returns the lives of volumes and filesystems.
func (a *Accessor) Life(tags []names.Tag) ([]params.LifeResult, error) {
	return viewEach(a, tags, func(r *reader, tag names.Tag) (life.Value, error) {
		own, err := newEntityTag(tag)
		if err != nil {
			return "", err
		}
		entry, err := a.entry(r, own)
		return entry.Life, err
	}, func(l life.Value, err *params.Error) params.LifeResult {
		return params.LifeResult{Life: l, Error: err}
	})
}

// Remove removes dead volumes and filesystems. Removing one that no longer exists is not an
// error.
func (a *Accessor) Remove(tags []names.Tag) ([]params.ErrorResult, error) {
	return updateEach(a, tags, func(tx *txn, tag names.Tag) error {
		own, err := newEntityTag(tag)
		if err != nil {
			return err
		}
		err = a.changeEntity(tx, own, func(i *instance, e *entity) error {
			return errors.Annotatef(i.remove(e), "removing %s", own)
		})
		return ignoreNotFound(err)
	})
}

// SetStatus sets the statuses of volumes and filesystems; of their Data it keeps
// [status.CannotGrowTo]. A machine may also set the status of an environment's volume whose
// plan it carries out: that status is kept beside the one that the environment's worker has
// set, and users see the one that says more. SetStatus sets every status that it can, even if
// others fail, and returns the error of the first that it cannot set.
func (a *Accessor) SetStatus(all []params.EntityStatusArgs) error {
	results, err := updateEach(a, all, func(tx *txn, args params.EntityStatusArgs) error {
		tag, err := parseEntityTag(args.Tag)
		if err != nil {
			return err
		}
		value, err := parseStatus(args.Status)
		if err != nil {
			return errors.Annotatef(err, "%s", tag)
		}
		owns := a.owns(tag)
		if !owns && !tx.hasPlan(tag, a.machine) {
			return unauthorized(tag)
		}
		return tx.changeEntity(tag, func(_ *instance, e *entity) error {
			target := &e.Status
			if !owns {
				plan := e.plan()
				if plan == nil {
					return unauthorized(tag)
				}
				if plan.Status == nil {
					plan.Status = &StatusInfo{}
				}
				target = plan.Status
			}
			if value == status.Attaching && e.Attachment == nil {
				// It was detached while it was being made.
				target.set(status.Detached, "", tx.now)
			} else {
				target.set(value, args.Info, tx.now)
			}
			target.CannotGrowTo = cannotGrowTo(args.Data)
			return nil
		})
	})
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Annotate(firstError(results), "setting statuses")
}

// firstError returns the first error among the results, or nil.
func firstError(results []params.ErrorResult) error {
	for _, result := range results {
		if result.Error != nil {
			return result.Error
		}
	}
	return nil
}

// hasPlan reports whether the machine has a plan to carry out for the entity.
func (tx *txn) hasPlan(tag entityTag, machine machineTag) bool {
	return machine != "" && tx.has(planKey(machine, tag))
}

// parseStatus returns the status with the given name.
func parseStatus(text string) (status.Status, error) {
	for _, known := range statusPriority {
		if string(known) == text {
			return known, nil
		}
	}
	return "", errors.NotValidf("status %q", text)
}

// WatchMachine returns a watcher that notifies when the machine is added or provisioned.
func (a *Accessor) WatchMachine(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	if err := a.checkMachine(machine); err != nil {
		return nil, errors.Trace(err)
	}
	return a.st.WatchMachine(machine)
}

// InstanceIds returns the instance IDs of machines.
func (a *Accessor) InstanceIds(machines []names.MachineTag) ([]params.StringResult, error) {
	return viewEach(a, machines, func(r *reader, machine names.MachineTag) (string, error) {
		if err := a.checkMachine(machine); err != nil {
			return "", err
		}
		id, err := instanceID(r, newMachineTag(machine))
		return string(id), err
	}, func(id string, err *params.Error) params.StringResult {
		return params.StringResult{Result: id, Error: err}
	})
}

// WatchForEnvironConfigChanges returns a watcher that notifies when the environment's
// configuration changes.
func (a *Accessor) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	return a.st.WatchEnvironConfig()
}

// EnvironConfig returns the environment's configuration.
func (a *Accessor) EnvironConfig() (*config.Config, error) {
	return a.st.EnvironConfig()
}

// checkMachine returns an error if the machine is outside the scope.
func (a *Accessor) checkMachine(machine names.MachineTag) error {
	return a.ownsMachine(newMachineTag(machine))
}

func (a *Accessor) ownsMachine(machine machineTag) error {
	if a.scope != environScope && machine != a.machine {
		return errors.NewUnauthorized(nil, machine.String()+" is outside the scope of "+a.machine.String())
	}
	return nil
}

// owns reports whether the volume or filesystem is in the scope.
func (a *Accessor) owns(tag entityTag) bool { return tag.scope() == a.scope }

// entry returns the index entry of a volume or filesystem that the accessor may read: one in
// the scope, or one of the environment's that is on the machine.
func (a *Accessor) entry(r *reader, tag entityTag) (indexEntry, error) {
	environs := a.machine != "" && tag.scope() == environScope
	if !a.owns(tag) && !environs {
		return indexEntry{}, unauthorized(tag)
	}
	entry, ok := read[indexEntry](r, entityKey(tag))
	switch {
	case !ok:
		return indexEntry{}, errors.NotFoundf("%s", tag)
	case environs && entry.Machine != a.machine:
		return indexEntry{}, unauthorized(tag)
	}
	return entry, nil
}

// readEntity returns a volume or filesystem that the accessor may read, with its instance.
func (a *Accessor) readEntity(r *reader, tag entityTag) (*instance, *entity, error) {
	entry, err := a.entry(r, tag)
	if err != nil {
		return nil, nil, err
	}
	return r.resolve(entry, tag)
}

// readWithTags is readEntity with the resource tags of the volume or filesystem.
func (a *Accessor) readWithTags(r *reader, tag entityTag) (*instance, *entity, map[string]string, error) {
	entry, err := a.entry(r, tag)
	if err != nil {
		return nil, nil, nil, err
	}
	i, e, err := r.resolve(entry, tag)
	if err != nil {
		return nil, nil, nil, err
	}
	tags, err := r.resourceTags(entry.Storage, i, e)
	return i, e, tags, err
}

// changeEntity applies fn to a volume or filesystem in the scope, and to its instance.
func (a *Accessor) changeEntity(tx *txn, tag entityTag, fn func(*instance, *entity) error) error {
	if !a.owns(tag) {
		return unauthorized(tag)
	}
	return tx.changeEntity(tag, fn)
}

// changeEntity applies fn to a volume or filesystem, and to its instance.
func (tx *txn) changeEntity(tag entityTag, fn func(*instance, *entity) error) error {
	entry, ok := read[indexEntry](&tx.reader, entityKey(tag))
	if !ok {
		return errors.NotFoundf("%s", tag)
	}
	return tx.changeEntry(entry, tag, fn)
}

// changeEntry is changeEntity for the entity of an index entry.
func (tx *txn) changeEntry(entry indexEntry, tag entityTag, fn func(*instance, *entity) error) error {
	i, e, err := tx.resolve(entry, tag)
	if err != nil {
		return err
	}
	return tx.change(entry.Storage, i, func() error { return fn(i, e) })
}

func unauthorized(tag entityTag) error {
	return errors.NewUnauthorized(nil, tag.String()+" is outside this scope")
}

// ignoreNotFound makes a removal idempotent: it returns nil for an error that satisfies
// errors.NotFound.
func ignoreNotFound(err error) error {
	if errors.Is(err, errors.NotFound) {
		return nil
	}
	return err
}

// viewEach calls get for each argument, all on one snapshot, and converts each value and error
// with result.
func viewEach[A, V, R any](
	a *Accessor, args []A, get func(*reader, A) (V, error), result func(V, *params.Error) R,
) ([]R, error) {
	results := make([]R, len(args))
	if len(args) == 0 {
		return results, nil
	}
	err := a.st.view(func(r *reader, _ kv.Snapshot) error {
		if err := a.checkSession(r); err != nil {
			return err
		}
		for n, arg := range args {
			value, err := get(r, arg)
			results[n] = result(value, params.ServerError(err))
		}
		return nil
	})
	if err != nil {
		return nil, errors.Trace(err)
	}
	return results, nil
}

// updateEach calls set for each argument, all in one transaction if the store allows that. A set that returns an error
// must not have written anything.
func updateEach[A any](a *Accessor, args []A, set func(*txn, A) error) ([]params.ErrorResult, error) {
	results := make([]params.ErrorResult, len(args))
	if len(args) == 0 {
		return results, nil
	}
	atOnce := a.st.maxEntities()
	for from := 0; from < len(args); from += atOnce {
		to := min(from+atOnce, len(args))
		err := a.update(func(tx *txn) error {
			for n := from; n < to; n++ {
				results[n].Error = params.ServerError(set(tx, args[n]))
			}
			return nil
		})
		if err != nil {
			return nil, errors.Trace(err)
		}
	}
	return results, nil
}

// update runs fn in one transaction, unless the session or the lease of the accessor has ended.
func (a *Accessor) update(fn func(*txn) error) error {
	ctx := a.st.ctx
	if a.lease != nil {
		ctx = kv.WithLease(ctx, a.lease)
	}
	return a.st.updateWith(ctx, func(tx *txn) error {
		if err := a.checkSession(&tx.reader); err != nil {
			return err
		}
		if err := a.checkGeneration(&tx.reader); err != nil {
			return err
		}
		return fn(tx)
	})
}

// checkGeneration returns an error unless the state is as the holder of a lease knows it. Another
// server may have noticed that the state was restored.
func (a *Accessor) checkGeneration(r *reader) error {
	if a.lease == nil {
		return nil
	}
	if now := r.identity(); r.err == nil && (now.Generation != a.generation || !now.isAccepted()) {
		return errors.Annotatef(kv.ErrLeaseLost, "the state was restored")
	}
	return r.err
}

// keysOfEntity is more than the number of keys that a change of one entity reads or writes: its
// record, its index entry, and those of attachments, pool, machine and history.
const keysOfEntity = 32

// maxEntities returns how many entities a transaction may change.
func (st *State) maxEntities() int {
	if bounded, ok := st.store.(kv.Bounded); ok {
		return max(1, bounded.MaxKeys()/keysOfEntity)
	}
	return math.MaxInt
}
