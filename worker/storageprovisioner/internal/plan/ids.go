package plan

import (
	"hash/maphash"

	"github.com/juju/errors"
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

// spareIDs is how many ids more than there are entities a source may have given before
// those are forgotten that are not in use.
const spareIDs = 1 << 10

// given notes the id that a source has given an entity, and reports whether it may have
// given it before.
func (c *Core) given(q *queue, id string) bool {
	if q.ids.hashes == nil || len(q.ids.hashes) > 2*len(c.all)+spareIDs {
		q.ids = ids{maphash.MakeSeed(), make(map[uint64]struct{})}
		for _, e := range c.all {
			if e.queue == q && e.id != "" {
				q.ids.add(e.id)
			}
		}
	}
	return q.ids.add(id)
}

// Claim has those results fail in which a source gives what it has made an id that it
// has given something else as well, in the same call or earlier: to record it would mean
// to destroy the one with the other. Earlier are what this worker has made, and what it
// has seen attached.
func (c *Core) Claim(source Source, results []Result) {
	if source.Managed {
		return // What they are called is the worker's own affair.
	}
	q := c.queue(source)
	var doubted map[string][]*Result
	for i := range results {
		r := &results[i]
		if r.made() && c.given(q, r.ID) {
			if doubted == nil {
				doubted = make(map[string][]*Result)
			}
			doubted[r.ID] = nil
		}
	}
	if doubted == nil {
		return
	}
	for i := range results {
		r := &results[i]
		if _, ok := doubted[r.ID]; ok && r.made() {
			doubted[r.ID] = append(doubted[r.ID], r)
		}
	}
	for _, e := range c.all {
		if e.id == "" || e.queue != q || e.storage.destroyed() {
			continue
		}
		for _, r := range doubted[e.id] {
			if owner := e.storage.key(); r.made() && r.Key != owner {
				r.disown(owner)
			}
		}
	}
	for _, same := range doubted {
		for i, r := range same {
			if len(same) > 1 && r.made() {
				r.disown(same[(i+1)%len(same)].Key)
			}
		}
	}
}

// destroyed reports whether there is nothing any more of a volume or filesystem but its
// record: another may have its id.
func (e *entity) destroyed() bool { return e.op == Destroy && e.phase == publishing }

// made reports whether the result is that of something made.
func (r *Result) made() bool { return r.Err == nil && r.ID != "" }

// disown has a result fail, whose id is another's. What has been made is not known.
func (r *Result) disown(owner Key) {
	*r = Result{
		Key: r.Key, entity: r.entity, Unknown: true,
		Err: errors.Errorf("provider gave it the id %q, which is that of %s", r.ID, owner),
	}
}
