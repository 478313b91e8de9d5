package providertest

import (
	"slices"

	"github.com/juju/errors"
)

func checkDestroyIsIdempotent(b *bench) {
	all := b.some(3)
	b.remove(all[0])
	again := func(when string, entities ...*entity) {
		b.Helper()
		for i, err := range b.tryDestroy(entities...) {
			if err != nil {
				b.Errorf("destroying %s, %s: %v", entities[i].tag, when, err)
			}
		}
	}
	again("which was destroyed already", all[0])
	b.detach(all[1:]...)
	again("together with one that was destroyed", all[1], all[0], all[2])
	b.restart()
	again("which was destroyed before a restart", all...)
}

func checkDestroyRemovesTheData(b *bench) {
	e := b.entity()
	if e.isBacked() {
		b.Skip("the data of a filesystem on a volume may be removed only with the volume")
	}
	b.create(e)
	a := b.attach(e)[0]
	b.write(a)
	b.remove(e)

	b.checkMade(e, b.create(e)[0])
	a = b.attach(e)[0]
	b.checkAttached(e, a)
	if !b.seesData(a) {
		return
	}
	if data, err := b.tryRead(a); err == nil && data == dataOf(e.tag) {
		b.Errorf("%s was destroyed and created again, but still has its old data", e.tag)
	}
	b.write(a)
	b.checkData(a)
}

func checkAttachedIsNotRemoved(b *bench) {
	if b.BlindToUse {
		b.Skip("the provider cannot know what is attached: Config.BlindToUse")
	}
	all := b.some(2)
	used, unused := all[0], all[1]
	a := b.attach(used)[0]
	b.write(a)
	still := func(when string) {
		b.Helper()
		b.checkData(a)
		b.checkAttached(used, b.attach(used)[0])
		if b.kind.noun == "volume" && !slices.Contains(b.list(), used.id) {
			b.Errorf("%s is no longer listed after %s it was refused", used.tag, when)
		}
		b.checkData(a)
	}
	if b.Provider.Releasable() {
		if b.tryRelease(used)[0] == nil {
			b.Errorf("%s is attached, but releasing it succeeded", used.tag)
			return
		}
		still("releasing")
	}
	b.detach(unused)
	errs := b.tryDestroy(used, unused)
	if errs[0] == nil {
		b.Errorf("%s is attached, but destroying it succeeded", used.tag)
		return
	}
	if errs[1] != nil {
		b.Errorf("destroying %s together with one that is attached: %v", unused.tag, errs[1])
	}
	still("destroying")
	b.remove(used)
}

// written returns a volume or filesystem that contains data and is not attached.
func (b *bench) written() *entity {
	b.Helper()
	e := b.one()
	b.write(b.attach(e)...)
	b.detach(e)
	return e
}

func checkRelease(b *bench) {
	if !b.Provider.Releasable() {
		e := b.written()
		results, err := b.source.release(b.ctx, []string{e.id})
		if err == nil {
			err = answers(b, "releasing", 1, results, nil)[0]
		}
		if !errors.Is(err, errors.NotSupported) {
			b.Errorf("releasing %s, where that is not supported: got %v, want a \"not supported\" error", e.tag, err)
		}
		b.checkKept(b.attach(e)...)
		return
	}
	destroyed := b.destroyed()
	e, other := b.written(), b.one()
	b.successes("releasing", b.tryRelease(destroyed, e))
	b.successes("releasing what is released", b.tryRelease(e))
	b.restart()
	b.successes("releasing what was released before a restart", b.tryRelease(e))
	if b.kind.noun == "volume" {
		if listed := b.list(); !slices.Equal(listed, []string{other.id}) {
			b.Errorf("%s was released and %s was not, but volumes %q are listed", e.id, other.id, listed)
		}
	}
	b.takeBack(e)
}

// takeBack checks that released storage exists, and removes it.
func (b *bench) takeBack(e *entity) {
	b.Helper()
	if b.TakeReleased != nil {
		if err := b.TakeReleased(e.id); err != nil {
			b.Errorf("%s was released, but cannot be taken over: %v", e.tag, err)
		}
	} else if take := b.source.importer(); take != nil {
		if _, err := take(b.ctx, e.id, nil); err != nil {
			b.Errorf("%s was released, but cannot be imported: %v", e.tag, err)
			return
		}
		b.remove(e)
	}
}

func checkImport(b *bench) {
	take := b.source.importer()
	if take == nil {
		b.Skipf("the source does not import %ss", b.kind.noun)
	}
	destroyed := b.destroyed()
	tags := map[string]string{"providertest": "imported"}
	if _, err := take(b.ctx, destroyed.id, tags); !errors.Is(err, errors.NotFound) {
		b.Errorf("importing %s, which was destroyed: got %v, want a \"not found\" error", destroyed.tag, err)
	}
	if !b.Provider.Releasable() || b.ImportsByPath {
		return // nothing can be imported by its ID
	}
	e := b.written()
	b.successes("releasing", b.tryRelease(e))
	for _, when := range []string{"", "again"} {
		got, err := take(b.ctx, e.id, tags)
		if err != nil {
			b.Fatalf("importing %s %s: %v", e.tag, when, err)
		}
		if got.id != e.id || got.size < e.size() {
			b.Errorf("importing %s, id %s with %d MiB: got %+v", e.tag, e.id, e.size(), got)
		}
	}
	if b.kind.noun == "volume" && !slices.Contains(b.list(), e.id) {
		b.Errorf("%s was imported, but is not listed", e.tag)
	}
	b.checkKept(b.attach(e)...)
	b.remove(e)
}
