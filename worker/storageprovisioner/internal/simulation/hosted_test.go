package simulation

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// In some histories the volumes of machines are those of a CSI driver, with a provider between the
// driver and the worker that does what the one of package csi does. Calls of the driver end with
// the outcomes of that package: they go on, are lost, are refused for good, or fail. A lost call may
// be carried out later, and the provider does not learn of it. Like the package, the provider
// records the request for a volume before the driver gets it, repeats a creation with the recorded
// request, and lists only what it has recorded.

// isHosted reports whether a driver makes the volumes of machines in the histories of a seed. It
// leaves those of the corpus that are older than the driver as they were.
func isHosted(dice uint32) bool { return dice/32%4 == 1 }

// request is the record of a volume, with the size that the driver is asked for. stray: it belongs to
// a restored state, which does not know of it.
type request struct {
	id    string
	size  uint64
	owner storage.Owner
	stray bool
	// destroying: its destruction has begun.
	destroying bool
}

// newHostedSource returns the source of the driver's volumes. It makes no clones.
func newHostedSource(in *incarnation) storage.VolumeSource {
	s := source{in, hosted, nil}
	return struct {
		storage.VolumeSource
		storage.VolumeResizer
		storage.VolumeOwnerLister
	}{s, s, s}
}

var (
	errDriver     = errors.New("injected: the driver fails")
	errDriverAway = storage.Transient(errors.New("injected: the driver is away"))
)

// errLost marks the errors after which the driver may have carried out a call, or may do so later.
const errLost = errors.ConstError("lost")

// askDriver carries out an operation of the provider, or lets it fail.
func (w *world) askDriver(in *incarnation, c call, l *luck) (any, error) {
	switch c.op {
	case creating:
		return w.createAtDriver(in, c, l)
	case attaching:
		if r := w.requests[storageOf(c.key)]; r == nil || r.destroying {
			return nil, errors.Errorf("%s is not there to be attached", c.key)
		}
	case destroying:
		if r := w.requests[c.key]; r == nil || r.id != c.args {
			return nil, nil
		}
		if w.things[c.key] == nil {
			w.failed[hosted+" has deleted it already"]++
		}
		w.requests[c.key].destroying = true
		_, err := w.callDriver(in, c, false, l)
		if err == nil {
			delete(w.requests, c.key)
		}
		return nil, err
	}
	return w.callDriver(in, c, false, l)
}

// createAtDriver makes a volume by the request that is recorded for it. If no earlier attempt can
// have made it, and this one has not, the record is removed.
func (w *world) createAtDriver(in *incarnation, c call, l *luck) (any, error) {
	p := c.args.(storage.VolumeParams)
	r := w.requests[c.key]
	first := r == nil
	if first {
		r = &request{id: w.next(hosted, c.key), size: p.Size, owner: storage.OwnerOf(p.ResourceTags)}
		w.requests[c.key] = r
	} else if r.size != p.Size {
		w.failed[hosted+" is asked as before, although the size has changed"]++
	}
	_, err := w.callDriver(in, c, !first, l)
	switch {
	case err == nil:
		t := w.things[c.key]
		t.size = max(t.size, p.Size)
		return storage.CreateVolumesResult{Volume: &storage.Volume{Tag: p.Tag, VolumeInfo: t.volumeInfo()}}, nil
	case errors.Is(err, storage.ErrInProgress), errors.Is(err, errLost):
		return nil, err
	case first:
		delete(w.requests, c.key)
		return nil, storage.NothingMade(err)
	case storage.IsPermanent(err):
		w.failed[hosted+" refuses what it may have made"]++
	}
	return nil, errDriver // the record stays
}

// callDriver calls the driver, which ends a call that goes on for the volume before it carries out
// another one. again: it has been asked for the volume before.
func (w *world) callDriver(in *incarnation, c call, again bool, l *luck) (any, error) {
	key := c.op + " " + c.key
	for _, other := range sortedKeys(w.going) {
		g := w.going[other]
		if g.source != hosted || storageOf(g.key) != storageOf(c.key) {
			continue
		}
		if !g.done && !w.calm && !l.once(3) {
			if other == key {
				g.args, g.by = c.args, in // the answer to the first call may have been lost
			}
			return nil, storage.InProgress(errors.Errorf("injected: the driver is at work: %s", other))
		}
		if !g.done {
			w.finish(g, l)
		}
		delete(w.going, other)
	}
	n := l.roll(24)
	if w.mood > 0 && l.once(3) {
		n = int(w.mood)
	}
	// Most histories have few of these, and otherwise few would have what follows from them.
	switch {
	case c.op != creating && c.op != destroying || !l.once(2):
	case again:
		n = 20 // the request is not valid any more
	default:
		n = 12 + 2*l.roll(2)
	}
	lost := errDriver
	if n%2 == 0 {
		lost = errDriverAway
	}
	switch n {
	case 12, 13:
		if _, err := c.do(); err == nil {
			w.failed[hosted+" carries out a call that is lost: "+c.op]++
		}
		return nil, errors.WithType(lost, errLost)
	case 14, 15:
		w.failed[hosted+" carries out a call later: "+c.op]++
		w.going[key] = &going{call: c, by: in}
		return nil, errors.WithType(lost, errLost)
	case 16, 17:
		return nil, errors.WithType(lost, errLost)
	case 18, 19:
		return nil, errDriver
	case 20, 21:
		if c.op == creating || !w.isDone(c) {
			return nil, errPermanent
		}
	case 22, 23:
		w.going[key] = &going{call: c, by: in}
		return nil, storage.ErrInProgress
	}
	return c.do()
}

// ownersAtDriver returns what the provider has recorded.
func (w *world) ownersAtDriver() (objects []storage.OwnedObject) {
	for _, tag := range sortedKeys(w.requests) {
		r := w.requests[tag]
		o := storage.OwnedObject{ID: r.id, Size: r.size, Incomplete: true}
		owner := r.owner
		if t := w.things[tag]; t != nil {
			o.Size, o.Attached, o.Incomplete, owner = t.size, len(t.at) > 0, false, t.owner
		}
		o.ResourceTags = map[string]string{storage.ModelUUIDTag: owner.ModelUUID, storage.EntityUUIDTag: owner.EntityUUID}
		objects = append(objects, o)
	}
	return objects
}
