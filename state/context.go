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
		size := 0
		for key, value := range c.Context {
			size += len(key) + len(value)
		}
		if size > maxContext {
			return errors.NewNotValid(nil, fmt.Sprintf("the context of %s has %d bytes: it can have %d", tag, size, maxContext))
		}
		return a.changeEntity(tx, tag, func(_ *instance, e *entity) error {
			if len(c.Context) == 0 && e.Context == nil {
				return nil
			}
			e.Context = c.Context
			return errors.Trace(a.st.checkFeature(&tx.reader, contextsSchema, "storage of CSI drivers that any machine can have"))
		})
	})
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
