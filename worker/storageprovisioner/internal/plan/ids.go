package plan

import (
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/stowage-io/stowage/storage"
)

// ids has the hashes of ids that a source has given, from the first time that it makes
// something. Some may not be in use any more.
type ids struct {
	seed   maphash.Seed
	hashes map[uint64]struct{}
}

// add adds an id, and reports whether it may have been there.
func (s *ids) add(id string) bool {
	n := len(s.hashes)
	s.hashes[maphash.String(s.seed, id)] = struct{}{}
	return len(s.hashes) == n
}

// has reports whether an id may be there.
func (s *ids) has(id string) bool {
	if s.hashes == nil {
		return false
	}
	_, ok := s.hashes[maphash.String(s.seed, id)]
	return ok
}

// issuer gives ids: a provider's sources, of whichever pools.
type issuer struct {
	// source is any of them, without its pool.
	source Source
	ids    ids
}

// issuer returns the issuer that a source is of.
func (c *Core) issuer(source Source) *issuer {
	source.Pool = ""
	i, ok := c.issuersOf[source]
	if !ok {
		i = &issuer{source: source}
		c.issuersOf[source] = i
		c.issuers = append(c.issuers, i)
	}
	return i
}

// spareIDs is how many ids more than there are entities a source may have given before
// those are forgotten that are not in use.
const spareIDs = 1 << 10

// given notes the id that an entity has been given, and reports whether it may have been
// given before.
func (c *Core) given(i *issuer, id string) bool {
	c.listIDs(i)
	return i.ids.add(id)
}

// listIDs has an issuer know the ids of all entities that are its own, and forget those
// that are not in use if they are many.
func (c *Core) listIDs(i *issuer) {
	if i.ids.hashes != nil && len(i.ids.hashes) <= 2*len(c.all)+spareIDs {
		return
	}
	c.idsListed = true
	i.ids = ids{maphash.MakeSeed(), make(map[uint64]struct{})}
	for _, e := range c.all {
		if e.id != "" && c.giver(e) == i {
			i.ids.add(e.id)
		}
	}
}

// giver returns the issuer that has given a volume or filesystem, or the one that an
// attachment attaches, its id. Where that is not known it is the issuer of no source: who
// provides what is recorded and nowhere attached is not read.
func (c *Core) giver(e *entity) *issuer {
	e = e.storage
	known := func(e *entity) bool { return e.queue != nil && e.queue.source != (Source{}) }
	if c.backing(e) != nil || known(e) {
		return c.source(e).issuer
	}
	for a := e.attachments.first; a != nil; a = a.next {
		if a.kind != Plan && known(a) {
			return a.queue.issuer
		}
	}
	return c.issuer(Source{})
}

// learnID takes in the id of an entity, as the state has it.
func (c *Core) learnID(e *entity, id string) {
	if !c.idsListed {
		return // The list, once it is made, has it.
	}
	if i := c.giver(e); i.ids.hashes != nil {
		c.given(i, id)
	}
}

// Listed takes in that all volumes, or all filesystems, that there were at the start are
// to be read, or have been. Until they have been nothing is made whose id may be one of
// theirs.
func (c *Core) Listed(kind Kind) {
	f := &c.first[kind]
	if f.listed {
		return
	}
	f.listed = true
	for _, e := range c.unread {
		if e.kind == kind {
			f.left++
		}
	}
}

// firstReading is how far the first reading of all volumes, or all filesystems, is.
type firstReading struct {
	listed bool
	// left are to be read still.
	left int
}

// wasRead counts what has been read in the first reading.
func (c *Core) wasRead(kind Kind) {
	if f := &c.first[kind]; f.left > 0 {
		f.left--
	}
}

// mayMake reports whether a source may make something: all is known that may have been
// given an id before.
func (c *Core) mayMake(source Source) bool {
	f := c.first[source.makes()]
	return f.listed && f.left == 0
}

// Claim has those results fail in which a source answers a creation with an id that is
// another's: one that it has answered for something else before, in the same call or
// earlier, or that is recorded of something else. By such an answer nothing is recorded,
// attached or destroyed: that would be done to what is the other's.
func (c *Core) Claim(source Source, results []Result) {
	own, unknown := c.issuer(source), c.issuer(Source{})
	var doubted map[string]*owners
	for i := range results {
		r := &results[i]
		if !r.made() {
			continue
		}
		c.listIDs(unknown)
		if c.given(own, r.ID) || unknown.ids.has(r.ID) {
			if doubted == nil {
				doubted = make(map[string]*owners)
			}
			doubted[r.ID] = &owners{}
		}
	}
	if doubted == nil {
		return
	}
	for _, e := range c.all {
		if o := doubted[e.id]; o != nil && e.id != "" && !e.storage.destroyed() {
			o.consider(e.storage, c.giver(e), own)
		}
	}
	for i := range results {
		if r := &results[i]; r.made() && doubted[r.ID] != nil {
			doubted[r.ID].judge(c, source, r)
		}
	}
}

