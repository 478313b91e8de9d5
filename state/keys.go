package state

import (
	"strings"

	"github.com/juju/names/v5"
)

// Keys are made of components between slashes. Tags stand in them as strings, which
// have no slash. What is watched on its own ends its prefix with a slash.
const (
	schemaKey             = "schema"
	environPrefix         = "environ/"
	environKey            = environPrefix + "config"
	poolPrefix            = "pool/"
	storagePrefix         = "storage/"
	volumeSequenceKey     = "sequence/volume"
	historyPrefix         = "history/"
	filesystemSequenceKey = "sequence/filesystem"
)

func machinePrefix(machine names.MachineTag) string { return "machine/" + machine.String() + "/" }

func machineKey(machine names.MachineTag) string { return machinePrefix(machine) + "machine" }

func blockDevicePrefix(machine names.MachineTag) string {
	return "blockdevice/" + machine.String() + "/"
}

func devicesKey(machine names.MachineTag) string { return blockDevicePrefix(machine) + "devices" }

// matchesKey has a count, which goes up when a volume becomes known by other signs.
func matchesKey(machine names.MachineTag) string { return blockDevicePrefix(machine) + "matches" }

func poolKey(name string) string { return poolPrefix + name }

// storageKey takes a name with a slash too: no name is another's prefix for that,
// since names are never watched one by one.
func storageKey(name string) string { return storagePrefix + name }

func historyKey(tag names.Tag) string { return historyPrefix + tag.String() }

// The kinds of index entries.
const (
	volumeIndex               = "volume"
	filesystemIndex           = "filesystem"
	volumeAttachmentIndex     = "volume-attachment"
	filesystemAttachmentIndex = "filesystem-attachment"
	planIndex                 = "plan"
)

// environScope is the scope of what is not bound to a machine. The scope of what is
// bound to one is the machine's tag.
const environScope = "environ"

func indexPrefix(scope, kind string) string { return "scope/" + scope + "/" + kind + "/" }

// entityKey is the index entry of a volume or filesystem.
func entityKey(tag names.Tag) string {
	return indexPrefix(scopeOf(tag), tag.Kind()) + tag.String()
}

// attachmentKey is the index entry of the attachment of a volume or filesystem.
func attachmentKey(machine names.MachineTag, tag names.Tag) string {
	return indexPrefix(scopeOf(tag), tag.Kind()+"-attachment") + machine.String() + "/" + tag.String()
}

// planKey is the index entry of the plan of a volume attachment. Plans are always
// carried out by the machine.
func planKey(machine names.MachineTag, tag names.Tag) string {
	return indexPrefix(machine.String(), planIndex) + machine.String() + "/" + tag.String()
}

// importedKey is the index entry of what a provider has taken over, by the provider's
// id: it is of one instance only.
func importedKey(provider, id string) string { return "imported/" + provider + "/" + id }

// scopeOf returns the scope that the volume or filesystem belongs to.
func scopeOf(tag names.Tag) string {
	var machine names.MachineTag
	var bound bool
	switch tag := tag.(type) {
	case names.VolumeTag:
		machine, bound = names.VolumeMachine(tag)
	case names.FilesystemTag:
		machine, bound = names.FilesystemMachine(tag)
	}
	if bound {
		return machine.String()
	}
	return environScope
}

// lastComponent returns what follows the last slash.
func lastComponent(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }
