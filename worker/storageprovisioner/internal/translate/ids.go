package translate

import (
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/byid"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// MaxIDLength is the length limit of IDs and tags, in bytes. Longer ones are refused without
// parsing, which takes long.
const MaxIDLength = 300

// CheckLength returns an error for a tag that is too long to be valid.
func CheckLength(tag string) error {
	if len(tag) > MaxIDLength {
		return errors.Errorf("%q is not a valid tag", guard.TruncateTo(tag, MaxIDLength))
	}
	return nil
}

// parseVolumeTag returns the tag of a volume and its ID.
func parseVolumeTag(volumeTag string) (names.VolumeTag, string, error) {
	id, err := ParseStorageTag(plan.Volume, volumeTag)
	if err != nil {
		return names.VolumeTag{}, "", err
	}
	return names.NewVolumeTag(id), id, nil
}

// ParseStorageTag returns the ID of the volume or filesystem with a tag. Most IDs are numbers,
// which need no parsing. Parsing would take longer than everything else that is done about an
// entity at a time.
func ParseStorageTag(kind plan.Kind, tag string) (string, error) {
	if of, id, _ := strings.Cut(tag, "-"); of == kind.String() && byid.IsNumber(id) {
		return id, nil
	}
	if err := CheckLength(tag); err != nil {
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

// TagID returns the ID in the tag of a volume or filesystem. Like ParseStorageTag it avoids
// regular expressions, which the method Id of a tag uses.
func TagID(tag names.Tag) string {
	if _, id, _ := strings.Cut(tag.String(), "-"); byid.IsNumber(id) {
		return id
	}
	return tag.Id()
}

// attachmentIDs returns the IDs with which accessors identify attachments.
func attachmentIDs(facts []*plan.Fact) []params.MachineStorageId {
	ids := make([]params.MachineStorageId, len(facts))
	for i, f := range facts {
		ids[i] = attachmentID(f.Subject)
	}
	return ids
}

func attachmentID(s plan.Subject) params.MachineStorageId {
	return params.MachineStorageId{
		MachineTag:    s.Key().Host,
		AttachmentTag: s.TagText(),
	}
}
