package state

import (
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
)

// Records and keys contain tags as text, and the code uses them in that form: parsing a tag,
// as package names does, takes regular expressions. Tags from outside the package or from the
// store are validated.

// entityTag is the text of a names.VolumeTag or names.FilesystemTag.
type entityTag string

// machineTag is the text of a names.MachineTag.
type machineTag string

// newEntityTag returns an error unless the tag is of a volume or filesystem.
func newEntityTag(tag names.Tag) (entityTag, error) {
	switch tag.(type) {
	case names.VolumeTag, names.FilesystemTag:
		return entityTag(tag.String()), nil
	}
	return "", notEntity(tag)
}

func notEntity(tag names.Tag) error {
	return errors.NewNotValid(nil, names.ReadableString(tag)+" is neither a volume nor a filesystem")
}

// parseEntityTag is newEntityTag for text that may not be a tag.
func parseEntityTag(text string) (entityTag, error) {
	tag := entityTag(text)
	if isSimple(text) && (tag.kind() == names.VolumeTagKind || tag.kind() == names.FilesystemTagKind) {
		return tag, nil
	}
	parsed, err := names.ParseTag(text)
	if err != nil {
		return "", errors.NewNotValid(err, "")
	}
	return newEntityTag(parsed)
}

// parseTagOf is parseEntityTag for a tag of one kind.
func parseTagOf(kind, text string) (entityTag, error) {
	tag, err := parseEntityTag(text)
	if err == nil && tag.kind() != kind {
		return "", wrongKind(tag, kind)
	}
	return tag, err
}

func wrongKind(tag entityTag, kind string) error {
	return errors.NewNotValid(nil, tag.String()+" is not a "+kind)
}

// parseMachineTag returns an error unless the text is a machine's tag.
func parseMachineTag(text string) (machineTag, error) {
	if number, ok := strings.CutPrefix(text, names.MachineTagKind+"-"); ok && isNumber(number) {
		return machineTag(text), nil
	}
	tag, err := names.ParseMachineTag(text)
	if err != nil {
		return "", errors.NewNotValid(err, "")
	}
	return machineTag(tag.String()), nil
}

// isSimple reports whether the text is KIND-NUMBER or KIND-MACHINE-NUMBER, where the machine
// is not a container. Most tags are.
func isSimple(tag string) bool {
	_, id, _ := strings.Cut(tag, "-")
	first, second, bound := strings.Cut(id, "-")
	return isNumber(first) && (!bound || isNumber(second))
}

func isNumber(s string) bool {
	for _, char := range []byte(s) {
		if char < '0' || char > '9' {
			return false
		}
	}
	return s == "0" || s != "" && s[0] != '0'
}

// kind returns names.VolumeTagKind or names.FilesystemTagKind.
func (t entityTag) kind() string {
	kind, _, _ := strings.Cut(string(t), "-")
	return kind
}

func (t entityTag) tag() names.Tag {
	if t.kind() == names.VolumeTagKind {
		return names.NewVolumeTag(t.id())
	}
	return names.NewFilesystemTag(t.id())
}

// id returns the ID of the volume or filesystem.
func (t entityTag) id() string {
	if isSimple(string(t)) {
		_, id, _ := strings.Cut(string(t), "-")
		return strings.Replace(id, "-", "/", 1)
	}
	tag, _ := names.ParseTag(string(t)) // the tag is validated
	return tag.Id()
}

// String returns the entity's name for messages, such as "volume 0".
func (t entityTag) String() string { return t.kind() + " " + t.id() }

// scope returns the scope that the volume or filesystem belongs to.
func (t entityTag) scope() string {
	_, id, _ := strings.Cut(string(t), "-")
	end := strings.LastIndexByte(id, '-')
	// The IDs of machines begin with a digit, those of units with a letter.
	if end < 0 || id[0] < '0' || id[0] > '9' {
		return environScope
	}
	return names.MachineTagKind + "-" + id[:end]
}

func newMachineTag(tag names.MachineTag) machineTag { return machineTag(tag.String()) }

func (t machineTag) tag() names.MachineTag {
	tag, _ := names.ParseMachineTag(string(t)) // the tag is validated
	return tag
}

// String returns the machine's name for messages, such as "machine 0".
func (t machineTag) String() string { return "machine " + t.tag().Id() }
