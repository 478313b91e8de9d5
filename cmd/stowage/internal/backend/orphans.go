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
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
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
)

// orphan is an object that belongs to no storage of the state.
type orphan struct {
	inventory.Object
	state user.OrphanState
}

// orphanScan is the orphans found at one time.
type orphanScan struct {
	at    time.Time
	found []orphan
}

// contains reports whether the scan found the same orphan.
func (s orphanScan) contains(o orphan) bool {
	return slices.ContainsFunc(s.found, func(f orphan) bool {
		return f.Provider == o.Provider && f.Kind == o.Kind && f.ID == o.ID && f.state == o.state
	})
}

// orphans returns the objects that two scans found to belong to no storage.
func (b *Backend) orphans(ctx context.Context) ([]orphan, error) {
	now, err := b.scanOrphans(ctx)
	if err != nil || !slices.ContainsFunc(now.found, func(o orphan) bool { return o.state == user.OrphanLost }) {
		return now.found, errors.Trace(err)
	}
	first := b.baselineFor(now)
	if wait := rescanDelay - now.at.Sub(first.at); wait > 0 {
		select {
		case <-ctx.Done():
			return nil, errors.Trace(context.Cause(ctx))
		case <-b.config.Clock.After(wait):
		}
		if now, err = b.scanOrphans(ctx); err != nil {
			return nil, errors.Trace(err)
		}
	}
	return slices.DeleteFunc(now.found, func(o orphan) bool { return !first.contains(o) }), nil
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
// is made in between is not in the list.
func (b *Backend) scanOrphans(ctx context.Context) (orphanScan, error) {
	inv, err := b.inventory()
	if err != nil {
		return orphanScan{}, errors.Trace(err)
	}
	objects, err := inv.List(ctx)
	if err != nil {
		return orphanScan{}, errors.Trace(err)
	}
	ledger, err := inventory.Read(b.state)
	if err != nil {
		return orphanScan{}, errors.Trace(err)
	}
	var found []orphan
	for _, o := range objects {
		if state, ok := orphanStates[ledger.Standing(o)]; ok {
			found = append(found, orphan{o, state})
		}
	}
	return orphanScan{b.config.Clock.Now(), found}, nil
}

// orphanStates are the states of the objects that are shown. Known objects and those of other
// states are not shown.
var orphanStates = map[inventory.Standing]user.OrphanState{
	inventory.Orphaned: user.OrphanLost,
	inventory.Released: user.OrphanReleased,
	inventory.Untagged: user.OrphanUnknown,
}

func (b *Backend) inventory() (*inventory.Inventory, error) {
	inv, err := inventory.Open(inventory.Config{
		Registry: b.config.Registry, StorageDir: b.dir.Storage(), Environ: b.config.Manager,
	})
	return inv, errors.Trace(err)
}

// Orphans implements userapi.Backend.
func (b *Backend) Orphans(ctx context.Context) ([]user.Orphan, error) {
	found, err := b.orphans(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	wire := make([]user.Orphan, len(found))
	for i, o := range found {
		wire[i] = o.wire()
	}
	slices.SortStableFunc(wire, func(a, b user.Orphan) int { return strings.Compare(a.Name, b.Name) })
	return wire, nil
}

func (o orphan) wire() user.Orphan {
	return user.Orphan{
		State:    o.state,
		Name:     o.ResourceTags[storage.StorageNameTag],
		UUID:     o.ResourceTags[storage.EntityUUIDTag],
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
	found, err := b.orphans(ctx)
	if err != nil {
		return user.ChangesResult{}, errors.Trace(err)
	}
	parts, err := selectOrphan(found, args.Orphan)
	if err != nil {
		return user.ChangesResult{}, errors.Annotatef(err, "adopting %q", args.Orphan)
	}
	name := args.As
	if name == "" {
		name = parts[0].ResourceTags[storage.StorageNameTag]
	}
	end, err := b.beginChange(ctx)
	if err != nil {
		return user.ChangesResult{}, errors.Trace(err)
	}
	defer end()
	recovered := make([]state.Recovered, len(parts))
	for i, o := range parts {
		if recovered[i], err = inventory.Recovered(o.Object, objectsOf(parts)); err != nil {
			return user.ChangesResult{}, errors.Annotatef(err, "adopting %q", args.Orphan)
		}
	}
	err = b.state.Adopt(name, recovered)
	if errors.Is(err, errors.AlreadyExists) && args.As == "" {
		err = errors.NewAlreadyExists(err, "choose another name with --as")
	}
	if err != nil {
		return user.ChangesResult{}, errors.Trace(err)
	}
	if err := b.stamp(ctx); err != nil {
		b.config.Logger.Warningf("%s", StampWarning(err))
	}
	top := recovered[len(recovered)-1]
	detail := fmt.Sprintf("%s, provider %s, %s, detached", top.Kind, top.Provider, table.Size(top.Size))
	return user.ChangesResult{Changes: []user.Change{{
		Action: user.ActionAdopt, Item: "storage", Name: name, Detail: detail,
	}}}, nil
}

// StampWarning returns the warning that adopted or recovered storage could not be tagged.
func StampWarning(err error) string {
	return fmt.Sprintf("the records of adopted or recovered storage keep their former names until the agent starts again: %v", err)
}

// stamp sets the pending resource tags of the state's objects.
func (b *Backend) stamp(ctx context.Context) error {
	inv, err := b.inventory()
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(inventory.Stamp(ctx, inv, b.state))
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
		if o.state == user.OrphanReleased || o.state == user.OrphanUnknown {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("%s %s is %s: take it over with `stowage import NAME %s --pool %s`",
				o.Kind, o.ID, o.state, o.Path, o.Provider))
		}
	}
	// Add the filesystem on a selected volume, and the volume below a selected filesystem.
	for _, o := range found {
		related := slices.ContainsFunc(selected, func(c orphan) bool { return isOn(o, c) || isOn(c, o) })
		known := slices.ContainsFunc(selected, func(c orphan) bool { return c.Provider == o.Provider && c.Kind == o.Kind && c.ID == o.ID })
		if related && !known && o.state == user.OrphanLost {
			selected = append(selected, o)
		}
	}
	slices.SortStableFunc(selected, func(a, b orphan) int { return strings.Compare(b.Kind, a.Kind) })
	for _, o := range selected[1:] {
		if !isOn(o, selected[0]) {
			return nil, errors.NewNotValid(nil, "several orphans have that name: choose one by its UUID")
		}
	}
	return selected, nil
}

// isOn reports whether a filesystem is on a volume.
func isOn(filesystem, volume orphan) bool {
	on := filesystem.ResourceTags[storage.VolumeUUIDTag]
	return on != "" && filesystem.Kind == names.FilesystemTagKind &&
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
	found, err := b.orphans(ctx)
	if err != nil {
		return result, errors.Trace(err)
	}
	var selected orphan
	for _, o := range found {
		if args.UUID != "" && o.ResourceTags[storage.EntityUUIDTag] == args.UUID && o.state == user.OrphanLost {
			selected = o
		}
	}
	if selected.ID == "" {
		return result, errors.NewNotFound(nil, "there is no such orphan: `stowage orphans` lists the UUIDs of all")
	}
	targets := slices.DeleteFunc(found, func(o orphan) bool { return !isOn(o, selected) })
	targets = append(targets, selected) // the filesystem on the volume first
	for _, o := range targets {
		if o.Attached {
			return result, errors.NewNotValid(nil, fmt.Sprintf("%s %s is in use: adopt it with `stowage adopt`, and detach it", o.Kind, o.ID))
		}
	}
	now := b.config.Clock.Now()
	for _, o := range targets {
		trashed, err := b.discard(ctx, o, args.Now, now)
		if err != nil {
			return result, errors.Trace(err)
		}
		result.Deleted = append(result.Deleted, o.wire())
		if trashed {
			result.Until = now.Add(process.TrashRetention)
		}
	}
	return result, nil
}

// discard deletes an orphan, and reports whether its data is in the trash. Data on this
// machine is moved there, unless now is true.
func (b *Backend) discard(ctx context.Context, o orphan, now bool, at time.Time) (trashed bool, err error) {
	for _, directory := range b.dir.StorageDirectories() {
		switch {
		case directory.Provider != o.Provider:
		case now:
			return false, errors.Trace(directory.Delete(ctx, o.ID, o.Owner()))
		default:
			return true, errors.Trace(directory.Trash(ctx, o.ID, o.Owner(), at))
		}
	}
	inv, err := b.inventory()
	if err != nil {
		return false, errors.Trace(err)
	}
	return false, errors.Trace(inv.Destroy(ctx, o.Object))
}
