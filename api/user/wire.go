package user

import (
	"time"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

// Storage is one storage instance as users see it.
type Storage struct {
	// Name is NAME, or NAME/N for one of several instances.
	Name string `json:"name" yaml:"name"`
	// Kind is "block" or "filesystem".
	Kind string `json:"kind" yaml:"kind"`
	// Pool is the name of the pool.
	Pool string `json:"pool" yaml:"pool"`
	// Provider is the provider of the pool, such as loop.
	Provider string `json:"provider" yaml:"provider"`
	// SizeMiB is the requested size until the provider has reported the size that it made.
	SizeMiB uint64 `json:"size-mib" yaml:"size-mib"`
	// WantedMiB is the size that was last requested. Storage with less is to grow; some has
	// more.
	WantedMiB uint64 `json:"wanted-mib" yaml:"wanted-mib"`
	// CannotGrowToMiB is the size to which the storage could not grow; Message gives the
	// reason. The field is omitted if there is no such size.
	CannotGrowToMiB uint64 `json:"cannot-grow-to-mib,omitempty" yaml:"cannot-grow-to-mib,omitempty"`
	// VolumeMiB is the size of the volume if the filesystem on it has less: the volume has grown, and the
	// filesystem has not, or not yet. The field is omitted otherwise.
	VolumeMiB uint64 `json:"volume-mib,omitempty" yaml:"volume-mib,omitempty"`
	// Labels are what users have said about the storage, such as tier: fast.
	Labels map[string]string `json:"labels,omitempty" yaml:"labels,omitempty"`
	// Claim is the name of the claim that has the storage, or has left it if it is Retained.
	Claim string `json:"claim,omitempty" yaml:"claim,omitempty"`
	// Retained says that no claim gets the storage, since it has the data of a claim that was deleted,
	// until a request to offer it.
	Retained bool `json:"retained,omitempty" yaml:"retained,omitempty"`
	// Asker is the program that asked for the storage; nil for storage of users.
	Asker *Asker `json:"asker,omitempty" yaml:"asker,omitempty"`
	// Spec is the file that the agent applies whenever it starts, if that lists the storage.
	Spec string `json:"spec,omitempty" yaml:"spec,omitempty"`
	// From says whose contents the storage got when it was made; nil for storage that was made empty.
	From *Origin `json:"from,omitempty" yaml:"from,omitempty"`
	// Life is "alive", or "dying" from when the storage is to be removed until it is gone.
	Life life.Value `json:"life" yaml:"life"`
	// Revision changes with what is wanted of the storage: its size, its labels, its claim, the machine that it is to be
	// attached to, and whether it is to be removed. It does not change with Status.
	Revision string `json:"revision" yaml:"revision"`
	// Status is "pending", "attaching", "attached", "detaching", "detached", "destroying" or
	// "error".
	Status status.Status `json:"status" yaml:"status"`
	// Message says why the storage is not attached; for attached storage it is a remark.
	Message string `json:"message" yaml:"message"`
	// Since is when Status or Message last changed.
	Since time.Time `json:"since" yaml:"since"`
	// Location is a device path or a mount point, empty if the storage is not attached.
	Location string `json:"location" yaml:"location"`
	// Volume is the ID of the volume; empty if the storage has none.
	Volume string `json:"volume" yaml:"volume"`
	// Filesystem is the ID of the filesystem; empty if the storage has none.
	Filesystem string `json:"filesystem" yaml:"filesystem"`
	// Attachments has the machine that has the storage, or is to have it; none if it is detached.
	Attachments []Attachment `json:"attachments" yaml:"attachments"`
	// Operations are the unfinished operations for the storage, in answers to lists and finds, if the agent
	// or server that answers carries them out itself. A request to look has those of other machines.
	Operations []StorageOperation `json:"operations,omitempty" yaml:"operations,omitempty"`
}

// Origin is a snapshot or storage whose contents other storage got. It may be gone.
type Origin struct {
	// Snapshot is the name of the snapshot; empty if it was none.
	Snapshot string `json:"snapshot,omitempty" yaml:"snapshot,omitempty"`
	// Storage is the name of the storage; empty if it was none.
	Storage string `json:"storage,omitempty" yaml:"storage,omitempty"`
}

// Attachment is the attachment of a storage instance to a machine.
type Attachment struct {
	// Machine is the name of the machine, or its number if it has no name.
	Machine string `json:"machine" yaml:"machine"`
	// Life is "alive", and "dying" while the storage is detached.
	Life life.Value `json:"life" yaml:"life"`
	// Location is a device path or a mount point, empty until the storage is attached.
	Location string `json:"location" yaml:"location"`
	// ReadOnly says that the storage cannot be written to.
	ReadOnly bool `json:"read-only" yaml:"read-only"`
}

// Pool is a named configuration of a provider.
type Pool struct {
	// Name is the name of the pool.
	Name string `json:"name" yaml:"name"`
	// Provider is the provider of the pool, such as loop.
	Provider string `json:"provider" yaml:"provider"`
	// Attributes are the settings of the pool. Each provider has its own.
	Attributes map[string]any `json:"attributes" yaml:"attributes"`
	// Default says that the pool comes with its provider.
	Default bool `json:"default" yaml:"default"`
}

// AddPoolArgs describes a pool to create.
type AddPoolArgs struct {
	// Name is the name of the pool.
	Name string `json:"name"`
	// Provider is the provider of the pool, such as loop.
	Provider string `json:"provider"`
	// Attributes are the settings of the pool. Each provider has its own.
	Attributes map[string]any `json:"attributes"`
	// Replace changes the provider and the attributes of an existing pool.
	Replace bool `json:"replace"`
}

// ApplyArgs is a file to converge to. The agent parses and checks the content itself,
// because it does not trust a client's checks.
type ApplyArgs struct {
	// File is the user's name for the file; errors begin with it.
	File string `json:"file"`
	// Content is the text of the file, in YAML.
	Content string `json:"content"`
	// DryRun requests what would change, without changing anything.
	DryRun bool `json:"dry-run"`
}

// ResizeArgs requests that storage grow.
type ResizeArgs struct {
	// Names are names of storage, as elsewhere.
	Names []string `json:"names"`
	// SizeMiB is the size of each, or, with More, how much to add to the size that was last
	// requested.
	SizeMiB uint64 `json:"size-mib"`
	// More says that SizeMiB is added to the size that was last requested.
	More bool `json:"more"`
}

// RenameArgs requests that storage get another name.
type RenameArgs struct {
	// Name is the full name of the storage: it does not select several.
	Name string `json:"name"`
	// To is the new name, which no storage may have.
	To string `json:"to"`
}

// AttachArgs requests that storage be attached.
type AttachArgs struct {
	// Names are names of storage, as elsewhere.
	Names []string `json:"names"`
	// Machine is the name or number of the machine to attach it to. Empty: the agent's own
	// machine, or the one that the storage is bound to.
	Machine string `json:"machine,omitempty"`
	// Mount is where the filesystem of a detached instance, which is the only one of that name, is mounted
	// from now on. Empty: where it was.
	Mount string `json:"mount,omitempty"`
	// MountOptions are the options with which the filesystem of a detached instance is mounted from now on.
	// Null: those that it has.
	MountOptions *string `json:"mount-options,omitempty"`
}

// MachineStatus says whether a machine's agent is connected.
type MachineStatus string

const (
	// MachineUp is a machine whose agent is connected, or was so a short time ago.
	MachineUp MachineStatus = "up"
	// MachineUnreachable is a machine whose agent has not been connected for some time.
	MachineUnreachable MachineStatus = "unreachable"
	// MachineFenced is a machine that counts as off, since a user has said so.
	MachineFenced MachineStatus = "fenced"
	// MachinePending is a machine whose agent has not connected yet.
	MachinePending MachineStatus = "pending"
)

// EventsArgs selects what happened.
type EventsArgs struct {
	// Names are those of storage: NAME selects NAME/0, NAME/1, and so on, too. Without names, all
	// storage is selected.
	Names []string `json:"names,omitempty"`
	// Since leaves out what happened before.
	Since time.Time `json:"since,omitzero"`
	// Limit leaves out all but the last so many. Zero means 1,000; more than 10,000 are not returned.
	Limit int `json:"limit,omitempty"`
}

// StorageEventList is an answer.
type StorageEventList struct {
	// Events are in the order in which they happened.
	Events []StorageEvent `json:"events"`
}

// StorageEvent is something that happened to storage.
type StorageEvent struct {
	// Time is when it happened.
	Time time.Time `json:"time" yaml:"time"`
	// Storage is the name of the storage.
	Storage string `json:"storage" yaml:"storage"`
	// Number orders the events of a name. No two of them have the same.
	Number uint64 `json:"number" yaml:"number"`
	// Type says what happened. Somebody asked for something: "added", "attach-wanted", "move-wanted",
	// "detach-wanted", "resize-wanted", "remove-wanted", "release-wanted", "claimed", "unclaimed",
	// "offered", "labelled", "from", "snapshot-wanted", "snapshot-delete-wanted", "retry-wanted", "format-wanted",
	// "mount-wanted", "mount-options-wanted", "renamed", "renamed-to". It was done: "made",
	// "imported", "grown", "attached", "detached", "destroyed", "released", "removed", "snapshot-made",
	// "snapshot-deleted". It failed, or has to wait: "error", "recovered", "status", "snapshot-error".
	Type string `json:"type" yaml:"type"`
	// Entity is the volume or filesystem that it happened to, such as "volume 0/1". It is omitted if it
	// happened to the storage as a whole.
	Entity string `json:"entity,omitempty" yaml:"entity,omitempty"`
	// Machine is the name of the machine that it is about, if it is about one.
	Machine string `json:"machine,omitempty" yaml:"machine,omitempty"`
	// SizeMiB is the size, if it is about that.
	SizeMiB uint64 `json:"size-mib,omitempty" yaml:"size-mib,omitempty"`
	// FormerMiB is the size before.
	FormerMiB uint64 `json:"former-size-mib,omitempty" yaml:"former-size-mib,omitempty"`
	// Text is the error or the status, the mount point or the device, the provider's ID, the claim, the
	// labels, or the snapshot.
	Text string `json:"text,omitempty" yaml:"text,omitempty"`
	// By is who asked for it: the name of a user, or the ID of one of the host's, such as "uid 0". It is
	// omitted if nobody did, or if that is not known.
	By string `json:"by,omitempty" yaml:"by,omitempty"`
}

// Machine is a machine as users see it.
type Machine struct {
	// Name is the name of the machine; its number if it has none.
	Name string `json:"name" yaml:"name"`
	// Number identifies the machine. No other machine ever has it.
	Number string `json:"number" yaml:"number"`
	// Status is "up", "unreachable", "fenced" or "pending".
	Status MachineStatus `json:"status" yaml:"status"`
	// LastSeen is when the agent was last connected; it is omitted if it never was.
	LastSeen time.Time `json:"last-seen,omitzero" yaml:"last-seen,omitempty"`
	// Refused is when another agent was last refused because it used a copy of the agent's
	// directory; it is omitted if that never happened.
	Refused time.Time `json:"refused,omitzero" yaml:"refused,omitempty"`
	// InstanceID identifies the machine to providers.
	InstanceID string `json:"instance-id" yaml:"instance-id"`
	// Labels are what users have said about the machine, such as zone: a.
	Labels map[string]string `json:"labels,omitempty" yaml:"labels,omitempty"`
	// Drained says that the machine is to get no storage.
	Drained bool `json:"drained,omitempty" yaml:"drained,omitempty"`
	// Space is the space that the machine has for the storage of providers that keep it there, by
	// provider. It is omitted until the agent has reported it.
	Space map[string]MachineSpace `json:"space,omitempty" yaml:"space,omitempty"`
}

// MachineSpace is the space that a machine has for the storage of a provider. What several providers
// share, such as a disk, is in each of them.
type MachineSpace struct {
	// SizeMiB is the size of what the provider keeps storage on, such as a filesystem or the memory.
	SizeMiB uint64 `json:"size-mib" yaml:"size-mib"`
	// FreeMiB is how much of it is free.
	FreeMiB uint64 `json:"free-mib" yaml:"free-mib"`
}

// LabelMachineArgs changes the labels of a machine.
type LabelMachineArgs struct {
	// Machine is its name or number.
	Machine string `json:"machine"`
	// Set are labels to set.
	Set map[string]string `json:"set,omitempty"`
	// Remove are the keys of labels to remove.
	Remove []string `json:"remove,omitempty"`
}

// MoveArgs requests that storage be detached, and attached to another machine.
type MoveArgs struct {
	// Names are names of storage, as elsewhere.
	Names []string `json:"names"`
	// Machine is the name or number of the machine to attach it to, or "any": a machine is chosen for
	// each instance, which is not the one that has it.
	Machine string `json:"machine"`
	// MachineLabels are those that a machine must have for "any", such as zone=a,disk=ssd.
	MachineLabels string `json:"machine-labels,omitempty"`
}

// MoveResult says where storage is moved to.
type MoveResult struct {
	// Machines has the machine of each instance, as attachments show it.
	Machines map[string]string `json:"machines"`
}

// DrainMachineResult says what becomes of a machine's storage.
type DrainMachineResult struct {
	// Machines has the machine that each instance is moved to, as attachments show it.
	Machines map[string]string `json:"machines"`
	// Stays are the names of the storage that cannot leave the machine.
	Stays []string `json:"stays"`
}

// MachineArgs names a machine.
type MachineArgs struct {
	// Machine is its name or number.
	Machine string `json:"machine"`
}

// RemoveMachineArgs names the machine to remove.
type RemoveMachineArgs struct {
	// Machine is its name or number.
	Machine string `json:"machine"`
	// Lost must name all storage that is lost with the machine.
	Lost []string `json:"lost"`
}

// CreateTokenArgs describes a token to create.
type CreateTokenArgs struct {
	// Role is "machine", "admin" or "viewer".
	Role string `json:"role"`
	// Machine is the name of the machine that the token is for, whose agent it may replace.
	Machine string `json:"machine,omitempty"`
	// LifetimeSeconds is how long the token is valid.
	LifetimeSeconds int `json:"lifetime-seconds"`
	// Uses is how often it can be used.
	Uses int `json:"uses"`
}

// Token is a token as it is listed.
type Token struct {
	// ID identifies the token. It is no secret.
	ID string `json:"id" yaml:"id"`
	// Role is what the token is for.
	Role string `json:"role" yaml:"role"`
	// Machine is the name of the machine that the token is for, or empty.
	Machine string `json:"machine" yaml:"machine"`
	// Expires is when the token becomes invalid.
	Expires time.Time `json:"expires" yaml:"expires"`
	// Uses is how often the token can still be used.
	Uses int `json:"uses" yaml:"uses"`
}

// User is a user who may make requests, with a certificate.
type User struct {
	// Name is the name of the user.
	Name string `json:"name" yaml:"name"`
	// Role is "admin" or "viewer".
	Role string `json:"role" yaml:"role"`
	// Enrolled is when the user logged in for the first time.
	Enrolled time.Time `json:"enrolled" yaml:"enrolled"`
}

// UserList is a list of users.
type UserList struct {
	// Users are sorted by name.
	Users []User `json:"users"`
}

// ImportArgs names the object to import.
type ImportArgs struct {
	// Name is the name for the storage.
	Name string `json:"name"`
	// Pool is the name of the pool whose provider takes the object over.
	Pool string `json:"pool"`
	// Machine is the name of the machine that has the object; empty: that of the agent.
	Machine string `json:"machine,omitempty"`
	// Source is the absolute path of a file or directory, or UUID=… of the
	// filesystem on a block device.
	Source string `json:"source"`
	// Mount is where to mount a filesystem; empty leaves the choice to the agent.
	Mount string `json:"mount"`
	// Block requests a block device, whatever is on it.
	Block bool `json:"block"`
	// Copy requests that the file be copied, and left where it is.
	Copy bool `json:"copy,omitempty"`
}

// OrphanState says why an object does not belong to storage.
type OrphanState string

const (
	// OrphanLost is an object of this state that no storage has: an orphan.
	OrphanLost OrphanState = "orphan"
	// OrphanReleased is an object that was released on request.
	OrphanReleased OrphanState = "released"
	// OrphanUnknown is an object that names no owner.
	OrphanUnknown OrphanState = "unknown"
)

// Orphan is a provider's volume or filesystem that belongs to no storage.
type Orphan struct {
	// State is "orphan", "released" or "unknown".
	State OrphanState `json:"state" yaml:"state"`
	// Name is the name that the storage had when the object was made, empty if it is not
	// known.
	Name string `json:"name" yaml:"name"`
	// UUID is the object's UUID, empty if it has none.
	UUID string `json:"uuid" yaml:"uuid"`
	// Machine is the name of the machine of a server that has the object, and empty for what belongs to
	// the environment, or to an agent with a state of its own.
	Machine string `json:"machine" yaml:"machine"`
	// Kind is "volume" or "filesystem".
	Kind string `json:"kind" yaml:"kind"`
	// Provider is the provider that has the object.
	Provider string `json:"provider" yaml:"provider"`
	// Pool is the name of the pool that the storage had; empty if it is not known.
	Pool string `json:"pool" yaml:"pool"`
	// ID is the provider's ID of the object.
	ID string `json:"id" yaml:"id"`
	// SizeMiB is the size of the object.
	SizeMiB uint64 `json:"size-mib" yaml:"size-mib"`
	// Path is the file or directory of its data on its machine, or empty.
	Path string `json:"path" yaml:"path"`
	// Attached says that a device shows the object, or that it is mounted.
	Attached bool `json:"attached" yaml:"attached"`
}

// AdoptArgs names an orphan to adopt.
type AdoptArgs struct {
	// Orphan is the name or the UUID of the orphan.
	Orphan string `json:"orphan"`
	// As is the name for the storage; empty: the orphan's.
	As string `json:"as"`
	// Machine is the name of the machine that has it; empty: all are asked that are connected.
	Machine string `json:"machine,omitempty"`
}

// DeleteOrphanArgs names an orphan to delete.
type DeleteOrphanArgs struct {
	// UUID is that of the orphan.
	UUID string `json:"uuid"`
	// Now destroys data that would be kept in the trash for a week.
	Now bool `json:"now"`
	// Machine is the name of the machine that has it; empty: all are asked that are connected.
	Machine string `json:"machine,omitempty"`
}

// DeleteOrphanResult lists what was deleted.
type DeleteOrphanResult struct {
	// Deleted are the orphan, and a filesystem that was on it.
	Deleted []Orphan `json:"deleted"`
	// Until is when data in the trash will be destroyed; zero: it is destroyed already.
	Until time.Time `json:"until"`
}

// BackupArgs names the file to which a backup of the state is written.
type BackupArgs struct {
	// Path is absolute, and must not exist.
	Path string `json:"path"`
}

// BackupResult describes the backup that was written.
type BackupResult struct {
	// UUID is that of the state.
	UUID string `json:"uuid" yaml:"uuid"`
	// Generation is how often the state has been restored, from 1.
	Generation uint64 `json:"generation" yaml:"generation"`
	// Schema is the version of the records in the file.
	Schema int `json:"schema" yaml:"schema"`
	// Bytes is the size of the file.
	Bytes int64 `json:"bytes" yaml:"bytes"`
}

// ChangesResult lists the changes.
type ChangesResult struct {
	// Changes are in the order of the names.
	Changes []Change `json:"changes"`
}

// Action is what applying a file, or a command, does with a name.
type Action string

const (
	ActionAdd    Action = "add"
	ActionAttach Action = "attach"
	ActionDetach Action = "detach"
	ActionGrow   Action = "grow"
	// ActionLabel is for storage that gets other labels.
	ActionLabel Action = "label"
	// ActionRetry is for storage with an operation that failed, and is tried again.
	ActionRetry Action = "retry"
	// ActionRename is for storage that gets the name, and the detail says from which.
	ActionRename Action = "rename"
	// ActionKeep is for storage that is larger than a file says, or is mounted elsewhere.
	ActionKeep Action = "keep"
	// ActionImport is for an object that existed before and was not stowage's.
	ActionImport Action = "import"
	// ActionAdopt is for an orphan.
	ActionAdopt Action = "adopt"
	// ActionLeave is for storage that is not in the file. Only a dry run lists it.
	ActionLeave Action = "leave"
	// ActionRemove is for storage that is destroyed, and ActionRelease for storage whose data is kept.
	ActionRemove  Action = "remove"
	ActionRelease Action = "release"
)

// Change is the action on one storage or pool.
type Change struct {
	// Action is "add", "attach", "detach", "grow", "label", "retry", "keep", "import", "adopt", "leave",
	// "remove" or "release".
	Action Action `json:"action"`
	// Item is "storage" or "pool".
	Item string `json:"item"`
	// Name is the name of the storage or the pool.
	Name string `json:"name"`
	// Detail is a text for people.
	Detail string `json:"detail"`
}

// ApplyResult lists what applying a file changed, or would change.
type ApplyResult struct {
	// Changes are in the order of the file.
	Changes []Change `json:"changes"`
	// Names are the names of the storage in the file.
	Names []string `json:"names"`
	// Attached is how many instances in the file were attached and large enough before, so that
	// only those in Unfinished have to be waited for. It is 0, and Unfinished is empty, if all in
	// Names are to be watched.
	Attached int `json:"attached,omitempty"`
	// Unfinished are the names of the instances to wait for.
	Unfinished []string `json:"unfinished,omitempty"`
	// Detached are the names of the instances in the file that are not to be attached.
	Detached []string `json:"detached,omitempty"`
}

// WatchArgs says what to follow.
type WatchArgs struct {
	// Names are names of storage, as elsewhere; none: all storage.
	Names []string `json:"names,omitempty"`
	// From is the position of the last event that the client has, of a request for the same names. The
	// answer goes on from there.
	From string `json:"from,omitempty"`
}

// Event reports changes to watchers. The first event of a stream has everything that was requested
// or, from a position, what has changed since.
type Event struct {
	// Storage is what is new or has changed.
	Storage []Storage `json:"storage,omitempty"`
	// Gone are the names of storage that no longer exists.
	Gone []string `json:"gone,omitempty"`
	// Position is where to go on if the connection is lost.
	Position string `json:"position,omitempty"`
}

// RemoveArgs says what storage to remove or to release.
type RemoveArgs struct {
	// Names are as in Names. At least one is given.
	Names []string `json:"names"`
	// Way includes storage that was asked for in this way, such as "kubernetes".
	Way string `json:"way,omitempty"`
	// Force includes all storage that programs asked for.
	Force bool `json:"force,omitempty"`
}

// Asker is a program that asked for storage.
type Asker struct {
	// Way is how it asked, such as "csi".
	Way string `json:"way" yaml:"way"`
	// Name is the name that it gave.
	Name string `json:"name" yaml:"name"`
}

// Names are the names of storage, pools, tokens or users. NAME stands for all instances of storage,
// NAME/N for one. No names mean everything, where that makes sense.
type Names struct {
	// Names are NAME, which stands for all instances of storage, or NAME/N for one. No names mean
	// everything, where that makes sense.
	Names []string `json:"names"`
}

// StorageList is a list of storage.
type StorageList struct {
	// Storage is sorted by name.
	Storage []Storage `json:"storage"`
}

// MachineList is a list of machines.
type MachineList struct {
	// Machines are sorted by name.
	Machines []Machine `json:"machines"`
}

// ServerStatus says whether a server takes part in keeping the state.
type ServerStatus string

const (
	// ServerUp is a server that runs.
	ServerUp ServerStatus = "up"
	// ServerJoining is a server that does not count yet, since it has not all of the state.
	ServerJoining ServerStatus = "joining"
	// ServerUnreachable is a server that does not answer the one that was asked.
	ServerUnreachable ServerStatus = "unreachable"
)

// Server is one of several servers that keep the state together.
type Server struct {
	// Name is empty until the server has begun.
	Name string `json:"name" yaml:"name"`
	// Address is the host and port at which the other servers reach it.
	Address string `json:"address" yaml:"address"`
	// Status is "up", "joining" or "unreachable".
	Status ServerStatus `json:"status" yaml:"status"`
	// Leader says that the server orders the changes of the state.
	Leader bool `json:"leader" yaml:"leader"`
	// Asked says that this server has answered the request.
	Asked bool `json:"asked" yaml:"asked"`
	// EtcdVersion is the version of the server's etcd. It is empty if the server does not answer.
	EtcdVersion string `json:"etcd-version,omitempty" yaml:"etcd-version,omitempty"`
}

// ServerList is a list of servers.
type ServerList struct {
	// Servers are all servers that keep the state.
	Servers []Server `json:"servers"`
}

// RemoveServerArgs names the server to remove.
type RemoveServerArgs struct {
	// Server is its name, or its address if it has no name.
	Server string `json:"server"`
}

// FenceMachineArgs names a machine to fence.
type FenceMachineArgs struct {
	// Machine is its name or number.
	Machine string `json:"machine"`
	// Confirmed says that somebody has made sure that the machine is off, or was restarted since its
	// agent was last connected. Otherwise the server's program for fencing sees to it.
	Confirmed bool `json:"confirmed,omitempty"`
}

// TokenText is a token that was created. It is a secret.
type TokenText struct {
	// Token is the text of the token.
	Token string `json:"token"`
}

// TokenList is a list of tokens.
type TokenList struct {
	// Tokens are those that can be used.
	Tokens []Token `json:"tokens"`
}

// PoolList is a list of pools.
type PoolList struct {
	// Pools are sorted by name.
	Pools []Pool `json:"pools"`
}

// NotAsked is a machine that was not asked for its objects, or has not answered.
type NotAsked struct {
	// Machine is its name.
	Machine string `json:"machine"`
	// Reason says why, and what to do about it.
	Reason string `json:"reason"`
}

// OrphanList is a list of orphans.
type OrphanList struct {
	// Orphans are orphans and other objects that belong to no storage.
	Orphans []Orphan `json:"orphans"`
	// NotAsked are the machines whose objects are not in the list.
	NotAsked []NotAsked `json:"not-asked,omitempty"`
}

// Report has the reports of the workers.
type Report struct {
	// Report has the report of each worker, by its name.
	Report map[string]any `json:"report"`
}

// Line is a line of the answer to a request to watch: an event, or the error that ends the stream.
type Line struct {
	Event
	// Error is the error that ends the stream.
	Error *Problem `json:"error,omitempty"`
}

// ReclaimPolicy says what becomes of storage when its claim is deleted.
type ReclaimPolicy string

const (
	// ReclaimDelete destroys the storage.
	ReclaimDelete ReclaimPolicy = "delete"
	// ReclaimRetain leaves it as it is, and no claim gets it until a request to offer it.
	ReclaimRetain ReclaimPolicy = "retain"
)

// ReadWriteOnce is the access mode of storage that one machine at a time has.
const ReadWriteOnce = "ReadWriteOnce"

// ClaimRequest is what a claim asks for.
type ClaimRequest struct {
	// Selector has labels, such as tier=fast,zone=a: the claim gets the smallest storage that fits, of
	// that with all of them.
	Selector string `json:"selector,omitempty" yaml:"selector,omitempty"`
	// Pool is the pool in which storage is made if there is no selector, or no storage that fits. It
	// gets the labels of the selector.
	Pool string `json:"pool,omitempty" yaml:"pool,omitempty"`
	// SizeMiB is the least size.
	SizeMiB uint64 `json:"size-mib" yaml:"size-mib"`
	// Kind is "block" or "filesystem".
	Kind string `json:"kind" yaml:"kind"`
	// AccessMode is "ReadWriteOnce", which is the default.
	AccessMode string `json:"access-mode,omitempty" yaml:"access-mode,omitempty"`
	// Machine is the name or the number of the machine where the storage is to be, or "any", which is
	// the default.
	Machine string `json:"machine,omitempty" yaml:"machine,omitempty"`
	// MachineLabels are those that a machine must have for "any", such as zone=a,disk=ssd.
	MachineLabels string `json:"machine-labels,omitempty" yaml:"machine-labels,omitempty"`
	// Mount is where to mount a filesystem that is made. Storage that exists has its mount point.
	Mount string `json:"mount,omitempty" yaml:"mount,omitempty"`
	// ReclaimPolicy is "retain", which is the default, or "delete".
	ReclaimPolicy ReclaimPolicy `json:"reclaim-policy,omitempty" yaml:"reclaim-policy,omitempty"`
}

// ClaimStatus says whether a claim has its storage.
type ClaimStatus string

const (
	// ClaimBound is a claim that has storage, whose own status says whether it can be used.
	ClaimBound ClaimStatus = "bound"
	// ClaimLost is a claim whose storage does not exist any more.
	ClaimLost ClaimStatus = "lost"
)

// Claim is a request for storage, and the storage that it got.
type Claim struct {
	// Name is the name of the claim.
	Name string `json:"name" yaml:"name"`
	// Request is what it asks for, with the defaults.
	Request ClaimRequest `json:"request" yaml:"request"`
	// Status is "bound", or "lost" if the storage was lost, such as with its machine.
	Status ClaimStatus `json:"status" yaml:"status"`
	// StorageName is the name of the storage.
	StorageName string `json:"storage-name" yaml:"storage-name"`
	// Storage is the storage as it is; nothing for a claim that has lost it.
	Storage *Storage `json:"storage,omitempty" yaml:"storage,omitempty"`
}

// ClaimList is a list of claims.
type ClaimList struct {
	// Claims are sorted by name.
	Claims []Claim `json:"claims"`
}

// Declaration is what storage is wanted, as an entry of a file says it (docs/reference/spec-file.md).
type Declaration struct {
	// Directive is POOL,SIZE or POOL,SIZE,COUNT, such as loop,2G.
	Directive string `json:"directive"`
	// Kind is "block" or "filesystem".
	Kind string `json:"kind"`
	// From is the name of the snapshot whose contents the storage gets. Its pool has the same provider, and
	// it is on the machine of the snapshot.
	From string `json:"from,omitempty"`
	// Asker is the program that asks for the storage, as WAY/NAME: how it asks, and the name that it gives.
	// No other storage has the same one, and it is not removed by others without force.
	Asker string `json:"asker,omitempty"`
	// Attached says whether the storage is to be attached, which it is without the field. Storage that
	// is not is made all the same, or detached.
	Attached *bool `json:"attached,omitempty"`
	// Labels are what users say about the storage, such as tier: fast. None in an empty object removes
	// those that there are; without the field, they stay.
	Labels map[string]string `json:"labels,omitzero"`
	// Machine is the name or the number of the machine, or "any"; empty: the agent's own.
	Machine string `json:"machine,omitempty"`
	// MachineLabels are those that a machine must have for "any", such as zone=a,disk=ssd.
	MachineLabels string `json:"machine-labels,omitempty"`
	// Mount is where to mount a filesystem.
	Mount string `json:"mount,omitempty"`
	// Filesystem is the type of the filesystem on a volume, such as ext4.
	Filesystem string `json:"filesystem,omitempty"`
	// MkfsOptions are options of the program that makes the filesystem on a volume.
	MkfsOptions string `json:"mkfs-options,omitempty"`
	// MountOptions are options for mounting the filesystem.
	MountOptions string `json:"mount-options,omitempty"`
}

// SnapshotRequest says what a snapshot is of.
type SnapshotRequest struct {
	// Storage is the name of storage that is made.
	Storage string `json:"storage"`
}

// SnapshotStatus says what can be done with a snapshot.
type SnapshotStatus string

// The statuses of snapshots.
const (
	// SnapshotCreating is a snapshot that is being made, or that is attempted again.
	SnapshotCreating SnapshotStatus = "creating"
	// SnapshotReady is a snapshot from which storage can be made.
	SnapshotReady SnapshotStatus = "ready"
	// SnapshotFailed is a snapshot that was not made, and is not attempted again until it is requested.
	SnapshotFailed SnapshotStatus = "failed"
	// SnapshotDeleting is a snapshot that is being deleted.
	SnapshotDeleting SnapshotStatus = "deleting"
)

// Snapshot is a copy of storage as it was at one time.
type Snapshot struct {
	// Name is the name of the snapshot.
	Name string `json:"name" yaml:"name"`
	// UUID identifies the snapshot for ever.
	UUID string `json:"uuid" yaml:"uuid"`
	// StorageName is the name that the storage had. It may be gone.
	StorageName string `json:"storage-name" yaml:"storage-name"`
	// StorageUUID is the UUID of the volume of the storage, or of a filesystem that is on no volume.
	StorageUUID string `json:"storage-uuid" yaml:"storage-uuid"`
	// Kind is "block" or "filesystem".
	Kind string `json:"kind" yaml:"kind"`
	// Pool is the pool of the storage.
	Pool string `json:"pool" yaml:"pool"`
	// Machine is the machine that has the snapshot. It is empty on the machine of an agent with a state of
	// its own, and for the environment.
	Machine string `json:"machine,omitempty" yaml:"machine,omitempty"`
	// SizeMiB is the least size of storage from the snapshot.
	SizeMiB uint64 `json:"size-mib" yaml:"size-mib"`
	// Status is "creating", "ready", "failed" or "deleting".
	Status SnapshotStatus `json:"status" yaml:"status"`
	// Message says why the last attempt to make or to delete it has failed.
	Message string `json:"message,omitempty" yaml:"message,omitempty"`
	// TakenAt is when it was taken.
	TakenAt *time.Time `json:"taken-at,omitempty" yaml:"taken-at,omitempty"`
	// Asker is the program that has asked for it, as WAY/NAME; empty for a user.
	Asker string `json:"asker,omitempty" yaml:"asker,omitempty"`
}

// SnapshotList is a list of snapshots.
type SnapshotList struct {
	// Snapshots are sorted by name.
	Snapshots []Snapshot `json:"snapshots"`
}
