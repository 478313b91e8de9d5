package state

import (
	"fmt"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
)

// maxContext bounds the context of a volume, in bytes of keys and values: what the CSI specification
// allows.
const maxContext = 4 << 10

// SetVolumeContexts records what sources need to attach volumes, beside their IDs. The error of a context
// satisfies errors.IsNotValid if it is too large.
func (a *Accessor) SetVolumeContexts(contexts []params.VolumeContext) ([]params.ErrorResult, error) {
	return updateEach(a, contexts, func(tx *txn, c params.VolumeContext) error {
		tag, err := parseTagOf(names.VolumeTagKind, c.VolumeTag)
		if err != nil {
			return err
		}
		return a.changeEntity(tx, tag, func(_ *instance, e *entity) error { return a.st.setContext(tx, e, c.Context) })
	})
}

// setContext records the context of a volume. The error satisfies errors.IsNotValid if it is too large.
func (st *State) setContext(tx *txn, e *entity, context map[string]string) error {
	size := 0
	for key, value := range context {
		size += len(key) + len(value)
	}
	switch {
	case size > maxContext:
		return errors.NewNotValid(nil, fmt.Sprintf("the context of %s has %d bytes: it can have %d", e.Tag, size, maxContext))
	case size == 0 && e.Context == nil:
		return nil
	}
	e.Context = context
	return errors.Trace(st.checkFeature(&tx.reader, contextsSchema, "storage of CSI drivers that any machine can have"))
}

// VolumeContexts returns what was recorded by SetVolumeContexts.
func (a *Accessor) VolumeContexts(tags []names.VolumeTag) ([]params.VolumeContextResult, error) {
	return viewEach(a, tags, func(r *reader, tag names.VolumeTag) (params.VolumeContext, error) {
		_, e, err := a.readEntity(r, entityTag(tag.String()))
		if err != nil {
			return params.VolumeContext{}, err
		}
		return params.VolumeContext{VolumeTag: string(e.Tag), Context: e.Context}, nil
	}, func(c params.VolumeContext, err *params.Error) params.VolumeContextResult {
		return params.VolumeContextResult{Result: c, Error: err}
	})
}
