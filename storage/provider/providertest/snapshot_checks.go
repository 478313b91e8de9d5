package providertest

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// requireSnapshots skips the rule if the source makes no snapshots. One that learns from others whether it
// can is asked for a snapshot of nothing.
func (b *bench) requireSnapshots() {
	b.Helper()
	can := b.source.snapshotter() != nil
	if can {
		missing := b.trySnapshots(snapshotParams{id: "missing", resourceTags: ownerTags()})
		can = !errors.Is(missing[0].Error, errors.NotSupported)
	}
	if !can {
		b.Skipf("the source makes no snapshots of %ss", b.kind.noun)
	}
}

// trySnapshots makes snapshots of entities that are not attached.
func (b *bench) trySnapshots(params ...snapshotParams) []storage.CreateSnapshotsResult {
	b.Helper()
	results, err := b.source.snapshotter().create(b.ctx, params)
	answers(b, "making snapshots of", len(params), results, err)
	for i, r := range results {
		if (r.Snapshot != nil) == (r.Error != nil) {
			b.Fatalf("making a snapshot of %s: there must be a result or an error, got result %+v and error %v", params[i].id, r.Snapshot, r.Error)
		}
		if r.Snapshot != nil && !slices.Contains(b.snapshots, r.Snapshot.SnapshotId) {
			b.snapshots = append(b.snapshots, r.Snapshot.SnapshotId)
		}
	}
	return results
}

func (b *bench) makeSnapshots(params ...snapshotParams) []storage.SnapshotInfo {
	b.Helper()
	results := b.trySnapshots(params...)
	b.successes("making snapshots", mapSlice(results, snapshotFailure))
	return mapSlice(results, func(r storage.CreateSnapshotsResult) storage.SnapshotInfo { return *r.Snapshot })
}

// snapshotOf returns the parameters of a snapshot for a new owner.
func snapshotOf(e *entity) snapshotParams {
	return snapshotParams{id: e.id, attributes: e.attributes(), resourceTags: ownerTags()}
}

func (b *bench) destroySnapshots(ids ...string) {
	b.Helper()
	errs, err := b.source.snapshotter().destroy(b.ctx, ids)
	b.successes("destroying snapshots", answers(b, "destroying snapshots of", len(ids), errs, err))
}

// listSnapshots returns the snapshots that this rule has made and that are listed.
func (b *bench) listSnapshots() []storage.OwnedObject {
	b.Helper()
	all, err := b.source.snapshotter().list(b.ctx)
	if err != nil {
		b.Fatalf("listing snapshots: %v", err)
	}
	if !slices.IsSortedFunc(all, func(x, y storage.OwnedObject) int { return strings.Compare(x.ID, y.ID) }) {
		b.Errorf("the snapshots of %ss are not listed in the order of the IDs", b.kind.noun)
	}
	return slices.DeleteFunc(slices.Clone(all), func(o storage.OwnedObject) bool { return !slices.Contains(b.snapshots, o.ID) })
}

// cloneOf returns a new entity that gets the contents of an origin.
func (b *bench) cloneOf(origin storage.Origin, size uint64) *entity {
	b.Helper()
	e := b.entity()
	e.origin = origin
	e.resize(size)
	return e
}

func (b *bench) tryClone(e *entity) created {
	b.Helper()
	clone := b.source.cloner()
	if clone == nil {
		b.Skipf("the source makes no %ss from others", b.kind.noun)
	}
	results, err := clone(b.ctx, []*entity{e})
	b.keep([]*entity{e}, results)
	got := answers(b, "cloning", 1, results, err)[0]
	if errors.Is(got.err, errors.NotSupported) {
		b.Skipf("the source makes no %ss from others like this: %v", b.kind.noun, got.err)
	}
	return got
}

func (b *bench) clone(e *entity) created {
	b.Helper()
	got := b.tryClone(e)
	if got.err != nil {
		b.Fatalf("making %s from %+v: %v", e.tag, e.origin, got.err)
	}
	b.checkMade(e, got)
	return got
}

// checkContents checks that an entity that is not attached has the data of the given one.
func (b *bench) checkContents(e, of *entity) {
	b.Helper()
	if b.Volatile {
		return
	}
	a := b.attach(e)[0]
	if b.seesData(a) {
		if got, err := b.tryRead(a); err != nil || got != dataOf(of.tag) {
			b.Errorf("reading from %s, made from %+v: got %q, %v, want %q", e.tag, e.origin, got, err, dataOf(of.tag))
		}
	}
	b.detach(e)
}

