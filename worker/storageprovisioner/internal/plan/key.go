package plan

import (
	"cmp"
	"fmt"

	"github.com/juju/names/v5"
)

// Kind says what a key names: one of the five kinds of entity that operations
// act on, or one of the two kinds of fact that they only wait for.
type Kind uint8

const (
	Volume Kind = iota + 1
	Filesystem
	VolumeAttachment
	FilesystemAttachment
	// Plan is an attachment plan: what the worker's machine does itself to make
	// an attached volume visible. It is carried out and undone as an attachment
	// is made and unmade, and depends on the volume's attachment.
	Plan

	// Machine is a machine, which becomes provisioned.
	Machine
	// Device is the block device of a volume on the worker's machine.
	Device

	kinds
)

var kindNames = [kinds]string{
	"", "volume", "filesystem", "volume attachment", "filesystem attachment", "attachment plan of volume",
	"machine", "block device of volume",
}

func (k Kind) String() string {
	return kindNames[k]
}

// Storage returns what an attachment of this kind attaches; a kind that is no
// attachment stands for itself.
func (k Kind) Storage() Kind {
	switch k {
	case VolumeAttachment, Plan:
		return Volume
	case FilesystemAttachment:
		return Filesystem
	}
	return k
}

// Attachment reports whether the kind is one that is attached and detached.
func (k Kind) Attachment() bool {
	return k == VolumeAttachment || k == FilesystemAttachment || k == Plan
}

// Key identifies one entity or fact.
type Key struct {
	Kind Kind
	// ID is the id of the volume's or filesystem's tag; for a machine, empty.
	ID string
	// Host is the tag of the machine or unit, for a machine, for attachments and
	// for plans; else empty.
	Host string
}

// Storage returns the key of what an attachment attaches; a volume's or
// filesystem's own key otherwise.
func (k Key) Storage() Key {
	return Key{Kind: k.Kind.Storage(), ID: k.ID}
}

// Tag returns the tag of a volume or filesystem, or of what an attachment attaches. It
// takes long to make: what the core gives out has it.
func (k Key) Tag() names.Tag {
	if k.Kind.Storage() == Filesystem {
		return names.NewFilesystemTag(k.ID)
	}
	return names.NewVolumeTag(k.ID)
}

func (k Key) String() string {
	switch {
	case k.ID == "":
		return k.Host
	case k.Host == "":
		return fmt.Sprintf("%s %s", k.Kind, k.ID)
	}
	return fmt.Sprintf("%s %s on %s", k.Kind, k.ID, k.Host)
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Host, b.Host))
}

// MachineKey returns the key of the fact that a machine is provisioned.
func MachineKey(host string) Key {
	return Key{Kind: Machine, Host: host}
}

// DeviceKey returns the key of the fact that a volume's block device is known.
func DeviceKey(volume string) Key {
	return Key{Kind: Device, ID: volume}
}

// Op is an operation on an entity.
type Op uint8

const (
	None Op = iota
	// Remove removes the entity from the state; no provider is called.
	Remove
	// The others are calls of a provider, in the order in which they go when
	// several are due for one source: what frees comes before what takes.
	Destroy
	Create
	Detach
	Attach
	Resize
	// Check looks whether what is attached still is as it was attached.
	Check

	ops
)

var opNames = [...]string{"none", "remove", "destroy", "create", "detach", "attach", "resize", "check"}

func (o Op) String() string {
	return opNames[o]
}

// Life is where an entity is in its life, as the state has it.
type Life uint8

const (
	// Gone is an entity that the state does not have.
	Gone Life = iota
	Alive
	Dying
	Dead
)

// Class says what this worker may do about an entity.
type Class uint8

const (
	// Ours is created, attached, detached and destroyed by this worker.
	Ours Class = iota
	// Static is made together with its machine, by a provider that makes none
	// at other times: it is never created nor attached here, and is removed
	// from the state without a call.
	Static
	// Foreign is left alone: another worker's.
	Foreign
)

// Source names the source that an operation is handed to: a provider's of one
// kind of storage, or one of the worker's own: of filesystems on volumes, and of
// attachment plans, which for Provider has the type of the device.
type Source struct {
	Kind     Kind
	Provider string
	Managed  bool
	// Pool is the pool that it is of, where its provider has a source for each.
	Pool string
}

// Managed is the source of volume-backed filesystems.
var Managed = Source{Managed: true}

func (s Source) String() string {
	if s.Managed {
		return "managed filesystems"
	}
	if s.Kind == Plan {
		return s.Provider + " attachment plans"
	}
	of := ""
	if s.Pool != "" {
		of = " of pool " + s.Pool
	}
	return fmt.Sprintf("%s %ss%s", s.Provider, s.Kind, of)
}
