package backend

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/inventory"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

const (
	// rescanDelay is how long after the first scan an orphan is checked again: an object that
	// is being created or removed during the first scan is in the state, or gone, by the
	// second.
	rescanDelay = 10 * time.Second

	// baselineTTL is how long a first scan is valid: a client that lists orphans and then
	// adopts one waits only once.
	baselineTTL = time.Minute

	// maxScans bounds how many machines are asked for their objects at the same time, and maxParts how
	// many parts their lists have.
	maxScans = 32
	maxParts = 1000

	// tagsOfTask is how many objects are tagged at a time.
	tagsOfTask = 32
)

// orphan is an object that belongs to no storage of the state.
type orphan struct {
	inventory.Object
	place place
	state user.OrphanState
}

// is reports whether it is the same object.
func (o orphan) is(other orphan) bool {
	return o.place == other.place && o.Provider == other.Provider && o.Kind == other.Kind && o.ID == other.ID
}

// orphanScan is the orphans found at one time.
type orphanScan struct {
	at    time.Time
	found []orphan
	// notAsked are the machines that were not asked, or have not answered.
	notAsked []user.NotAsked
}

// contains reports whether the scan found the same orphan.
func (s orphanScan) contains(o orphan) bool {
	return slices.ContainsFunc(s.found, func(f orphan) bool { return f.is(o) && f.state == o.state })
}

// orphans returns the objects that two scans found to belong to no storage, on the named machine or on
// all.
func (b *Backend) orphans(ctx context.Context, machine string) (orphanScan, error) {
	now, err := b.scanOrphans(ctx, machine)
	if err != nil || !slices.ContainsFunc(now.found, func(o orphan) bool { return o.state == user.OrphanLost }) {
		return now, errors.Trace(err)
	}
	first := b.baselineFor(now)
	if wait := rescanDelay - now.at.Sub(first.at); wait > 0 {
		select {
		case <-ctx.Done():
			return orphanScan{}, errors.Trace(context.Cause(ctx))
		case <-b.config.Clock.After(wait):
		}
		if now, err = b.scanOrphans(ctx, machine); err != nil {
			return orphanScan{}, errors.Trace(err)
		}
	}
	now.found = slices.DeleteFunc(now.found, func(o orphan) bool { return !first.contains(o) })
	return now, nil
}

// baselineFor returns the first scan to compare this one with: an earlier scan that is
// still valid and found all of the same orphans, or else this one.
func (b *Backend) baselineFor(now orphanScan) orphanScan {
	b.scanMu.Lock()
	defer b.scanMu.Unlock()
	earlier := b.baseline
	missed := func(o orphan) bool { return !earlier.contains(o) }
	if now.at.Sub(earlier.at) > baselineTTL || slices.ContainsFunc(now.found, missed) {
		b.baseline = now
	}
	return b.baseline
}

// scanOrphans lists the providers' objects, and then reads the state, so that an object that
// is made in between is not in the list. Of all machines, those that do not answer are left out.
func (b *Backend) scanOrphans(ctx context.Context, machine string) (orphanScan, error) {
	places, notAsked, err := b.places(machine)
	if err != nil {
		return orphanScan{}, errors.Trace(err)
	}
	lists, errs := make([][]inventory.Object, len(places)), make([]error, len(places))
	atOnce(maxScans, len(places), func(n int) { lists[n], errs[n] = b.objects(ctx, places[n]) })
	ledger, err := inventory.Read(b.state)
	if err != nil {
		return orphanScan{}, errors.Trace(err)
	}
	scan := orphanScan{at: b.config.Clock.Now(), notAsked: notAsked}
	for n, at := range places {
		switch {
		case errs[n] == nil:
		case at == here || machine != "" || ctx.Err() != nil:
			return orphanScan{}, errors.Trace(errs[n])
		default:
			scan.notAsked = append(scan.notAsked, user.NotAsked{Machine: at.name, Reason: errs[n].Error()})
		}
		for _, o := range lists[n] {
			if state, ok := orphanStates[ledger.Standing(o)]; ok {
				scan.found = append(scan.found, orphan{o, at, state})
			}
		}
	}
	return scan, nil
}

// objects returns the objects at a place that the state may not have.
func (b *Backend) objects(ctx context.Context, at place) ([]inventory.Object, error) {
	var all []inventory.Object
	after := ""
	for range maxParts {
		result, err := b.do(ctx, at, task.Request{Scan: &task.Scan{After: after}})
		if err != nil {
			return nil, errors.Trace(err)
		}
		for _, wire := range result.Scan.Objects {
			if o := inventory.FromTask(wire); b.mayHave(at, o) {
				all = append(all, o)
			}
		}
		if after = result.Scan.Next; after == "" {
			return all, nil
		}
	}
	return nil, errors.Errorf("%s has too many objects that the state does not have", at)
}