// owners are the volumes or filesystems that an id is of, or may be.
type owners struct {
	// known have it from the source in question.
	known []owner
	// unattributed are of the same kind, and it is not known which source provides them.
	unattributed []*entity
}

type owner struct {
	key Key
	// going is being destroyed: the id will be free.
	going bool
}

// consider adds what has the id to its owners, if it has it, or may have it, from a
// source.
func (o *owners) consider(e *entity, giver, source *issuer) {
	switch {
	case giver == source:
		o.known = append(o.known, owner{e.key(), e.op == Destroy})
	case giver.source == Source{} && e.kind == source.source.makes():
		o.unattributed = append(o.unattributed, e)
	}
}

// judge has a result fail whose id is another's. What else has it is refused it from then
// on.
func (o *owners) judge(c *Core, source Source, r *Result) {
	for _, owner := range o.known {
		if owner.key != r.Key {
			r.refuse(source, owner)
			return
		}
	}
	for _, e := range o.unattributed {
		if key := e.key(); key != r.Key {
			c.attribute(e)
			r.doubt(source, key)
			return
		}
	}
	o.known = append(o.known, owner{key: r.Key})
}

// attribute has it read which source provides an entity.
func (c *Core) attribute(e *entity) {
	c.read(e)
	e.unread = sourceUnread
}

// makes returns the kind of what a source makes.
func (s Source) makes() Kind {
	if s.Managed {
		return Filesystem
	}
	return s.Kind
}

// destroyed reports whether there is nothing any more of a volume or filesystem but its
// record: another may have its id.
func (e *entity) destroyed() bool { return e.op == Destroy && e.phase == publishing }

// made reports whether the result is that of something made.
func (r *Result) made() bool { return r.Err == nil && r.ID != "" }

// refuse has a result fail, whose id is another's. It is not the last word where the other
// is being destroyed.
func (r *Result) refuse(source Source, owner owner) {
	err := fmt.Errorf("%s, which is %s's", r.answer(source), owner.key)
	if !owner.going {
		err = storage.Permanent(err)
	}
	r.fail(err, owner.going)
}

// doubt has a result fail, whose id may be another's.
func (r *Result) doubt(source Source, other Key) {
	r.fail(fmt.Errorf("%s, which %s has too: its provider is being looked up", r.answer(source), other), true)
}

// answer tells what a source has answered.
func (r *Result) answer(source Source) string {
	by := fmt.Sprintf("provider %q", source.Provider)
	if source.Managed {
		by = "the source of filesystems on volumes"
	}
	return fmt.Sprintf("creating %s: %s answered %[1]s ID %[3]q", source.makes(), by, r.ID)
}

// fail has nothing be left of a result but an error.
func (r *Result) fail(err error, unknown bool) {
	*r = Result{Key: r.Key, entity: r.entity, Err: err, Unknown: unknown}
}

// recordedOf takes in that a volume or filesystem has come to be recorded by others than
// this worker. What has been made with the same id, and is not recorded yet, is refused.
func (c *Core) recordedOf(e *entity) {
	if !c.idsListed {
		return
	}
	for _, i := range c.issuers {
		if i.source.makes() != e.kind || !i.ids.has(e.id) {
			continue
		}
		var o owners
		o.consider(e, c.giver(e), i)
		for _, other := range c.all {
			if other == e || other.id != e.id || other.op != Create || other.phase != publishing || c.giver(other) != i {
				continue
			}
			r := Result{Key: other.key(), ID: e.id}
			if o.judge(c, i.source, &r); r.Err != nil {
				c.withhold(other, &r)
			}
		}
	}
}

// withhold has a result fail that was to be recorded.
func (c *Core) withhold(e *entity, r *Result) {
	p := &c.out.Publish
	p.Records = slices.DeleteFunc(p.Records, func(r Record) bool { return r.entity == e })
	c.options.Timetable.Remove(e)
	w := e.work
	w.result, w.refused = nil, nil
	w.item = &Item{Subject: e.subject(), Args: w.args}
	e.id = ""
	c.fail(e, r)
	c.wake(e)
}