// overwrite replaces the data of an entity that is not attached with that of another one.
func (b *bench) overwrite(e, other *entity) {
	b.Helper()
	a := b.attach(e)[0]
	a.tag = other.tag
	b.write(a)
	b.detach(e)
}

func checkSnapshotsKeepContents(b *bench) {
	b.requireSnapshots()
	e, other := b.written(), b.entity()
	snapshot := b.makeSnapshots(snapshotOf(e))[0]
	if snapshot.Size < e.size() || snapshot.SnapshotId == "" || snapshot.TakenAt.IsZero() {
		b.Errorf("a snapshot of %s, with %d MiB, is %+v", e.tag, e.size(), snapshot)
	}
	b.overwrite(e, other)
	origin := storage.Origin{SnapshotId: snapshot.SnapshotId}
	first := b.cloneOf(origin, snapshot.Size)
	b.clone(first)
	b.checkContents(first, e)
	b.overwrite(first, other)
	b.restart()
	b.remove(e)
	second := b.cloneOf(origin, 2*snapshot.Size)
	b.clone(second)
	b.checkContents(second, e)
	b.destroySnapshots(snapshot.SnapshotId)
	b.checkContents(second, e)
	if got := b.clone(copyOf(second)); got.id != second.id {
		b.Errorf("%s was made as %s, and again after its snapshot was destroyed as %s", second.tag, second.id, got.id)
	}
	b.remove(first, second)
}

func checkSnapshotsAreIdempotent(b *bench) {
	b.requireSnapshots()
	e := b.written()
	params := snapshotOf(e)
	snapshot := b.makeSnapshots(params)[0]
	again := func(when string) {
		b.Helper()
		got := b.makeSnapshots(params)[0]
		if got.SnapshotId != snapshot.SnapshotId || got.Size != snapshot.Size || !got.TakenAt.Equal(snapshot.TakenAt) {
			b.Errorf("%s: a snapshot was made as %+v, and again as %+v", when, snapshot, got)
		}
	}
	b.overwrite(e, b.entity())
	again("after the origin was written to")
	b.restart()
	again("after a restart")
	b.remove(e)
	again("after the origin was destroyed")
	clone := b.cloneOf(storage.Origin{SnapshotId: snapshot.SnapshotId}, snapshot.Size)
	b.clone(clone)
	b.checkContents(clone, e)
	b.remove(clone)
	b.destroySnapshots(snapshot.SnapshotId)
	if err := b.trySnapshots(params)[0].Error; !errors.Is(err, errors.NotFound) {
		b.Errorf("making a snapshot of %s, which was destroyed: got %v, want a \"not found\" error", e.tag, err)
	}
}

func checkSnapshotsHaveOwners(b *bench) {
	b.requireSnapshots()
	e := b.one()
	b.detach(e)
	params, other, foreign, nobodys := snapshotOf(e), snapshotOf(e), snapshotOf(e), snapshotOf(e)
	snapshot := b.makeSnapshots(params)[0]
	if got := b.makeSnapshots(other)[0]; got.SnapshotId == snapshot.SnapshotId {
		b.Errorf("snapshot %s was returned to another owner", got.SnapshotId)
	}
	foreign.resourceTags = maps.Clone(params.resourceTags)
	foreign.resourceTags[storage.ModelUUIDTag] = uuid.NewString()
	if got := b.trySnapshots(foreign)[0]; got.Error == nil && got.Snapshot.SnapshotId == snapshot.SnapshotId {
		b.Errorf("snapshot %s was returned to another state", snapshot.SnapshotId)
	}
	delete(nobodys.resourceTags, storage.EntityUUIDTag)
	if got := b.trySnapshots(nobodys)[0]; !errors.Is(got.Error, errors.NotValid) {
		b.Errorf("making a snapshot without an owner: got %+v, %v, want a \"not valid\" error", got.Snapshot, got.Error)
	}
}

