package providertest

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// ownerTags returns resource tags for a new entity. All belong to the same state.
func ownerTags() map[string]string {
	return map[string]string{
		"providertest":         "yes",
		storage.ModelUUIDTag:   "6f1d9fc0-0e1c-4b43-8d4a-1f2f0f6a7e10",
		storage.EntityUUIDTag:  uuid.NewString(),
		storage.StorageNameTag: "providertest/0",
	}
}

// owners returns what the source lists, by ID. It skips the rule if the source does not list
// owners.
func (b *bench) owners() map[string]storage.OwnedObject {
	b.Helper()
	list := b.source.ownerLister()
	if list == nil {
		b.Skipf("the source does not list the owners of %ss", b.kind.noun)
	}
	objects, err := list(b.ctx)
	if err != nil {
		b.Fatalf("listing owners: %v", err)
	}
	if !slices.IsSortedFunc(objects, func(x, y storage.OwnedObject) int { return strings.Compare(x.ID, y.ID) }) {
		b.Errorf("the owners of %ss are not listed in the order of the IDs", b.kind.noun)
	}
	byID := make(map[string]storage.OwnedObject, len(objects))
	for _, o := range objects {
		if _, ok := byID[o.ID]; ok {
			b.Errorf("%s %s is listed twice", b.kind.noun, o.ID)
		}
		byID[o.ID] = o
	}
	return byID
}

// checkTags checks that an entity is listed with its resource tags. The source may add tags of
// its own.
func (b *bench) checkTags(when string, e *entity) storage.OwnedObject {
	b.Helper()
	o, ok := b.owners()[e.id]
	if !ok {
		b.Fatalf("%s: %s, id %s, is not listed", when, e.tag, e.id)
	}
	for name, want := range e.resourceTags() {
		if got := o.ResourceTags[name]; got != want {
			b.Errorf("%s: tag %s of %s is %q, want %q", when, name, e.tag, got, want)
		}
	}
	return o
}

func checkOwners(b *bench) {
	b.owners()
	all := b.entities(3)
	made := b.create(all...)
	b.detach(all...)
	check := func(when string, attached *entity, all ...*entity) {
		b.Helper()
		for _, e := range all {
			o := b.checkTags(when, e)
			i := slices.IndexFunc(made, func(c created) bool { return c.id == e.id })
			if o.Size != made[i].size {
				b.Errorf("%s: %s is listed with %d MiB, but was made with %d MiB", when, e.tag, o.Size, made[i].size)
			}
			if !b.BlindToUse && o.Attached != (e == attached) {
				b.Errorf("%s: %s is listed with Attached %t", when, e.tag, o.Attached)
			}
			if o.Released {
				b.Errorf("%s: %s is listed as released", when, e.tag)
			}
		}
	}
	check("after creating", nil, all...)
	b.restart()
	check("after a restart", nil, all...)
	b.attach(all[0])
	check("after attaching", all[0], all...)
	b.remove(all[1])
	if _, ok := b.owners()[all[1].id]; ok {
		b.Errorf("%s was destroyed and is still listed", all[1].tag)
	}
	check("after destroying one", all[0], all[0], all[2])
}

func checkAdoption(b *bench) {
	b.owners()
	e := b.written()
	check := func(whose string) {
		b.Helper()
		tags := maps.Clone(e.resourceTags())
		delete(tags, storage.EntityUUIDTag)
		b.notAdopted(e, "without a UUID, "+whose, tags)
		tags = maps.Clone(tags)
		tags[storage.EntityUUIDTag] = uuid.NewString()
		b.notAdopted(e, "with another UUID, "+whose, tags)
	}
	check("at first")
	b.restart()
	check("after a restart")
	own := copyOf(e)
	if got := b.create(own)[0]; got.id != e.id {
		b.Errorf("%s was made as %s, and again with the same UUID as %s", e.tag, e.id, got.id)
	}
	b.checkTags("after it was asked for again", e)
	b.checkKept(b.attach(own)...)
	b.remove(e)
}

// notAdopted checks that a request for an entity's tag by another owner does not get the
// entity: it gets another one, or an error.
func (b *bench) notAdopted(e *entity, how string, tags map[string]string) {
	b.Helper()
	other := copyOf(e)
	other.retag(tags)
	got := b.tryCreate(other)[0]
	switch {
	case got.err != nil:
		return
	case got.id == e.id:
		b.Fatalf("creating %s %s: got id %s, which belongs to another owner", e.tag, how, e.id)
	}
	for _, a := range b.attach(other) {
		if !b.seesData(a) {
			continue
		}
		if data, err := b.tryRead(a); err == nil && data == dataOf(e.tag) {
			b.Errorf("creating %s %s: got the data of another owner", e.tag, how)
		}
	}
	b.remove(other)
}

func checkTagging(b *bench) {
	b.owners()
	tag := b.source.tagger()
	if tag == nil {
		b.Skipf("the source does not replace the tags of %ss", b.kind.noun)
	}
	destroyed := b.destroyed()
	all := b.some(2)
	e, other := all[0], all[1]
	attached := b.attach(e)
	b.write(attached...)
	former := e.resourceTags()
	tags := map[string]string{
		storage.ModelUUIDTag: "8d0b7f0e-52c6-4a53-9c5b-3c1b8f4f0f55", storage.EntityUUIDTag: uuid.NewString(), "new": "yes",
	}
	for range 2 {
		given := []storage.ObjectTags{{ID: destroyed.id, ResourceTags: tags}, {ID: e.id, ResourceTags: tags}}
		results, err := tag(b.ctx, given)
		answers(b, "tagging", len(given), results, err)
		if !errors.Is(results[0], errors.NotFound) {
			b.Errorf("tagging %s, which was destroyed: got %v, want a \"not found\" error", destroyed.tag, results[0])
		}
		if results[1] != nil {
			b.Fatalf("tagging %s: %v", e.tag, results[1])
		}
	}
	e.retag(tags)
	check := func(when string) {
		b.Helper()
		o := b.checkTags(when, e)
		for name := range former {
			if _, ok := tags[name]; !ok && o.ResourceTags[name] != "" {
				b.Errorf("%s: %s still has tag %s, which tagging should have removed", when, e.tag, name)
			}
		}
		if !b.BlindToUse && !o.Attached {
			b.Errorf("%s: %s is not attached any more", when, e.tag)
		}
		b.checkTags(when, other)
		b.checkData(attached...)
	}
	check("after tagging")
	b.restart()
	check("after a restart")
	b.detach(e)
	b.notAdopted(e, "with the UUID that it had", former)
	b.remove(all...)
}
