package state

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
)

// SetAttempts notes that workers are about to make volumes, filesystems or attachments, or
// that an attempt has ended: either it made nothing, or it may have left something. An attempt
// to make a volume covers the attachment that it may have made with the volume.
func (a *Accessor) SetAttempts(attempts []params.Attempt) ([]params.ErrorResult, error) {
	return updateEach(a, attempts, func(tx *txn, at params.Attempt) error {
		if at.Id.MachineTag != "" {
			return a.changeAttachment(tx, at.Id, "", func(_ *instance, e *entity) error {
				e.Attachment.Attempted = at.Attempted
				return nil
			})
		}
		tag, err := parseEntityTag(at.Id.AttachmentTag)
		if err != nil {
			return err
		}
		return a.changeEntity(tx, tag, func(i *instance, e *entity) error {
			if at.Attempted && !at.Ended && !i.mayMake(e) {
				return errors.NewNotYetAvailable(nil, tag.String()+" is being detached: its volume can no longer be used")
			}
			e.Attempted, e.AttemptEnded = at.Attempted, at.Attempted && at.Ended
			if a := e.Attachment; a != nil && tag.kind() == names.VolumeTagKind && a.Info == nil {
				a.Attempted = at.Attempted
			}
			return nil
		})
	})
}

// Attempts reports, for each entity or attachment that is not recorded as made, whether a
// worker has set out to make it.
func (a *Accessor) Attempts(ids []params.MachineStorageId) ([]params.AttemptResult, error) {
	return viewEach(a, ids, func(r *reader, id params.MachineStorageId) (bool, error) {
		if id.MachineTag != "" {
			_, e, err := a.readAttachment(r, id, "")
			if err != nil {
				return false, err
			}
			return e.Attachment.Attempted && e.Attachment.Info == nil, nil
		}
		tag, err := parseEntityTag(id.AttachmentTag)
		if err != nil {
			return false, err
		}
		_, e, err := a.readEntity(r, tag)
		if err != nil {
			return false, err
		}
		return e.Attempted && e.Info == nil, nil
	}, func(attempted bool, err *params.Error) params.AttemptResult {
		return params.AttemptResult{Attempted: attempted, Error: err}
	})
}
