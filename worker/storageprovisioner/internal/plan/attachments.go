package plan

// attachments are those of one volume or filesystem. Most have one or two: they are a
// list, and what is attached to many hosts has an index of it.
type attachments struct {
	first *entity
	index map[site]*entity
}

// site tells attachments of the same apart.
type site struct {
	kind Kind
	host string
}

// mostListed is how many attachments are looked for in a list.
const mostListed = 16

// find returns the attachment of a kind to a host, or nil.
func (a *attachments) find(kind Kind, host string) *entity {
	if a.index != nil {
		return a.index[site{kind, host}]
	}
	listed := 0
	for e := a.first; e != nil; e = e.next {
		if e.kind == kind && e.host.tag == host {
			return e
		}
		listed++
	}
	if listed > mostListed {
		a.index = make(map[site]*entity)
		for e := a.first; e != nil; e = e.next {
			a.index[site{e.kind, e.host.tag}] = e
		}
	}
	return nil
}

func (a *attachments) add(e *entity) {
	if a.first != nil {
		e.next, a.first.previous = a.first, e
	}
	a.first = e
	if a.index != nil {
		a.index[site{e.kind, e.host.tag}] = e
	}
}

func (a *attachments) remove(e *entity) {
	if e.next != nil {
		e.next.previous = e.previous
	}
	if e.previous != nil {
		e.previous.next = e.next
	} else {
		a.first = e.next
	}
	e.next, e.previous = nil, nil
	delete(a.index, site{e.kind, e.host.tag})
	if a.first == nil {
		a.index = nil
	}
}
