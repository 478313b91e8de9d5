package storageprovisioner

import (
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/byid"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// To parse a tag takes longer than all else that is done about an entity at a time. What
// is known already, and what is a number as most ids are, need not be parsed.

// attachmentKey returns the key of an attachment, which a watcher calls so.
func (l *loop) attachmentKey(kind plan.Kind, id params.MachineStorageId) (plan.Key, error) {
	if !l.core.KnowsHost(id.MachineTag) {
		if _, err := names.ParseTag(id.MachineTag); err != nil {
			return plan.Key{}, errors.Trace(err)
		}
	}
	key := plan.Key{Kind: kind, Host: id.MachineTag}
	of, suffix, _ := strings.Cut(id.AttachmentTag, "-")
	if key.ID = suffix; of == kind.Storage().String() && (byid.IsNumber(suffix) || l.core.Knows(key.Storage())) {
		return key, nil
	}
	var tag names.Tag
	var err error
	if kind.Storage() == plan.Volume {
		tag, err = names.ParseVolumeTag(id.AttachmentTag)
	} else {
		tag, err = names.ParseFilesystemTag(id.AttachmentTag)
	}
	if err != nil {
		return plan.Key{}, errors.Trace(err)
	}
	key.ID = tag.Id()
	return key, nil
}

// parseVolumeTag returns the tag of a volume, and the id.
func parseVolumeTag(volumeTag string) (names.VolumeTag, string, error) {
	if id, ok := strings.CutPrefix(volumeTag, names.VolumeTagKind+"-"); ok && byid.IsNumber(id) {
		return names.NewVolumeTag(id), id, nil
	}
	tag, err := names.ParseVolumeTag(volumeTag)
	if err != nil {
		return names.VolumeTag{}, "", errors.Trace(err)
	}
	return tag, tag.Id(), nil
}
