package plan

import (
	"slices"

	"github.com/juju/errors"
)

// Unnoted returns the items of a batch whose attempts the state must note before they go
// ahead.
func (b *Batch) Unnoted() []Subject {
	var subjects []Subject
	for i := range b.Items {
		if !b.Items[i].Noted {
			subjects = append(subjects, b.Items[i].Subject)
		}
	}
	return subjects
}

// Noted handles the state's answers to the attempts of a batch: errs has an error or nil for
// each item that Unnoted returned. It returns the batch with the operations that may still go
// ahead. If no operation is left, the source is free.
func (c *Core) Noted(b Batch, errs []error) Batch {
	dropped := make(map[*entity]error)
	for i := range b.Items {
		item := &b.Items[i]
		e := item.entity
		if item.Noted {
			continue
		}
		err := errs[0]
		errs = errs[1:]
		item.Noted = err == nil
		if op, need := c.decide(e); err != nil || op != e.op || need != nil {
			dropped[e] = err
		}
	}
	if len(dropped) == 0 {
		return b
	}
	var withdrawn []Item
	b.Items = slices.DeleteFunc(slices.Clone(b.Items), func(item Item) bool {
		_, ok := dropped[item.entity]
		if ok {
			withdrawn = append(withdrawn, item)
		}
		return ok
	})
	if len(b.Items) == 0 {
		c.queue(b.Source).calls--
	}
	for _, item := range withdrawn {
		item.entity.common.calls--
		c.withdraw(item.entity, item.Noted, dropped[item.entity])
	}
	return b
}

// withdraw takes back an entity whose operation was about to be handed to a provider. If the
// state could not note the operation, the operation is tried again, unless the state does not
// have the entity.
func (c *Core) withdraw(e *entity, noted bool, err error) {
	if noted {
		c.noteAttemptEnd(e)
	}
	switch {
	case e.life == Gone:
		c.forget(e)
	case err != nil && !errors.Is(err, errors.NotFound):
		c.fail(e, &Result{Err: errors.Annotate(err, "recording the attempt"), Untried: true})
	default:
		e.phase = idle
		if e.op == Create {
			c.unhold(e)
		}
		if !e.mayHaveLeftover() {
			e.work.item = nil
		}
		if err != nil {
			c.requireRead(e)
		}
		c.settle(e)
	}
	c.wake(e)
}

// noteAttemptEnd notes that an attempt to make an entity has ended, and whether it has made
// nothing. An entity that was not made is not attached either, even if a read during the
// attempt said that an attachment may exist. If a filesystem may exist in part, the volume
// that backs it need not stay attached.
func (c *Core) noteAttemptEnd(e *entity) {
	if !c.options.Attempts || !e.makes() || e.made == recorded || e.unresolved {
		return
	}
	if e.mayHaveLeftover() {
		if e.made == maybeMade && e.op == Create && e.backing != nil {
			c.out.Publish.Ended = append(c.out.Publish.Ended, e.subject())
		}
		return
	}
	e.attemptEnded = true
	c.out.Publish.Unmade = append(c.out.Publish.Unmade, e.subject())
	if e.kind.Attachment() {
		return
	}
	for a := e.common.attachments.first; a != nil; a = a.next {
		if a.made != recorded && !a.underway() {
			a.madeNothing()
			a.attemptEnded = true
			c.settle(a)
		}
	}
}
