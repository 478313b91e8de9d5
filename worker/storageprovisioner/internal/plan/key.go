package plan

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/juju/names/v5"
)

// Kind is the kind of what a key names: one of the five kinds of entity that operations act
// on, or one of the two kinds of fact that operations only wait for.
type Kind uint8

const (
	Volume Kind = iota + 1
	Filesystem
	VolumeAttachment
	FilesystemAttachment
	// Plan is an attachment plan: what the worker's machine does itself to make an attached
	// volume visible. It is carried out and undone like an attachment, and depends on the
	// volume's attachment.
	Plan

	// Machine is a machine that becomes provisioned.
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

// Storage returns the kind of storage that an attachment of this kind attaches; any other kind
// returns itself.
func (k Kind) Storage() Kind {
	switch k {
	case VolumeAttachment, Plan:
		return Volume
	case FilesystemAttachment:
		return Filesystem
	}
	return k
}

// Attachment reports whether entities of the kind are attached and detached.
func (k Kind) Attachment() bool {
	return k == VolumeAttachment || k == FilesystemAttachment || k == Plan
}

// Key identifies one entity or fact.
type Key struct {
	Kind Kind
	// ID is the ID in the tag of the volume or filesystem; empty for a machine.
	ID string
	// Host is the tag of the machine or unit of an attachment or plan, or of the machine that
	// the key names; else empty.
	Host string
}

// Storage returns the key of the volume or filesystem that an attachment attaches; the key of
// a volume or filesystem returns itself.
func (k Key) Storage() Key {
	return Key{Kind: k.Kind.Storage(), ID: k.ID}
}

// Tag returns the tag of a volume or filesystem, or of the one that an attachment attaches. It
// is slow; a [Subject] from the core has the tag.
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
	// The other operations are provider calls, in the order in which they run when several are
	// due for one source: those that free resources come before those that take them.
	Destroy
	Create
	Detach
	Attach
	Resize
	// Check checks whether what is attached is still as it was attached.
	Check

	ops
)

var opNames = [...]string{"none", "remove", "destroy", "create", "detach", "attach", "resize", "check"}

func (o Op) String() string {
	return opNames[o]
}

// Life is an entity's life, as the state has it.
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
	// Static is made together with its machine, by a static provider: this worker never
	// creates or attaches it, and removes it from the state without a provider call.
	Static
	// Foreign belongs to another worker, and is left alone.
	Foreign
)

// Source names the source that carries out an operation: a provider's source of one kind of
// storage, or a source of the worker itself, of managed filesystems or of attachment plans.
// For attachment plans, Provider is the device type.
type Source struct {
	Kind     Kind
	Provider string
	Managed  bool
	// Pool is the source's pool, if the provider has a source for each pool.
	Pool string
}

// Managed is the source of managed filesystems.
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

// MaxNamed is how many entities a message names at most. Up to as many entities with the same
// error get a message each.
const MaxNamed = 10

// JoinKeys names entities in a message, the first MaxNamed of them.
func JoinKeys(keys []Key) string {
	var names []string
	for _, key := range keys[:min(len(keys), MaxNamed)] {
		names = append(names, key.String())
	}
	if more := len(keys) - MaxNamed; more > 0 {
		names[MaxNamed-1] = fmt.Sprintf("%s and %d more", names[MaxNamed-1], more)
	}
	return strings.Join(names, ", ")
}
