package state

import (
	"hash/fnv"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/juju/names/v5"
)

// Keys are made of components separated by slashes. Tags are written in their string form,
// which has no slash. The prefix of anything that is watched ends with a slash.
const (
	// SchemaKey is the key without which a store that is not empty is refused: what copies a store writes
	// it last.
	SchemaKey = "schema"

	identityKey    = "identity"
	fingerprintKey = "fingerprint"
	copyKey        = "copy"
	unstampedKey   = "unstamped"
	addedKey       = "added"
	environPrefix  = "environ/"
	environKey     = environPrefix + "config"
	poolPrefix     = "pool/"
	storagePrefix  = "storage/"
	eventsPrefix   = "events/"
	gonePrefix     = "gone/"
	importPrefix   = "importing/"
	tokenPrefix    = "token/"
	authorityKey   = "authority"
	callPrefix     = "call/"
	userPrefix     = "user/"
	machinesPrefix = "machine/"
	tasksPrefix    = "tasks/"
	claimPrefix    = "claim/"
	snapshotPrefix = "snapshot/"

	// machineComponent is the last component of the key of a machine's record.
	machineComponent = "machine"
)

// tokenKey is the key of a token, by its ID.
func tokenKey(id string) string { return tokenPrefix + id }

// tasksKey is the key of the list of a machine's tasks.
func tasksKey(machine machineTag) string { return tasksPrefix + string(machine) }

// taskPrefix is the prefix of what the watchers of a machine's tasks watch.
func taskPrefix(machine machineTag) string { return "task/" + string(machine) + "/" }

func taskKey(machine machineTag, id string) string { return taskPrefix(machine) + id }

// deletionKey is the key of the ID of the task that destroys the object with a UUID.
func deletionKey(uuid string) string { return "deletion/" + uuid }

// userKey is the key of a user, by name.
func userKey(name string) string { return userPrefix + name }

// claimKey is the key of a claim, by name.
func claimKey(name string) string { return claimPrefix + name }

// snapshotKey is the key of a snapshot, by name, and snapshotUUIDKey that of the index entry with its name.
func snapshotKey(name string) string { return snapshotPrefix + name }

func snapshotUUIDKey(uuid string) string { return "snapshot-uuid/" + uuid }

// sequenceKey is the key of the next number of volumes, filesystems or machines.
func sequenceKey(kind string) string { return "sequence/" + kind }

// importKey is the key of the note of an import, by provider and source.
func importKey(provider, source string) string { return importPrefix + provider + "/" + source }

func machinePrefix(machine machineTag) string { return machinesPrefix + string(machine) + "/" }

func machineKey(machine machineTag) string { return machinePrefix(machine) + machineComponent }

// sessionPrefix is the prefix of what the watchers of a machine's session watch.
func sessionPrefix(machine machineTag) string { return "session/" + string(machine) + "/" }

func sessionKey(machine machineTag) string { return sessionPrefix(machine) + "session" }

const presencePrefix = "presence/"

func presenceKey(machine machineTag) string { return presencePrefix + string(machine) }

// spaceKey is the key of the space of a machine.
func spaceKey(machine machineTag) string { return "space/" + string(machine) }

// driversKey is the key of what the drivers of a machine say about it.
func driversKey(machine machineTag) string { return "drivers/" + string(machine) }

// machineNameKey is the key of the tag of the machine with a name.
func machineNameKey(name string) string { return "named/" + name }

const blockDevicesPrefix = "blockdevice/"

// blockDevicePrefix is the prefix of what the watchers of a machine's block devices watch.
func blockDevicePrefix(machine machineTag) string { return blockDevicesPrefix + string(machine) + "/" }

// changesKey is the key of a count that is incremented when the machine's block devices change.
func changesKey(machine machineTag) string { return blockDevicePrefix(machine) + "changes" }

// matchesKey is the key of a count that is incremented when the attributes that identify a
// volume's block device change.
func matchesKey(machine machineTag) string { return blockDevicePrefix(machine) + "matches" }

// devicePrefix is the prefix of the machine's block devices, by name.
func devicePrefix(machine machineTag) string { return "device/" + string(machine) + "/" }

func deviceKey(machine machineTag, name string) string { return devicePrefix(machine) + name }

// bearersKey is the key of the index entry of the block devices that bear a text. Texts may
// share an entry: the full path of a link shares that of its last element, and texts may have
// the same hash, which keeps keys short.
func bearersKey(machine machineTag, text string) string {
	if strings.HasPrefix(text, "/") {
		text = path.Base(text)
	}
	hash := fnv.New32a()
	_, _ = io.WriteString(hash, text) // it never fails
	return "bearers/" + string(machine) + "/" + strconv.FormatUint(uint64(hash.Sum32()), 36)
}

func poolKey(name string) string { return poolPrefix + name }

// storageKey accepts names with a slash too. One name may then be a prefix of another, which
// is harmless because names are not watched individually.
func storageKey(name string) string { return storagePrefix + name }

// historyKey is the key of the statuses of an entity, which versions before the events kept.
func historyKey(tag entityTag) string { return "history/" + string(tag) }

// eventsKey is the key of the events of a storage instance, and goneKey that of the time at which it was
// removed. Like storageKey, they accept names with a slash.
func eventsKey(name string) string { return eventsPrefix + name }

func goneKey(name string) string { return gonePrefix + name }

// The kinds of index entries.
const (
	volumeIndex               = names.VolumeTagKind
	filesystemIndex           = names.FilesystemTagKind
	volumeAttachmentIndex     = volumeIndex + attachmentSuffix
	filesystemAttachmentIndex = filesystemIndex + attachmentSuffix
	planIndex                 = "plan"
	importedIndex             = "imported"
	providerIDIndex           = "given"
	mountPointIndex           = "mount-point"
	unmadeIndex               = "unmade"
	askerIndex                = "asker"
	askedIndex                = "asked"

	attachmentSuffix = "-attachment"
)

// retryPrefix is the prefix of requests to a scope's worker to retry something.
func retryPrefix(scope string) string { return "retry/" + scope + "/" }

// formatPrefix is the prefix of requests to a scope's worker to format volumes whatever they
// contain.
func formatPrefix(scope string) string { return "format/" + scope + "/" }

// environScope is the scope of storage that is not bound to a machine. The scope of storage
// that is bound to one is the machine's tag.
const environScope = "environ"

func indexPrefix(scope, kind string) string { return "scope/" + scope + "/" + kind + "/" }

// entityKey is the key of the index entry of a volume or filesystem.
func entityKey(tag entityTag) string {
	return indexPrefix(tag.scope(), tag.kind()) + string(tag)
}

// attachmentKey is the key of the index entry of an attachment.
func attachmentKey(machine machineTag, tag entityTag) string {
	return indexPrefix(tag.scope(), tag.kind()+attachmentSuffix) + string(machine) + "/" + string(tag)
}

// planKey is the key of the index entry of the plan of a volume attachment. The machine always
// carries out the plan.
func planKey(machine machineTag, tag entityTag) string {
	return indexPrefix(string(machine), planIndex) + string(machine) + "/" + string(tag)
}

// importedKey is the key of the index entry of an imported object, by the provider's ID: only
// one instance can have it.
func importedKey(provider, id string) string { return importedIndex + "/" + provider + "/" + id }

// providerIDKey is the key of the index entry of an ID that the provider has chosen. Within a
// namespace, SCOPE/KIND, only one volume or filesystem has it.
func providerIDKey(namespace, provider, id string) string {
	return providerIDIndex + "/" + namespace + "/" + provider + "/" + id
}

// mountPointPrefix is the prefix of the index entries of mount points on a machine. For those of
// storage that any machine can have, home is empty.
func mountPointPrefix(home string) string { return mountPointIndex + "/" + home }

// mountPointKey is the key of the index entry of the mount point that an instance asks for. No path
// has an empty component, so the name begins after the first one.
func mountPointKey(home, mountPoint, name string) string {
	return mountPointPrefix(home) + mountPoint + "//" + name
}

// unmadeKey is the key of the index entry of an instance whose volume is not made as large as
// wanted.
func unmadeKey(name string) string { return unmadeIndex + "/" + name }

// lastComponent returns the part of key after the last slash.
func lastComponent(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }
