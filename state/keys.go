package state

import (
	"strings"

	"github.com/juju/names/v5"
)

// Keys are made of components between slashes. Tags stand in them as strings, which
// have no slash. What is watched on its own ends its prefix with a slash.
const (
	schemaKey      = "schema"
	identityKey    = "identity"
	fingerprintKey = "fingerprint"
	copyKey        = "copy"
	unstampedKey   = "unstamped"
	addedKey       = "added"
	environPrefix  = "environ/"
	environKey     = environPrefix + "config"
	poolPrefix     = "pool/"
	storagePrefix  = "storage/"
	historyPrefix  = "history/"
	importPrefix   = "importing/"
)

// sequenceKey has the next number of volumes or filesystems.
func sequenceKey(kind string) string { return "sequence/" + kind }

// importKey has the note of an import from a source, by its provider.
func importKey(provider, source string) string { return importPrefix + provider + "/" + source }

func machinePrefix(machine machineTag) string { return "machine/" + string(machine) + "/" }

func machineKey(machine machineTag) string { return machinePrefix(machine) + "machine" }

func blockDevicePrefix(machine machineTag) string { return "blockdevice/" + string(machine) + "/" }

func devicesKey(machine machineTag) string { return blockDevicePrefix(machine) + "devices" }

// matchesKey has a count, which goes up when a volume becomes known by other signs.
func matchesKey(machine machineTag) string { return blockDevicePrefix(machine) + "matches" }

func poolKey(name string) string { return poolPrefix + name }

// storageKey takes a name with a slash too: no name is another's prefix for that,
// since names are never watched one by one.
func storageKey(name string) string { return storagePrefix + name }

func historyKey(tag entityTag) string { return historyPrefix + string(tag) }

// The kinds of index entries.
const (
	volumeIndex               = names.VolumeTagKind
	filesystemIndex           = names.FilesystemTagKind
	volumeAttachmentIndex     = volumeIndex + attachmentSuffix
	filesystemAttachmentIndex = filesystemIndex + attachmentSuffix
	planIndex                 = "plan"
	importedIndex             = "imported"
	providerIDIndex           = "given"

	attachmentSuffix = "-attachment"
)

// retryPrefix is of the requests to a scope's worker to try something again.
func retryPrefix(scope string) string { return "retry/" + scope + "/" }

// formatPrefix is of the requests to a scope's worker to format volumes whatever is on them.
func formatPrefix(scope string) string { return "format/" + scope + "/" }

// environScope is the scope of what is not bound to a machine. The scope of what is
// bound to one is the machine's tag.
const environScope = "environ"

func indexPrefix(scope, kind string) string { return "scope/" + scope + "/" + kind + "/" }

// entityKey is the index entry of a volume or filesystem.
func entityKey(tag entityTag) string {
	return indexPrefix(tag.scope(), tag.kind()) + string(tag)
}

// attachmentKey is the index entry of the attachment of a volume or filesystem.
func attachmentKey(machine machineTag, tag entityTag) string {
	return indexPrefix(tag.scope(), tag.kind()+attachmentSuffix) + string(machine) + "/" + string(tag)
}

// planKey is the index entry of the plan of a volume attachment. Plans are always
// carried out by the machine.
func planKey(machine machineTag, tag entityTag) string {
	return indexPrefix(string(machine), planIndex) + string(machine) + "/" + string(tag)
}

// importedKey is the index entry of what a provider has taken over, by the provider's
// id: it is of one instance only.
func importedKey(provider, id string) string { return importedIndex + "/" + provider + "/" + id }

// providerIDKey is the index entry of an ID that the provider has chosen. Within a namespace,
// SCOPE/KIND, only one volume or filesystem has it.
func providerIDKey(namespace, provider, id string) string {
	return providerIDIndex + "/" + namespace + "/" + provider + "/" + id
}

// lastComponent returns what follows the last slash.
func lastComponent(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }
