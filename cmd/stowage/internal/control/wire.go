package control

import (
	"time"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

// Storage is one storage instance as users see it.
type Storage struct {
	Name     string `json:"name" yaml:"name"`
	Kind     string `json:"kind" yaml:"kind"`
	Pool     string `json:"pool" yaml:"pool"`
	Provider string `json:"provider" yaml:"provider"`
	// SizeMiB is what was asked for until the provider has said what it made.
	SizeMiB uint64 `json:"size-mib" yaml:"size-mib"`
	// WantedMiB is what was last asked for. Storage that has less is to grow; some
	// has more.
	WantedMiB uint64 `json:"wanted-mib" yaml:"wanted-mib"`
	// CannotGrowToMiB is the size to which the storage could not grow; Message gives the
	// reason. The field is omitted if there is no such size.
	CannotGrowToMiB uint64        `json:"cannot-grow-to-mib,omitempty" yaml:"cannot-grow-to-mib,omitempty"`
	Life            life.Value    `json:"life" yaml:"life"`
	Status          status.Status `json:"status" yaml:"status"`
	// Message says why it is not attached; about attached storage, what there is
	// to know.
	Message string `json:"message" yaml:"message"`
	// Since is when Status or Message last changed.
	Since time.Time `json:"since" yaml:"since"`
	// Location is a device path or a mount point, empty where not attached.
	Location string `json:"location" yaml:"location"`
	// Volume and Filesystem are the IDs of the volume and the filesystem that make
	// up the instance. Each is empty if the instance lacks it.
	Volume      string       `json:"volume" yaml:"volume"`
	Filesystem  string       `json:"filesystem" yaml:"filesystem"`
	Attachments []Attachment `json:"attachments" yaml:"attachments"`
}

// Attachment is a storage instance on a machine.
type Attachment struct {
	Machine  string     `json:"machine" yaml:"machine"`
	Life     life.Value `json:"life" yaml:"life"`
	Location string     `json:"location" yaml:"location"`
	ReadOnly bool       `json:"read-only" yaml:"read-only"`
}

// Pool is a named configuration of a provider.
type Pool struct {
	Name       string         `json:"name" yaml:"name"`
	Provider   string         `json:"provider" yaml:"provider"`
	Attributes map[string]any `json:"attributes" yaml:"attributes"`
	// Default pools come with their provider.
	Default bool `json:"default" yaml:"default"`
}

// AddPoolArgs is a pool to make.
type AddPoolArgs struct {
	Name       string         `json:"name"`
	Provider   string         `json:"provider"`
	Attributes map[string]any `json:"attributes"`
	// Replace asks for another provider and other attributes of a pool that is
	// there.
	Replace bool `json:"replace"`
}

// ApplyArgs is a file to converge to. The agent parses and checks the content itself,
// because it does not trust a client's checks.
type ApplyArgs struct {
	// File is what the user calls the file; errors begin with it.
	File    string `json:"file"`
	Content []byte `json:"content"`
	// DryRun asks what would change, and changes nothing.
	DryRun bool `json:"dry-run"`
}

// ResizeArgs ask for storage to grow.
type ResizeArgs struct {
	// Names are names of storage, as elsewhere.
	Names []string `json:"names"`
	// SizeMiB is how large each is to be, or, with More, how much larger than was
	// last asked for.
	SizeMiB uint64 `json:"size-mib"`
	More    bool   `json:"more"`
}

// ImportArgs name what is to be taken over.
type ImportArgs struct {
	Name string `json:"name"`
	Pool string `json:"pool"`
	// Source is the absolute path of a file or directory, or UUID=… of the
	// filesystem on a block device.
	Source string `json:"source"`
	// Mount is where a filesystem is wanted, or nothing.
	Mount string `json:"mount"`
	// Block asks for a block device, whatever is on it.
	Block bool `json:"block"`
	// Copy asks for a copy of a file, which is left where it is.
	Copy bool `json:"copy,omitempty"`
}

// OrphanState says why an object is not, or no longer, any storage's.
type OrphanState string

const (
	// OrphanLost is an object of this state that no storage has.
	OrphanLost OrphanState = "orphan"
	// OrphanReleased is an object that was released on request.
	OrphanReleased OrphanState = "released"
	// OrphanUnknown is an object that does not tell whose it is.
	OrphanUnknown OrphanState = "unknown"
)

// Orphan is a volume or filesystem that a provider has and no storage.
type Orphan struct {
	State OrphanState `json:"state" yaml:"state"`
	// Name is that of the storage when the object was made, empty where it does not
	// tell.
	Name string `json:"name" yaml:"name"`
	// UUID is the object's own, empty where it has none.
	UUID string `json:"uuid" yaml:"uuid"`
	// Kind is "volume" or "filesystem".
	Kind     string `json:"kind" yaml:"kind"`
	Provider string `json:"provider" yaml:"provider"`
	Pool     string `json:"pool" yaml:"pool"`
	// ID is the provider's.
	ID      string `json:"id" yaml:"id"`
	SizeMiB uint64 `json:"size-mib" yaml:"size-mib"`
	// Path is where its data is on this machine, where that is a file or directory.
	Path string `json:"path" yaml:"path"`
	// Attached says that a device shows it, or that it is mounted.
	Attached bool `json:"attached" yaml:"attached"`
}

// AdoptArgs name an orphan that is to be storage again.
type AdoptArgs struct {
	// Orphan is the name or the UUID of the orphan.
	Orphan string `json:"orphan"`
	// As is the name that the storage is to have; empty: the orphan's.
	As string `json:"as"`
}

// DeleteOrphanArgs name an orphan whose data is to go.
type DeleteOrphanArgs struct {
	UUID string `json:"uuid"`
	// Now destroys data that would be kept in the trash for a week.
	Now bool `json:"now"`
}

// DeleteOrphanResult tells what was deleted.
type DeleteOrphanResult struct {
	Deleted []Orphan `json:"deleted"`
	// Until is when data that is in the trash goes away; zero: it is gone.
	Until time.Time `json:"until"`
}

// BackupArgs name the file that a backup of the state is written to.
type BackupArgs struct {
	// Path is absolute. Nothing is there.
	Path string `json:"path"`
}

// BackupResult tells what was written.
type BackupResult struct {
	UUID       string `json:"uuid" yaml:"uuid"`
	Generation uint64 `json:"generation" yaml:"generation"`
	Schema     int    `json:"schema" yaml:"schema"`
	Bytes      int64  `json:"bytes" yaml:"bytes"`
}

// ChangesResult tells what was changed.
type ChangesResult struct {
	Changes []Change `json:"changes"`
}

// Action is what applying a file, or a command, does about a name.
type Action string

const (
	ActionAdd    Action = "add"
	ActionAttach Action = "attach"
	ActionGrow   Action = "grow"
	// ActionKeep is for what is larger than a file says.
	ActionKeep Action = "keep"
	// ActionImport is for what was there before, and not stowage's.
	ActionImport Action = "import"
	// ActionAdopt is for what no storage had.
	ActionAdopt Action = "adopt"
	// ActionLeave is for what is on the machine and not in the file.
	ActionLeave Action = "leave"
)

// Change is what is done about one storage or pool.
type Change struct {
	Action Action `json:"action"`
	// Item is "storage" or "pool".
	Item   string `json:"item"`
	Name   string `json:"name"`
	Detail string `json:"detail"`
}

// ApplyResult tells what applying a file changed, or would change.
type ApplyResult struct {
	Changes []Change `json:"changes"`
	// Names are the storage in the file.
	Names []string `json:"names"`
}

// Event tells watchers what is new. The first event of a stream has all that
// was asked for.
type Event struct {
	Storage []Storage `json:"storage,omitempty"`
	// Gone are the names of what no longer exists.
	Gone []string `json:"gone,omitempty"`
}

// namesArgs name pools, or storage: NAME means all its instances, NAME/N one. None
// means all there is, where that makes sense.
type namesArgs struct {
	Names []string `json:"names"`
}

type storageResult struct {
	Storage []Storage `json:"storage"`
}

type poolsResult struct {
	Pools []Pool `json:"pools"`
}

type orphansResult struct {
	Orphans []Orphan `json:"orphans"`
}

type reportResult struct {
	Report map[string]any `json:"report"`
}

// envelope is the body of every response: a result, or an error.
type envelope[T any] struct {
	Error  *params.Error `json:"error,omitempty"`
	Result T             `json:"result"`
}
