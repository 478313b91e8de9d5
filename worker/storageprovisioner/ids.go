package storageprovisioner

import (
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/byid"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// maxIDLength is how long an id or a tag may be, in bytes. To find out whether a longer one
// is valid takes time, and nobody has one.
const maxIDLength = 300

// attachmentKey returns the key of an attachment, which a watcher calls so.
func (l *loop) attachmentKey(kind plan.Kind, id params.MachineStorageId) (plan.Key, error) {
	if err := checkLength(id.MachineTag); err != nil {
		return plan.Key{}, err
	}
	if !l.core.KnowsHost(id.MachineTag) {
		if _, err := names.ParseTag(id.MachineTag); err != nil {
			return plan.Key{}, errors.Trace(err)
		}
	}
	storageID, err := parseStorageTag(kind.Storage(), id.AttachmentTag)
	return plan.Key{Kind: kind, ID: storageID, Host: id.MachineTag}, err
}

// checkLength returns an error for a tag that is too long to be valid.
func checkLength(tag string) error {
	if len(tag) > maxIDLength {
		return errors.Errorf("%q is not a valid tag", truncateTo(tag, maxIDLength))
	}
	return nil
}

// parseVolumeTag returns the tag of a volume, and the id.
func parseVolumeTag(volumeTag string) (names.VolumeTag, string, error) {
	id, err := parseStorageTag(plan.Volume, volumeTag)
	if err != nil {
		return names.VolumeTag{}, "", err
	}
	return names.NewVolumeTag(id), id, nil
}

// parseStorageTag returns the id of the volume or filesystem with a tag. To parse that
// takes longer than all else that is done about an entity at a time, and there is no need
// for it where the id is a number, as most are.
func parseStorageTag(kind plan.Kind, tag string) (string, error) {
	if of, id, _ := strings.Cut(tag, "-"); of == kind.String() && byid.IsNumber(id) {
		return id, nil
	}
	if err := checkLength(tag); err != nil {
		return "", err
	}
	var parsed names.Tag
	var err error
	if kind == plan.Volume {
		parsed, err = names.ParseVolumeTag(tag)
	} else {
		parsed, err = names.ParseFilesystemTag(tag)
	}
	if err != nil {
		return "", errors.Trace(err)
	}
	return parsed.Id(), nil
}
