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
	i, ok := c.issuersBySource[source]
	if !ok {
		i = &issuer{source: source}
		c.issuersBySource[source] = i
		c.issuers = append(c.issuers, i)
	}
	return i
}

// spareIDs is how many ids more than there are entities a source may have given before
// the unused ones are forgotten.
const spareIDs = 1 << 10

// addID adds the id that an issuer has given to an entity, and reports whether it may have
// given it before.
func (c *Core) addID(i *issuer, id string) bool {
	c.collectIDs(i)
	return i.ids.add(id)
}

// collectIDs collects the ids of an issuer's entities, if that has not been done or the
// issuer has many that are unused.
func (c *Core) collectIDs(i *issuer) {
	if i.ids.hashes != nil && len(i.ids.hashes) <= 2*len(c.all)+spareIDs {
		return
	}
	c.idsCollected = true
	i.ids = ids{maphash.MakeSeed(), make(map[uint64]struct{})}
	for _, e := range c.all {
		if e.id != "" && c.entityIssuer(e) == i {
			i.ids.add(e.id)
		}
	}
}

// entityIssuer returns the issuer that has given a volume or filesystem, or the one that an
// attachment attaches, its id. Where that is not known it is the issuer of no source: who
// provides what is recorded and nowhere attached is not read.
func (c *Core) entityIssuer(e *entity) *issuer {
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
	if !c.idsCollected {
		return // collectIDs will find it.
	}
	if i := c.entityIssuer(e); i.ids.hashes != nil {
		c.addID(i, id)
	}
}

// Listed takes in that all volumes, or all filesystems, that there were at the start are
// to be read, or have been. Until they have been nothing is made whose id may be one of
// theirs.
func (c *Core) Listed(kind Kind) {
	f := &c.firstReads[kind]
	if f.listed {
		return
	}
	f.listed = true
	for _, e := range c.unread {
		if e.kind == kind {
			f.remaining++
		}
	}
}

// firstRead is how far the first reading of all volumes, or all filesystems, is.
type firstRead struct {
	listed bool
	// remaining are to be read still.
	remaining int
}

// countFirstRead counts what has been read in the first reading.
func (c *Core) countFirstRead(kind Kind) {
	if f := &c.firstReads[kind]; f.remaining > 0 {
		f.remaining--
	}
}

// mayCreate reports whether a source may create something: everything is known that may have
// been given an id before.
func (c *Core) mayCreate(source Source) bool {
	f := c.firstReads[source.kindMade()]
	return f.listed && f.remaining == 0
}

// Claim has those results fail in which a source answers a creation with an id that is
// another's: one that it has answered for something else before, in the same call or
// earlier, or that is recorded of something else. By such an answer nothing is recorded,
// attached or destroyed: that would be done to what is the other's.
func (c *Core) Claim(source Source, results []Result) {
	own, unknown := c.issuer(source), c.issuer(Source{})
	var contested map[string]*owners
	for i := range results {
		r := &results[i]
		if !r.made() {
			continue
		}
		c.collectIDs(unknown)
		if c.addID(own, r.ID) || unknown.ids.has(r.ID) {
			if contested == nil {
				contested = make(map[string]*owners)
			}
			contested[r.ID] = &owners{}
		}
	}
	if contested == nil {
		return
	}
	for _, e := range c.all {
		if o := contested[e.id]; o != nil && e.id != "" && !e.storage.destroyed() {
			o.consider(e.storage, c.entityIssuer(e), own)
		}
	}
	for i := range results {
		if r := &results[i]; r.made() && contested[r.ID] != nil {
			contested[r.ID].judge(c, source, r)
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
	// destroying: the id will be free.
	destroying bool
}

// consider adds what has the id to its owners, if it has it, or may have it, from a
// source.
func (o *owners) consider(e *entity, giver, source *issuer) {
	switch {
	case giver == source:
		o.known = append(o.known, owner{e.key(), e.op == Destroy})
	case giver.source == Source{} && e.kind == source.source.kindMade():
		o.unattributed = append(o.unattributed, e)
	}
}

// judge rejects a result whose id is another's. Otherwise its entity is an owner from here on.
func (o *owners) judge(c *Core, source Source, r *Result) {
	for _, owner := range o.known {
		if owner.key != r.Key {
			r.rejectID(source, owner)
			return
		}
	}
	for _, e := range o.unattributed {
		if key := e.key(); key != r.Key {
			c.requestSource(e)
			r.rejectUnclearID(source, key)
			return
		}
	}
	o.known = append(o.known, owner{key: r.Key})
}

// requestSource has it read which source provides an entity.
func (c *Core) requestSource(e *entity) {
	c.requestRead(e)
	e.pendingRead = readSource
}

// kindMade returns the kind of what a source makes.
func (s Source) kindMade() Kind {
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

// rejectID turns a result whose id is another's into a failure: a permanent one, unless the
// other is being destroyed.
func (r *Result) rejectID(source Source, owner owner) {
	err := fmt.Errorf("%s, which is %s's", r.answer(source), owner.key)
	if !owner.destroying {
		err = storage.Permanent(err)
	}
	r.fail(err, owner.destroying)
}

// rejectUnclearID turns a result whose id may be another's into a failure.
func (r *Result) rejectUnclearID(source Source, other Key) {
	r.fail(fmt.Errorf("%s, which %s has too: its provider is being looked up", r.answer(source), other), true)
}

// answer describes what a source has answered.
func (r *Result) answer(source Source) string {
	by := fmt.Sprintf("provider %q", source.Provider)
	if source.Managed {
		by = "the source of filesystems on volumes"
	}
	return fmt.Sprintf("creating %s: %s answered %[1]s ID %[3]q", source.kindMade(), by, r.ID)
}

// fail replaces a result by an error.
func (r *Result) fail(err error, unknown bool) {
	*r = Result{Key: r.Key, entity: r.entity, Err: err, Unknown: unknown}
}

// rejectDuplicates takes in that others than this worker have recorded a volume or
// filesystem: what has been made with the same id, and is not recorded yet, is rejected.
func (c *Core) rejectDuplicates(e *entity) {
	if !c.idsCollected {
		return
	}
	for _, i := range c.issuers {
		if i.source.kindMade() != e.kind || !i.ids.has(e.id) {
			continue
		}
		var o owners
		o.consider(e, c.entityIssuer(e), i)
		for _, other := range c.all {
			if other == e || other.id != e.id || other.op != Create || other.phase != publishing || c.entityIssuer(other) != i {
				continue
			}
			r := Result{Key: other.key(), ID: e.id}
			if o.judge(c, i.source, &r); r.Err != nil {
				c.withhold(other, &r)
			}
		}
	}
}

// withhold turns a result that was to be recorded into a failure.
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