// mayHave reports whether an object can be at a place. The agent of a machine has no say in what the
// environment or other machines have.
func (b *Backend) mayHave(at place, o inventory.Object) bool {
	if at == here {
		return true
	}
	if o.Provider != inventory.Managed {
		provider, err := b.config.Registry.StorageProvider(o.Provider)
		if err != nil || provider.Scope() != storage.ScopeMachine {
			return false
		}
	}
	if machine, ok := o.ResourceTags[storage.MachineTag]; ok && machine != at.machine.String() {
		return false
	}
	text, ok := o.ResourceTags[storage.EntityTag]
	if !ok {
		return true
	}
	tag, err := names.ParseTag(text)
	machine, bound := machineOfTag(tag)
	return err == nil && (!bound || machine == at.machine)
}

// machineOfTag returns the machine that a volume or filesystem is bound to, if it is bound to one.
func machineOfTag(tag names.Tag) (names.MachineTag, bool) {
	switch tag := tag.(type) {
	case names.VolumeTag:
		return names.VolumeMachine(tag)
	case names.FilesystemTag:
		return names.FilesystemMachine(tag)
	}
	return names.MachineTag{}, false
}

// orphanStates are the states of the objects that are shown. Known objects and those of other
// states are not shown.
var orphanStates = map[inventory.Standing]user.OrphanState{
	inventory.Orphaned: user.OrphanLost,
	inventory.Released: user.OrphanReleased,
	inventory.Untagged: user.OrphanUnknown,
}

