package plan

// attachments holds the attachments of one volume or filesystem. Most storage has one or two
// attachments: they form a list, which gets an index once it is long.
type attachments struct {
	first *entity
	index map[attachmentKey]*entity
}

// attachmentKey identifies one of the attachments of a volume or filesystem.
type attachmentKey struct {
	kind Kind
	host string
}

// indexThreshold is the number of attachments that are searched without an index.
const indexThreshold = 16

// find returns the attachment of a kind to a host, or nil.
func (a *attachments) find(kind Kind, host string) *entity {
	if a.index != nil {
		return a.index[attachmentKey{kind, host}]
	}
	listed := 0
	for e := a.first; e != nil; e = e.next {
		if e.kind == kind && e.host.tag == host {
			return e
		}
		listed++
	}
	if listed > indexThreshold {
		a.index = make(map[attachmentKey]*entity)
		for e := a.first; e != nil; e = e.next {
			a.index[attachmentKey{e.kind, e.host.tag}] = e
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
		a.index[attachmentKey{e.kind, e.host.tag}] = e
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
	delete(a.index, attachmentKey{e.kind, e.host.tag})
	if a.first == nil {
		a.index = nil
	}
}
