package plan

import (
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/stowage-io/stowage/storage"
)

// ids holds the hashes of IDs that a source has issued, from the first time that the source
// makes something. Some IDs may not be in use any more.
type ids struct {
	seed   maphash.Seed
	hashes map[uint64]struct{}
}

// add adds an ID, and reports whether the ID may have been there before.
func (s *ids) add(id string) bool {
	n := len(s.hashes)
	s.hashes[maphash.String(s.seed, id)] = struct{}{}
	return len(s.hashes) == n
}

// has reports whether an ID may be there.
func (s *ids) has(id string) bool {
	if s.hashes == nil {
		return false
	}
	_, ok := s.hashes[maphash.String(s.seed, id)]
	return ok
}

// issuer issues IDs. It stands for all sources of a provider that differ only in their pools.
type issuer struct {
	// source is any of these sources, without its pool.
	source Source
	ids    ids
}

// issuer returns the issuer that a source belongs to.
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

// spareIDs is how many IDs beyond twice the number of entities an issuer may hold before
// collectIDs discards the unused ones.
const spareIDs = 1 << 10

// addID adds the ID that an issuer has given to an entity, and reports whether the issuer may
// have given it before.
func (c *Core) addID(i *issuer, id string) bool {
	c.collectIDs(i)
	return i.ids.add(id)
}

// collectIDs collects the IDs of an issuer's entities, unless they have been collected and few
// of them are unused.
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

// entityIssuer returns the issuer of the ID of a volume or filesystem, or of the one that an
// attachment attaches. If the source is not known, it returns the issuer of the zero Source:
// the worker does not read which source provides storage that is recorded and has no
// attachment.
func (c *Core) entityIssuer(e *entity) *issuer {
	e = e.storage
	known := func(e *entity) bool { return e.queue != nil && e.queue.source != (Source{}) }
	if c.backing(e) != nil || known(e) {
		return c.source(e).issuer
	}
	for a := e.common.attachments.first; a != nil; a = a.next {
		if a.kind != Plan && known(a) {
			return a.queue.issuer
		}
	}
	return c.issuer(Source{})
}

// learnID adds the ID that the state has for an entity.
func (c *Core) learnID(e *entity, id string) {
	if !c.idsCollected {
		return // collectIDs will find it.
	}
	if i := c.entityIssuer(e); i.ids.hashes != nil {
		c.addID(i, id)
	}
}

// Listed notes that all volumes, or all filesystems, that existed at the start have been
// marked for reading. Until they have been read, the core makes nothing whose ID may be one of
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

// firstRead is the progress of the first reading of all volumes, or of all filesystems.
type firstRead struct {
	listed bool
	// remaining counts the entities that are still to be read.
	remaining int
}

// countFirstRead counts one entity as read in the first reading.
func (c *Core) countFirstRead(kind Kind) {
	if f := &c.firstReads[kind]; f.remaining > 0 {
		f.remaining--
	}
}

// mayCreate reports whether a source may create something: every entity that may have an ID
// already must be known.
func (c *Core) mayCreate(source Source) bool {
	f := c.firstReads[source.kindMade()]
	return f.listed && f.remaining == 0
}

// Claim turns a result into a failure if the source has answered a creation with an ID that
// belongs to another entity: the source has given that ID to something else, in this call or
// earlier, or the ID is recorded for something else. Recording, attaching or destroying by
// such an ID would affect the other entity.
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

// owners are the volumes or filesystems that have, or may have, an ID.
type owners struct {
	// known have the ID from the source in question.
	known []owner
	// unattributed are of the same kind, from a source that is not known.
	unattributed []*entity
}

type owner struct {
	key Key
	// destroying: the owner is being destroyed, so the ID will be free.
	destroying bool
}

// consider adds e to the owners if it has, or may have, the ID from source. giver is the
// issuer of e's ID.
func (o *owners) consider(e *entity, giver, source *issuer) {
	switch {
	case giver == source:
		o.known = append(o.known, owner{e.key(), e.op == Destroy})
	case giver.source == Source{} && e.kind == source.source.kindMade():
		o.unattributed = append(o.unattributed, e)
	}
}

// judge rejects a result whose ID belongs to another entity. Otherwise it adds the result's
// entity to the owners.
func (o *owners) judge(c *Core, source Source, r *Result) {
	for _, owner := range o.known {
		if owner.key != r.Key() {
			r.rejectID(source, owner)
			return
		}
	}
	for _, e := range o.unattributed {
		if key := e.key(); key != r.Key() {
			c.requestSource(e)
			r.rejectUnclearID(source, key)
			return
		}
	}
	o.known = append(o.known, owner{key: r.Key()})
}

// requestSource marks an entity for reading, including the source that provides it.
func (c *Core) requestSource(e *entity) {
	c.requestRead(e)
	e.pendingRead = readSource
}

// kindMade returns the kind of storage that a source makes.
func (s Source) kindMade() Kind {
	if s.Managed {
		return Filesystem
	}
	return s.Kind
}

// destroyed reports whether only the record is left of a volume or filesystem, so that another
// may have its ID.
func (e *entity) destroyed() bool { return e.op == Destroy && e.phase == publishing }

// made reports whether the result is that of a successful creation.
func (r *Result) made() bool { return r.Err == nil && r.ID != "" }

// rejectID turns a result whose ID belongs to another entity into a failure, which is
// permanent unless that entity is being destroyed.
func (r *Result) rejectID(source Source, owner owner) {
	err := fmt.Errorf("%s, which belongs to %s", r.answer(source), owner.key)
	if !owner.destroying {
		err = storage.Permanent(err)
	}
	r.fail(err, owner.destroying)
}

// rejectUnclearID turns a result whose ID may belong to another entity into a failure.
func (r *Result) rejectUnclearID(source Source, other Key) {
	r.fail(fmt.Errorf("%s, which %[2]s has as well: looking up the provider of %[2]s", r.answer(source), other), true)
}

// answer describes the source's answer to a creation, for error messages.
func (r *Result) answer(source Source) string {
	by := fmt.Sprintf("provider %q", source.Provider)
	if source.Managed {
		by = "the source of filesystems on volumes"
	}
	return fmt.Sprintf("creating %s: %s returned %[1]s ID %[3]q", source.kindMade(), by, r.ID)
}

// fail replaces a result with an error.
func (r *Result) fail(err error, unknown bool) {
	*r = Result{Subject: r.Subject, Err: err, Unknown: unknown}
}

// rejectDuplicates handles an entity that another program than this worker has recorded: it
// rejects what this worker has made with the same ID and has not recorded yet.
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
			r := Result{Subject: other.subject(), ID: e.id}
			if o.judge(c, i.source, &r); r.Err != nil {
				c.withhold(other, &r)
			}
		}
	}
}

// withhold turns a result that was about to be recorded into a failure.
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
