package state

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/watcher"
)

// WatchFilesystems returns a watcher of the scope's filesystems. It reports those that are
// new, that have changed in life, that have been attached or detached, that are to grow, or
// that are removed.
func (a *Accessor) WatchFilesystems() (watcher.StringsWatcher, error) {
	return a.st.watchEntities(indexPrefix(a.scope, filesystemIndex))
}

// Filesystems returns the recorded information of provisioned filesystems.
func (a *Accessor) Filesystems(tags []names.FilesystemTag) ([]params.FilesystemResult, error) {
	return viewEach(a, tags, func(r *reader, tag names.FilesystemTag) (params.Filesystem, error) {
		i, e, err := a.readEntity(r, entityTag(tag.String()))
		if err != nil {
			return params.Filesystem{}, err
		}
		info := i.provisionedInfo(e)
		if info == nil {
			return params.Filesystem{}, errors.NotProvisionedf("%s", e.Tag)
		}
		return params.Filesystem{FilesystemTag: string(e.Tag), VolumeTag: i.backing(), Info: params.FilesystemInfo{
			FilesystemId: info.ID,
			Pool:         i.Pool,
			Size:         info.Size,
		}}, nil
	}, func(f params.Filesystem, err *params.Error) params.FilesystemResult {
		return params.FilesystemResult{Result: f, Error: err}
	})
}

// backing returns the tag of the filesystem's backing volume, or "" if it has none.
func (i *instance) backing() string {
	if i.Volume == nil {
		return ""
	}
	return string(i.Volume.Tag)
}

// SetFilesystemInfo records filesystems that have been provisioned, or have grown. The ID of a
// filesystem does not change once it is recorded, and its size does not shrink.
func (a *Accessor) SetFilesystemInfo(filesystems []params.Filesystem) ([]params.ErrorResult, error) {
	return updateEach(a, filesystems, func(tx *txn, f params.Filesystem) error {
		tag, err := parseTagOf(names.FilesystemTagKind, f.FilesystemTag)
		if err != nil {
			return err
		}
		return a.changeEntity(tx, tag, func(i *instance, e *entity) error {
			if err := tx.recordProvisioned(i, e, entityInfo{ID: f.Info.FilesystemId, Size: f.Info.Size}); err != nil {
				return errors.Annotatef(err, "setting info of %s", tag)
			}
			if v := i.Volume; v != nil && v.Info != nil {
				v.Info.New = false
			}
			return nil
		})
	})
}

// FilesystemSizes returns the wanted sizes of filesystems, in MiB.
func (a *Accessor) FilesystemSizes(tags []names.FilesystemTag) ([]params.SizeResult, error) {
	return wantedSizes(a, tags)
}

// FilesystemParams returns the parameters with which to create filesystems. They stay the same
// for the filesystem's whole life, except for the attachment and for a raised size. A
// filesystem on a volume that has yet to grow is requested no larger than the volume, and
// grows with it.
func (a *Accessor) FilesystemParams(tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	return viewEach(a, tags, func(r *reader, tag names.FilesystemTag) (params.FilesystemParams, error) {
		i, e, resourceTags, err := a.readWithTags(r, entityTag(tag.String()))
		if err != nil {
			return params.FilesystemParams{}, err
		}
		p := params.FilesystemParams{
			FilesystemTag: string(e.Tag),
			VolumeTag:     i.backing(),
			Size:          i.Size,
			Provider:      i.Provider,
			Attributes:    r.filesystemAttributes(i),
			Tags:          resourceTags,
			Pool:          r.wirePool(i),
			Origin:        i.filesystemOrigin(),
		}
		if v := i.Volume; v != nil && v.Info != nil {
			p.VolumeNew = v.Info.New
			if v.Info.Size != 0 {
				p.Size = min(p.Size, v.Info.Size)
			}
		}
		if e.Attachment != nil && !e.Attachment.detaching() {
			attachment := filesystemAttachmentParams(r, i, e)
			p.Attachment = &attachment
		}
		return p, nil
	}, func(p params.FilesystemParams, err *params.Error) params.FilesystemParamsResult {
		return params.FilesystemParamsResult{Result: p, Error: err}
	})
}

// RemoveFilesystemParams returns the parameters with which to destroy or release filesystems.
func (a *Accessor) RemoveFilesystemParams(tags []names.FilesystemTag) ([]params.RemoveFilesystemParamsResult, error) {
	return viewEach(a, tags, func(r *reader, tag names.FilesystemTag) (params.RemoveFilesystemParams, error) {
		i, e, err := a.readEntity(r, entityTag(tag.String()))
		if err != nil {
			return params.RemoveFilesystemParams{}, err
		}
		id, err := i.removalID(e)
		// A filesystem that was never recorded cannot hold anyone's data.
		destroy := !i.Release || e.Info == nil
		return params.RemoveFilesystemParams{Provider: i.Provider, FilesystemId: id, Destroy: destroy, Pool: r.wirePool(i)}, err
	}, func(p params.RemoveFilesystemParams, err *params.Error) params.RemoveFilesystemParamsResult {
		return params.RemoveFilesystemParamsResult{Result: p, Error: err}
	})
}