// Orphans implements userapi.Backend.
func (b *Backend) Orphans(ctx context.Context, machine string) (user.OrphanList, error) {
	scan, err := b.orphans(ctx, machine)
	if err != nil {
		return user.OrphanList{}, errors.Trace(err)
	}
	list := user.OrphanList{Orphans: make([]user.Orphan, len(scan.found)), NotAsked: scan.notAsked}
	for i, o := range scan.found {
		list.Orphans[i] = o.wire()
	}
	slices.SortStableFunc(list.Orphans, func(a, b user.Orphan) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(list.NotAsked, func(a, b user.NotAsked) int { return strings.Compare(a.Machine, b.Machine) })
	return list, nil
}

func (o orphan) wire() user.Orphan {
	return user.Orphan{
		State:    o.state,
		Name:     o.ResourceTags[storage.StorageNameTag],
		UUID:     o.ResourceTags[storage.EntityUUIDTag],
		Machine:  o.place.name,
		Kind:     o.Kind,
		Provider: string(o.Provider),
		Pool:     o.ResourceTags[storage.PoolTag],
		ID:       o.ID,
		SizeMiB:  o.Size,
		Path:     o.Path,
		Attached: o.Attached,
	}
}

// Adopt implements userapi.Backend.
func (b *Backend) Adopt(ctx context.Context, args user.AdoptArgs) (user.ChangesResult, error) {
	scan, err := b.orphans(ctx, args.Machine)
	if err != nil {
		return user.ChangesResult{}, errors.Trace(err)
	}
	parts, err := selectOrphan(scan.found, args.Orphan)
	if err != nil {
		return user.ChangesResult{}, errors.Annotatef(scan.explain(err), "adopting %q", args.Orphan)
	}
	name := args.As
	if name == "" {
		name = parts[0].ResourceTags[storage.StorageNameTag]
	}
	recovered := make([]state.Recovered, len(parts))
	for i, o := range parts {
		if recovered[i], err = inventory.Recovered(o.Object, objectsOf(parts)); err != nil {
			return user.ChangesResult{}, errors.Annotatef(err, "adopting %q", args.Orphan)
		}
	}
	if err := b.adopt(ctx, name, recovered); err != nil {
		if errors.Is(err, errors.AlreadyExists) && args.As == "" {
			err = errors.NewAlreadyExists(err, "choose another name with --as")
		}
		return user.ChangesResult{}, errors.Trace(err)
	}
	if err := b.stampAdopted(ctx); err != nil {
		b.config.Logger.Warningf("%s", StampWarning(err))
	}
	top := recovered[len(recovered)-1]
	detail := fmt.Sprintf("%s, provider %s, %s, detached", top.Kind, top.Provider, table.Size(top.Size))
	return user.ChangesResult{Changes: []user.Change{{
		Action: user.ActionAdopt, Item: "storage", Name: name, Detail: detail,
	}}}, nil
}

func (b *Backend) adopt(ctx context.Context, name string, recovered []state.Recovered) error {
	end, err := b.beginChange(ctx)
	if err != nil {
		return errors.Trace(err)
	}
	defer end()
	return errors.Trace(b.state.Adopt(name, recovered))
}

// explain adds the machines that have not been asked to the error for an object that was not found.
func (s orphanScan) explain(err error) error {
	if !errors.Is(err, errors.NotFound) || len(s.notAsked) == 0 {
		return err
	}
	machines := make([]string, len(s.notAsked))
	for i, m := range s.notAsked {
		machines[i] = m.Machine
	}
	return errors.NewNotFound(nil, fmt.Sprintf("%v (not asked: %s)", err, strings.Join(machines, ", ")))
}

// StampWarning returns the warning that adopted, recovered or renamed storage could not be tagged.
func StampWarning(err error) string {
	return fmt.Sprintf("the records of adopted, recovered or renamed storage keep their former names until the agent starts again, or storage is adopted or renamed: %v", err)
}

// stampAdopted sets the pending resource tags of adopted and renamed storage, on the machines that have it. What it
// cannot set remains pending.
func (b *Backend) stampAdopted(ctx context.Context) error {
	pending, err := b.state.PendingStamps()
	if err != nil {
		return errors.Trace(err)
	}
	model := b.state.UUID()
	at := map[place][]state.CopiedEntity{}
	for _, added := range pending {
		for _, e := range added.Entities {
			if e.FormerUUID != e.UUID {
				continue // of a copy of the state, which its agent handles when it starts
			}
			where := here
			if machine, bound := machineOfTag(e.Tag); bound && !b.isLocal() {
				where = place{machine, b.machineName(machine)}
			}
			at[where] = append(at[where], e)
		}
	}
	var failed error
	for where, entities := range at {
		for some := range slices.Chunk(entities, tagsOfTask) {
			if err := b.stamp(ctx, where, model, some); err != nil {
				failed = err
				break
			}
		}
	}
	return errors.Trace(failed)
}

// stamp sets the resource tags of entities at a place.
func (b *Backend) stamp(ctx context.Context, at place, model string, entities []state.CopiedEntity) error {
	all := make([]names.Tag, len(entities))
	for i, e := range entities {
		all[i] = e.Tag
	}
	wanted, err := b.state.ResourceTags(all...)
	if err != nil {
		return errors.Trace(err)
	}
	var request task.Tag
	for i, e := range entities {
		if wanted[i] == nil {
			continue // it was removed
		}
		o := task.Tags{Owned: task.Owned{ModelUUID: model, EntityUUID: e.UUID}, ResourceTags: wanted[i]}
		o.Ref = task.Ref{Provider: string(e.Provider), Kind: e.Tag.Kind(), ID: e.ProviderID}
		if e.Volume != nil {
			o.Provider = string(inventory.Managed)
		}
		request.Objects = append(request.Objects, o)
	}
	if len(request.Objects) > 0 {
		if _, err := b.do(ctx, at, task.Request{Tag: &request}); err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(b.state.AdoptedStamped(entities))
}

// selectOrphan returns the orphan with a name or UUID: a volume with the filesystem that is on
// it, the volume first, or one of the two.
func selectOrphan(found []orphan, what string) ([]orphan, error) {
	var selected []orphan
	for _, o := range found {
		byName := o.ResourceTags[storage.StorageNameTag] == what
		if what != "" && (byName || o.ResourceTags[storage.EntityUUIDTag] == what) {
			selected = append(selected, o)
		}
	}
	if len(selected) == 0 {
		return nil, errors.NewNotFound(nil, "there is no such orphan: `stowage orphans` lists all")
	}
	for _, o := range selected {
		if o.Kind == inventory.SnapshotKind {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("it is a snapshot, which cannot be adopted: delete it with `stowage delete %s`", o.ResourceTags[storage.EntityUUIDTag]))
		}
		if o.state == user.OrphanReleased || o.state == user.OrphanUnknown {
			command := fmt.Sprintf("stowage import NAME %s --pool %s", o.Path, o.Provider)
			if o.place != here {
				command += " --machine " + o.place.name
			}
			return nil, errors.NewNotValid(nil, fmt.Sprintf("%s %s is %s: take it over with `%s`", o.Kind, o.ID, o.state, command))
		}
	}
	// Add the filesystem on a selected volume, and the volume below a selected filesystem.
	for _, o := range found {
		related := slices.ContainsFunc(selected, func(c orphan) bool { return isOn(o, c) || isOn(c, o) })
		known := slices.ContainsFunc(selected, o.is)
		if related && !known && o.state == user.OrphanLost {
			selected = append(selected, o)
		}
	}
	slices.SortStableFunc(selected, func(a, b orphan) int { return strings.Compare(b.Kind, a.Kind) })
	for _, o := range selected[1:] {
		if !isOn(o, selected[0]) {
			return nil, errors.NewNotValid(nil, "several orphans have that name: choose one by its UUID, or by its machine with --machine")
		}
	}
	return selected, nil
}

// isOn reports whether a filesystem is on a volume, of its machine or of the environment.
func isOn(filesystem, volume orphan) bool {
	on := filesystem.ResourceTags[storage.VolumeUUIDTag]
	return on != "" && (volume.place == filesystem.place || volume.place == here) && filesystem.Kind == names.FilesystemTagKind &&
		volume.Kind == names.VolumeTagKind && volume.ResourceTags[storage.EntityUUIDTag] == on
}

func objectsOf(orphans []orphan) []inventory.Object {
	objects := make([]inventory.Object, len(orphans))
	for i, o := range orphans {
		objects[i] = o.Object
	}
	return objects
}

// DeleteOrphan implements userapi.Backend. Deleting a volume also deletes the records of the
// filesystem on it.
func (b *Backend) DeleteOrphan(ctx context.Context, args user.DeleteOrphanArgs) (user.DeleteOrphanResult, error) {
	result, err := b.deleteOrphan(ctx, args)
	return result, errors.Annotatef(err, "deleting orphan %q", args.UUID)
}

func (b *Backend) deleteOrphan(ctx context.Context, args user.DeleteOrphanArgs) (result user.DeleteOrphanResult, err error) {
	scan, err := b.orphans(ctx, args.Machine)
	if err != nil {
		return result, errors.Trace(err)
	}
	selected := slices.DeleteFunc(slices.Clone(scan.found), func(o orphan) bool {
		return args.UUID == "" || o.ResourceTags[storage.EntityUUIDTag] != args.UUID || o.state != user.OrphanLost
	})
	switch len(selected) {
	case 0:
		return result, scan.explain(errors.NewNotFound(nil, "there is no such orphan: `stowage orphans` lists the UUIDs of all"))
	case 1:
	default:
		return result, errors.NewNotValid(nil, "several orphans have that UUID: choose one by its machine, with --machine")
	}
	targets := slices.DeleteFunc(scan.found, func(o orphan) bool { return !isOn(o, selected[0]) })
	targets = append(targets, selected[0]) // the filesystem on the volume first
	for _, o := range targets {
		if o.Attached {
			return result, errors.NewNotValid(nil, fmt.Sprintf("%s %s is in use: adopt it with `stowage adopt`, and detach it", o.Kind, o.ID))
		}
	}
	for _, o := range targets {
		deleted, err := b.discard(ctx, o, args.Now)
		if err != nil {
			return result, errors.Trace(err)
		}
		result.Deleted = append(result.Deleted, o.wire())
		if kept := time.Duration(deleted.KeptSeconds) * time.Second; kept > 0 {
			result.Until = b.config.Clock.Now().Add(kept)
		}
	}
	return result, nil
}

// discard deletes an orphan. Nobody can adopt it from the moment when it is known that nobody has.
func (b *Backend) discard(ctx context.Context, o orphan, now bool) (*task.Deleted, error) {
	owner := o.Owner()
	request := task.Delete{Now: now, Owned: task.Owned{Ref: o.Task().Ref, ModelUUID: owner.ModelUUID, EntityUUID: owner.EntityUUID}}
	begin := func() (func() (task.Result, error), error) {
		end, err := b.beginChange(ctx)
		if err != nil {
			return nil, errors.Trace(err)
		}
		defer end()
		ledger, err := inventory.Read(b.state)
		if err != nil {
			return nil, errors.Trace(err)
		}
		if ledger.Standing(o.Object) != inventory.Orphaned {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("%s %s belongs to storage now", o.Kind, o.ID))
		}
		return b.begin(ctx, o.place, task.Request{Delete: &request})
	}
	finish, err := begin()
	if err != nil {
		return nil, errors.Trace(err)
	}
	result, err := finish()
	return result.Delete, errors.Trace(err)
}
