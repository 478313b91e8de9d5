package providertest

import (
	"fmt"
	"math"
	"slices"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// tooLarge is a size, in MiB, that no provider can make.
const tooLarge = math.MaxUint64

func checkNothing(b *bench) {
	b.tryCreate()
	b.tryAttach()
	b.tryDetach()
	b.tryDestroy()
	results, err := b.source.create(b.ctx, []*entity{})
	answers(b, "creating", 0, results, err)
	if v, ok := b.source.(*volumes); ok {
		results, err := v.DescribeVolumes(b.ctx, nil)
		answers(b, "describing", 0, results, err)
	}
}

// checkMade checks the result of a creation.
func (b *bench) checkMade(e *entity, got created) {
	b.Helper()
	if got.tag != e.tag {
		b.Errorf("creating %s: it is returned as %v", e.tag, got.tag)
	}
	if got.id == "" {
		b.Errorf("creating %s: it has no ID", e.tag)
	}
	if got.size < e.size() {
		b.Errorf("creating %s: got %d MiB, want at least %d MiB", e.tag, got.size, e.size())
	}
	if got.backing != e.filesystem.Volume {
		b.Errorf("creating %s: its backing volume is %q, not %q", e.tag, got.backing.Id(), e.filesystem.Volume.Id())
	}
	if a := got.attachment; a != nil {
		b.checkAttached(e, *a)
	}
}

func checkCreate(b *bench) {
	all := b.entities(3)
	ids := make(map[string]bool)
	for i, got := range b.create(all...) {
		b.checkMade(all[i], got)
		ids[got.id] = true
	}
	if len(ids) != len(all) {
		b.Errorf("%d %ss have only %d different IDs", len(all), b.kind.noun, len(ids))
	}
}

func checkCreateIsIdempotent(b *bench) {
	e := b.entity()
	first := b.create(e)[0]
	again := func(when string) {
		b.Helper()
		// A caller that repeats a request does not know the ID.
		got := b.create(copyOf(e))[0]
		if got.info != first.info || got.tag != first.tag {
			b.Errorf("%s was made as %+v, and %s as %+v", e.tag, first.info, when, got.info)
		}
		if b.kind.noun == "volume" {
			if listed := b.list(); len(listed) != 1 {
				b.Errorf("%s was made once, but %s volumes %q are listed", e.tag, when, listed)
			}
		}
	}
	again("again")
	b.restart()
	again("after a restart")
	a := b.attach(e)[0]
	b.write(a)
	again("when it is attached")
	b.checkData(a)
	b.remove(e)
}

func checkCreateFailsOneByOne(b *bench) {
	all := b.entities(3)
	bad := all[1]
	good := bad.size()
	bad.resize(tooLarge)
	results := b.tryCreate(all...)
	for i, got := range results {
		switch {
		case all[i] == bad && got.err == nil:
			b.Errorf("creating %s: got %d MiB, want an error for the impossible size of %d MiB", bad.tag, got.size, bad.size())
		case all[i] != bad && got.err != nil:
			b.Errorf("creating %s together with one that cannot be made: %v", all[i].tag, got.err)
		}
	}
	if b.Failed() {
		return
	}
	// Nothing is left of the failed creation, so the entity can be made with another size.
	bad.resize(good)
	b.checkMade(bad, b.create(bad)[0])
}

func checkNothingMade(b *bench) {
	for n := 1; n <= maxChecks; n++ {
		f := newFuse(b.ctx, n)
		e := b.entity()
		all := []*entity{e}
		var results []created
		var err error
		b.withinPatience("creating", func() { results, err = b.source.create(envcontext.New(f), all) })
		burnt := f.left.Load() <= 0
		f.cancel()
		b.keep(all, results)
		if err == nil && len(results) == 1 && storage.IsNothingMade(results[0].err) {
			b.checkLeaks(fmt.Sprintf("creating %s reported that nothing was made (%v), but left", e.tag, results[0].err))
		}
		// Whatever the error was, the entity can be made and removed.
		b.create(e)
		b.remove(e)
		b.checkLeaks("left behind")
		if !burnt {
			return // the provider does not check the context that often
		}
	}
}

func checkValidate(b *bench) {
	var before []string
	listing := b.kind.noun == "volume"
	if listing {
		before = b.listAll()
	}
	for _, e := range b.entities(2) {
		for range 2 {
			if err := b.source.validate(e); err != nil {
				b.Fatalf("validating %s, which can be made: %v", e.tag, err)
			}
		}
		b.checkLeaks("made by validating")
		if listing {
			if after := b.listAll(); !slices.Equal(before, after) {
				b.Errorf("validating %s changed the list of volumes from %q to %q", e.tag, before, after)
			}
		}
	}
	accepted := b.entity()
	if err := b.source.validate(accepted); err != nil {
		b.Fatalf("validating %s: %v", accepted.tag, err)
	}
	if err := b.tryCreate(accepted)[0].err; err != nil {
		b.Errorf("%s was validated, but creating it failed: %v", accepted.tag, err)
	}
	refused := b.entity()
	refused.resize(tooLarge)
	if err := b.source.validate(refused); err == nil {
		return // only creating detects the invalid size
	}
	if b.tryCreate(refused)[0].err == nil {
		b.Errorf("validating %s failed, but creating it succeeded", refused.tag)
	}
}

// listAll returns, sorted, the IDs of all volumes that the source lists.
func (b *bench) listAll() []string {
	b.Helper()
	listed, err := b.source.(*volumes).ListVolumes(b.ctx)
	if err != nil {
		b.Fatalf("listing volumes: %v", err)
	}
	return slices.Sorted(slices.Values(listed))
}

func checkList(b *bench) {
	all := b.some(3)
	check := func(when string, entities ...*entity) {
		b.Helper()
		want := slices.Sorted(slices.Values(mapSlice(entities, identify)))
		if got := b.list(); !slices.Equal(got, want) {
			b.Errorf("%s, volumes %q are listed, want %q", when, got, want)
		}
	}
	check("after creating", all...)
	b.restart()
	check("after a restart", all...)
	b.attach(all[0])
	check("after attaching", all...)
	b.remove(all[0])
	check("after destroying one", all[1:]...)
	b.remove(all[1:]...)
	check("after destroying all")
}

func checkDescribe(b *bench) {
	destroyed := b.destroyed()
	all := b.entities(2)
	made := b.create(all...)
	describe := func() {
		b.Helper()
		ids := []string{all[1].id, destroyed.id, all[0].id}
		results, err := b.source.(*volumes).DescribeVolumes(b.ctx, ids)
		answers(b, "describing", len(ids), results, err)
		for i, want := range []*created{&made[1], nil, &made[0]} {
			got := results[i]
			switch {
			case want == nil:
				if !errors.Is(got.Error, errors.NotFound) || got.VolumeInfo != nil {
					b.Errorf("describing %s, which was destroyed: got %+v, %v, want a \"not found\" error", ids[i], got.VolumeInfo, got.Error)
				}
			case got.Error != nil || got.VolumeInfo == nil:
				b.Errorf("describing %s: got %+v, %v", ids[i], got.VolumeInfo, got.Error)
			case (info{got.VolumeInfo.VolumeId, got.VolumeInfo.Size}) != want.info:
				b.Errorf("describing %s: got %+v, it was made as %+v", ids[i], *got.VolumeInfo, want.info)
			}
		}
	}
	describe()
	b.restart()
	describe()
}