func checkSnapshotsAreListed(b *bench) {
	b.requireSnapshots()
	e := b.one()
	b.detach(e)
	all := []snapshotParams{snapshotOf(e), snapshotOf(e), snapshotOf(e)}
	made := b.makeSnapshots(all...)
	check := func(when string, want ...int) {
		b.Helper()
		listed := b.listSnapshots()
		if len(listed) != len(want) {
			b.Fatalf("%s, %d snapshots are listed, want %d", when, len(listed), len(want))
		}
		for _, i := range want {
			at := slices.IndexFunc(listed, func(o storage.OwnedObject) bool { return o.ID == made[i].SnapshotId })
			if at < 0 {
				b.Fatalf("%s, snapshot %s is not listed", when, made[i].SnapshotId)
			}
			got := listed[at]
			if got.Size != made[i].Size || got.Incomplete || got.Attached || got.Released {
				b.Errorf("%s, a snapshot with %d MiB is listed as %+v", when, made[i].Size, got)
			}
			for name, want := range all[i].resourceTags {
				if got.ResourceTags[name] != want {
					b.Errorf("%s, tag %s of snapshot %s is %q, want %q", when, name, got.ID, got.ResourceTags[name], want)
				}
			}
		}
		if list := b.source.ownerLister(); list != nil {
			for _, s := range made {
				if _, ok := b.owners()[s.SnapshotId]; ok {
					b.Errorf("%s, snapshot %s is also listed as a %s", when, s.SnapshotId, b.kind.noun)
				}
			}
		}
	}
	check("after making three", 0, 1, 2)
	b.restart()
	check("after a restart", 0, 1, 2)
	for range 2 {
		b.destroySnapshots(made[1].SnapshotId)
		check("after destroying one", 0, 2)
	}
	b.destroySnapshots(made[0].SnapshotId, made[1].SnapshotId, made[2].SnapshotId)
	check("after destroying all")
}

func checkClonesAreIndependent(b *bench) {
	e, other := b.written(), b.entity()
	clone := b.cloneOf(storage.Origin{Id: e.id}, e.size())
	if got := b.clone(clone); got.id == e.id {
		b.Fatalf("a clone of %s is %s itself", e.tag, e.id)
	}
	again := func(when string) {
		b.Helper()
		if got := b.clone(copyOf(clone)); got.id != clone.id {
			b.Errorf("%s: %s was made as %s, and again as %s", when, clone.tag, clone.id, got.id)
		}
	}
	b.checkContents(clone, e)
	b.overwrite(e, other)
	b.checkContents(clone, e)
	again("after the origin was written to")
	b.checkContents(clone, e)
	b.overwrite(clone, clone)
	b.checkContents(e, other)
	b.restart()
	b.remove(e)
	again("after the origin was destroyed")
	b.checkContents(clone, clone)
	b.remove(clone)
}

func checkOriginMustExist(b *bench) {
	destroyed, e := b.destroyed(), b.one()
	b.detach(e)
	check := func(what string, clone *entity, kind error) {
		b.Helper()
		got := b.tryClone(clone)
		if !errors.Is(got.err, kind) {
			b.Errorf("making a %s from %s: got %+v, %v, want a %q error", b.kind.noun, what, got.info, got.err, kind)
		}
	}
	check("one that was destroyed", b.cloneOf(storage.Origin{Id: destroyed.id}, destroyed.size()), errors.NotFound)
	check("nothing", b.cloneOf(storage.Origin{}, e.size()), errors.NotValid)
	check("two origins", b.cloneOf(storage.Origin{Id: e.id, SnapshotId: e.id}, e.size()), errors.NotValid)
	if e.size() > 1 {
		check("a larger one", b.cloneOf(storage.Origin{Id: e.id}, e.size()-1), errors.NotValid)
	}
	if b.source.snapshotter() == nil {
		return
	}
	snapshot := b.makeSnapshots(snapshotOf(e))[0]
	b.destroySnapshots(snapshot.SnapshotId)
	check("a snapshot that was destroyed", b.cloneOf(storage.Origin{SnapshotId: snapshot.SnapshotId}, e.size()), errors.NotFound)
}

func checkCapacity(b *bench) {
	reporter := b.source.capacity()
	if reporter == nil {
		b.Skip("the source does not report its capacity")
	}
	e := b.entity()
	capacity, err := reporter.Capacity(b.ctx, e.attributes())
	if errors.Is(err, errors.NotSupported) {
		b.Skipf("the source cannot report its capacity: %v", err)
	}
	if err != nil {
		b.Fatalf("reading the capacity: %v", err)
	}
	b.checkLeaks("made by reading the capacity")
	b.create(e)
	if capacity < e.size() {
		b.Errorf("the capacity was %d MiB, and a %s of %d MiB was made", capacity, b.kind.noun, e.size())
	}
	b.remove(e)
}
