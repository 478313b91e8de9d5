// Package task has what a server asks the agent of a machine to do besides provisioning: the parts of
// users' requests that need the files and the providers of that machine. The kinds of tasks are a
// fixed list, each with its own arguments and its own result; none of them runs a command.
//
// A task may be interrupted at any moment, and the user then repeats the request. So each kind has the
// same effect when it is repeated.
package task

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/juju/errors"
)

// Limits on the size of tasks in JSON, in bytes.
const (
	MaxRequest = 64 << 10
	MaxResult  = 256 << 10
)

// Kind is a kind of task.
type Kind string

// The kinds of tasks.
const (
	// KindInspect reads what is to be imported.
	KindInspect Kind = "inspect"
	// KindImport makes a provider take over a file or directory.
	KindImport Kind = "import"
	// KindScan lists the objects of the machine's providers that the state may not have.
	KindScan Kind = "scan"
	// KindTag replaces the resource tags of objects.
	KindTag Kind = "tag"
	// KindMountOptions replaces the mount options of a filesystem that is not attached.
	KindMountOptions Kind = "mount-options"
	// KindDelete destroys an object.
	KindDelete Kind = "delete"
	// KindSnapshot makes or deletes a snapshot.
	KindSnapshot Kind = "snapshot"
	// KindFlush writes out what the machine has in memory of storage.
	KindFlush Kind = "flush"
	// KindLook finds out what the machine has of storage, and what is done for it there.
	KindLook Kind = "look"
	// KindMeasure measures how much of filesystems is used.
	KindMeasure Kind = "measure"
)

// Task is a task as the agent of its machine sees it.
type Task struct {
	ID string `json:"id"`
	// Request is a [Request]; see [ParseRequest].
	Request json.RawMessage `json:"request"`
	// Claim is what the agent began the task with; empty: it may still be begun.
	Claim string `json:"claim,omitempty"`
	// Cancelled says that nobody waits for the answer any more.
	Cancelled bool `json:"cancelled,omitempty"`
}

// Request is what is to be done: exactly one field is set.
type Request struct {
	Inspect *Inspect `json:"inspect,omitempty"`
	Import  *Import  `json:"import,omitempty"`
	Scan    *Scan    `json:"scan,omitempty"`
	Tag     *Tag     `json:"tag,omitempty"`
	Delete  *Delete  `json:"delete,omitempty"`

	MountOptions *MountOptions `json:"mount-options,omitempty"`

	Snapshot *Snapshot `json:"snapshot,omitempty"`
	Flush    *Flush    `json:"flush,omitempty"`
	Look     *Look     `json:"look,omitempty"`
	Measure  *Measure  `json:"measure,omitempty"`
}

// Result is the result of a task, in the field of its kind.
type Result struct {
	Inspect *Inspected `json:"inspect,omitempty"`
	Import  *Imported  `json:"import,omitempty"`
	Scan    *Scanned   `json:"scan,omitempty"`
	Tag     *Tagged    `json:"tag,omitempty"`
	Delete  *Deleted   `json:"delete,omitempty"`

	MountOptions *MountOptionsSet `json:"mount-options,omitempty"`

	Snapshot *Snapshotted `json:"snapshot,omitempty"`
	Flush    *Flushed     `json:"flush,omitempty"`
	Look     *Looked      `json:"look,omitempty"`
	Measure  *Measured    `json:"measure,omitempty"`
}

// Inspect names what to read: a path, or a block device that shows a file.
type Inspect struct {
	// Path is absolute, and empty if there is a device, or nothing to read.
	Path string `json:"path,omitempty"`
	// Device is the name of a block device, such as loop7.
	Device string `json:"device,omitempty"`
}

// Inspected says what is there.
type Inspected struct {
	// Path is that of the file.
	Path string `json:"path,omitempty"`
	// Contents is nil if there is no file.
	Contents *Contents `json:"contents,omitempty"`
	// Reserved are directories and files of the agent, which must not be mounted on, in or above.
	Reserved []string `json:"reserved,omitempty"`
}

// Contents is what was recognised in a file. Size is in bytes; without a known filesystem at its
// start, the other fields are empty.
type Contents struct {
	Size       uint64 `json:"size"`
	Filesystem string `json:"filesystem,omitempty"`
	UUID       string `json:"uuid,omitempty"`
}

// Import describes what a provider is to take over.
type Import struct {
	Provider string `json:"provider"`
	// Volume says that a volume is imported, and not a filesystem.
	Volume bool `json:"volume,omitempty"`
	// Path is the absolute path of the file or directory. ID is the provider's ID of the object, if its
	// storage is imported by ID.
	Path string `json:"path,omitempty"`
	ID   string `json:"id,omitempty"`
	// Device is a block device that shows the file, and is detached first.
	Device string `json:"device,omitempty"`
	// Copy, of a volume, leaves the file where it is.
	Copy bool `json:"copy,omitempty"`
	// Reread asks for the contents of the volume afterwards: an earlier import has moved the file.
	Reread       bool              `json:"reread,omitempty"`
	Attributes   map[string]any    `json:"attributes,omitempty"`
	ResourceTags map[string]string `json:"resource-tags"`
}

// Imported describes the volume or filesystem that has been taken over. Size is in MiB. A filesystem
// has no more than an ID and a size.
type Imported struct {
	ID         string `json:"id"`
	Size       uint64 `json:"size"`
	HardwareID string `json:"hardware-id,omitempty"`
	WWN        string `json:"wwn,omitempty"`
	Persistent bool   `json:"persistent,omitempty"`
	// Context is what the provider needs to attach the volume, if it does not keep that.
	Context map[string]string `json:"context,omitempty"`
	// Contents is set if they were asked for.
	Contents *Contents `json:"contents,omitempty"`
}

// Scan asks for a part of the list of objects.
type Scan struct {
	// After is the Next of the part before; empty: the first part.
	After string `json:"after,omitempty"`
}

// Scanned is a part of a list of objects. It may omit those that the state has, as far as the agent
// knows.
type Scanned struct {
	Objects []Object `json:"objects"`
	// Next is empty in the last part.
	Next string `json:"next,omitempty"`
}

// Object is a volume, filesystem or snapshot that a provider has. SizeMiB, Path and the last three fields are
// those of storage.OwnedObject.
type Object struct {
	Ref
	SizeMiB      uint64            `json:"size-mib"`
	ResourceTags map[string]string `json:"resource-tags,omitempty"`
	Path         string            `json:"path,omitempty"`
	Attached     bool              `json:"attached,omitempty"`
	Incomplete   bool              `json:"incomplete,omitempty"`
	Released     bool              `json:"released,omitempty"`
}

// Ref identifies an object: Kind is "volume", "filesystem" or "snapshot", and ID is the provider's.
type Ref struct {
	Provider string `json:"provider"`
	Kind     string `json:"kind"`
	ID       string `json:"id"`
}

// Owned is an object that is known to have an owner. A task leaves an object with another one alone.
type Owned struct {
	Ref
	ModelUUID  string `json:"model-uuid"`
	EntityUUID string `json:"entity-uuid"`
}

// Tag lists objects with their new resource tags. Objects that do not exist are left out.
type Tag struct {
	Objects []Tags `json:"objects"`
}

// Tags are the new resource tags of an object.
type Tags struct {
	Owned
	ResourceTags map[string]string `json:"resource-tags"`
}

// Tagged is the result of [KindTag].
type Tagged struct{}

// MountOptions are the new mount options of a filesystem.
type MountOptions struct {
	Filesystem Ref    `json:"filesystem"`
	Options    string `json:"options"`
}

// MountOptionsSet is the result of [KindMountOptions].
type MountOptionsSet struct{}

// Delete names an object to destroy. One that is attached is left alone.
type Delete struct {
	Owned
	// Now destroys data that would be kept in the trash for some time.
	Now bool `json:"now,omitempty"`
}

// Deleted is the result of [KindDelete].
type Deleted struct {
	// KeptSeconds is how long the data is kept in the trash; 0: it is destroyed.
	KeptSeconds int64 `json:"kept-seconds,omitempty"`
}

// Snapshot describes a snapshot to make, or to delete. Its UUID is that of the resource tags.
type Snapshot struct {
	Provider string `json:"provider"`
	// VolumeID or FilesystemID is the provider's ID of the volume, or of a filesystem that is not on a
	// volume. SnapshotID is that of the snapshot if it is known.
	VolumeID     string            `json:"volume-id,omitempty"`
	FilesystemID string            `json:"filesystem-id,omitempty"`
	SnapshotID   string            `json:"snapshot-id,omitempty"`
	Attributes   map[string]any    `json:"attributes,omitempty"`
	ResourceTags map[string]string `json:"resource-tags"`
	// Delete deletes the snapshot, complete or not. One that does not exist is no error.
	Delete bool `json:"delete,omitempty"`
}

// Snapshotted is the result of [KindSnapshot].
type Snapshotted struct {
	// ID, SizeMiB and TakenAt describe the snapshot that was made.
	ID      string    `json:"id,omitempty"`
	SizeMiB uint64    `json:"size-mib,omitempty"`
	TakenAt time.Time `json:"taken-at,omitzero"`
	// Failure is the error of the provider; empty: it is done. Final says that trying again has no use.
	Failure string `json:"failure,omitempty"`
	Final   bool   `json:"final,omitempty"`
}

// Flush names attached storage: the mount point of a filesystem, or a block device below /dev.
type Flush struct {
	Path string `json:"path"`
}

// Flushed is the result of [KindFlush].
type Flushed struct{}

// maxObjectsOfLook is how many objects storage has: a volume and a filesystem.
const maxObjectsOfLook = 2

// Look names the parts of storage.
type Look struct {
	// Objects are the volume and the filesystem, as far as they were made.
	Objects []Ref `json:"objects,omitempty"`
	// Entities are the tags of the volume and the filesystem.
	Entities []string `json:"entities,omitempty"`
}

// Looked is what a machine has of storage, and what is done for it there. Sizes are in bytes.
type Looked struct {
	Files   []File   `json:"files,omitempty"`
	Devices []string `json:"devices,omitempty"`
	Mounts  []Mount  `json:"mounts,omitempty"`
	// Usage is nil if no filesystem is mounted.
	Usage      *Usage      `json:"usage,omitempty"`
	Holders    []Holder    `json:"holders,omitempty"`
	Operations []Operation `json:"operations,omitempty"`
	// Notes say what is missing above, and why.
	Notes []string `json:"notes,omitempty"`
}

// FileKind says what a file of storage is.
type FileKind string

// The kinds of files.
const (
	FileRecord    FileKind = "record" // the provider's note of what it has made
	FileData      FileKind = "file"
	FileDirectory FileKind = "directory"
)

// File is a file or directory of storage. Size, with holes, and Allocated are those of a file with data.
type File struct {
	Kind      FileKind `json:"kind"`
	Path      string   `json:"path"`
	Missing   bool     `json:"missing,omitempty"`
	Size      uint64   `json:"size,omitempty"`
	Allocated uint64   `json:"allocated,omitempty"`
}

// Mount is a mount of the filesystem, or of a part of it.
type Mount struct {
	Path     string `json:"path"`
	ReadOnly bool   `json:"read-only,omitempty"`
}

// Usage is how much of a filesystem is used. Shared says that it has other data, too.
type Usage struct {
	Size      uint64 `json:"size"`
	Used      uint64 `json:"used"`
	Available uint64 `json:"available"`
	Shared    bool   `json:"shared,omitempty"`
}

// Holder is a process that uses storage, or, without a PID, an object of the kernel.
type Holder struct {
	PID  int    `json:"pid,omitempty"`
	Name string `json:"name"`
	// Use says how, such as "has open /srv/data/log".
	Use string `json:"use"`
}

// Operation is an unfinished operation of a worker, as its report has it.
type Operation struct {
	// Entity is what it is done for, such as "volume 0/1".
	Entity      string    `json:"entity"`
	Operation   string    `json:"operation"`
	State       string    `json:"state"`
	Since       time.Time `json:"since,omitzero"`
	WaitsFor    string    `json:"waits-for,omitempty"`
	Failures    int       `json:"failures,omitempty"`
	LastFailure string    `json:"last-failure,omitempty"`
	NextAttempt time.Time `json:"next-attempt,omitzero"`
}

// MaxMeasured is how many filesystems one task measures.
const MaxMeasured = 500

// Measure names filesystems.
type Measure struct {
	Filesystems []Ref `json:"filesystems"`
}

// Measured has the usage of each filesystem, nil if it is not mounted or cannot be measured.
type Measured struct {
	Filesystems []*Usage `json:"filesystems"`
}

// Kind returns the kind of the request. It is empty unless exactly one field is set.
func (r Request) Kind() Kind {
	return kindOf(r.Inspect != nil, r.Import != nil, r.Scan != nil, r.Tag != nil, r.Delete != nil, r.Snapshot != nil, r.Look != nil, r.Measure != nil, r.MountOptions != nil, r.Flush != nil)
}

// Kind returns the kind of the task whose result it is. It is empty unless exactly one field is set.
func (r Result) Kind() Kind {
	return kindOf(r.Inspect != nil, r.Import != nil, r.Scan != nil, r.Tag != nil, r.Delete != nil, r.Snapshot != nil, r.Look != nil, r.Measure != nil, r.MountOptions != nil, r.Flush != nil)
}

func kindOf(set ...bool) Kind {
	n := slices.Index(set, true)
	if n < 0 || slices.Contains(set[n+1:], true) {
		return ""
	}
	return []Kind{KindInspect, KindImport, KindScan, KindTag, KindDelete, KindSnapshot, KindLook, KindMeasure, KindMountOptions, KindFlush}[n]
}

// Changes reports whether tasks of the kind change something. An agent carries those out one after the
// other.
func (k Kind) Changes() bool {
	return k != KindInspect && k != KindScan && k != KindLook && k != KindMeasure && k != KindFlush
}

// Validate returns an error that satisfies errors.IsNotValid unless the request can be carried out.
func (r Request) Validate() error {
	var err error
	switch r.Kind() {
	case KindInspect:
		err = r.Inspect.validate()
	case KindImport:
		err = r.Import.validate()
	case KindScan:
	case KindTag:
		for _, o := range r.Tag.Objects {
			if err == nil {
				err = o.validate()
			}
		}
	case KindDelete:
		err = r.Delete.validate()
	case KindMountOptions:
		if r.MountOptions.Filesystem.Provider == "" || r.MountOptions.Filesystem.ID == "" {
			err = errors.New("no filesystem")
		}
	case KindSnapshot:
		err = r.Snapshot.validate()
	case KindFlush:
		err = CheckPath(r.Flush.Path)
	case KindLook:
		err = r.Look.validate()
	case KindMeasure:
		if len(r.Measure.Filesystems) > MaxMeasured {
			err = fmt.Errorf("more than %d filesystems", MaxMeasured)
		}
	default:
		err = errors.New("not exactly one kind that this version knows")
	}
	if err != nil {
		return errors.NewNotValid(err, fmt.Sprintf("task %q", r.Kind()))
	}
	return nil
}

func (i *Inspect) validate() error {
	switch {
	case i.Path != "" && i.Device != "":
		return errors.New("both a path and a device")
	case i.Path != "":
		return CheckPath(i.Path)
	}
	return checkDevice(i.Device)
}

func (i *Import) validate() error {
	switch {
	case i.Provider == "":
		return errors.New("no provider")
	case !i.Volume && (i.Device != "" || i.Copy || i.Reread):
		return errors.New("a filesystem is imported from its directory, without a device or a copy")
	}
	if i.ID != "" {
		if i.Path != "" || i.Device != "" || i.Reread {
			return errors.New("both an ID and a path")
		}
		return CheckID(i.ID)
	}
	if err := CheckPath(i.Path); err != nil {
		return err
	}
	return checkDevice(i.Device)
}

func (s *Snapshot) validate() error {
	switch {
	case s.Provider == "" || (s.VolumeID == "") == (s.FilesystemID == ""):
		return errors.New("a snapshot without a provider, or not of one volume or filesystem")
	case len(s.ResourceTags) == 0:
		return errors.New("a snapshot without an owner")
	}
	return nil
}

func (l *Look) validate() error {
	if len(l.Objects) > maxObjectsOfLook || len(l.Entities) > maxObjectsOfLook {
		return fmt.Errorf("more than %d objects", maxObjectsOfLook)
	}
	for _, o := range l.Objects {
		if o.Provider == "" || o.ID == "" || o.Kind != "volume" && o.Kind != "filesystem" {
			return fmt.Errorf("an object of kind %q, with provider %q and ID %q", o.Kind, o.Provider, o.ID)
		}
	}
	return nil
}

func (o *Owned) validate() error {
	switch {
	case o.Provider == "" || o.ID == "":
		return errors.New("an object without a provider or an ID")
	case o.Kind != "volume" && o.Kind != "filesystem" && o.Kind != "snapshot":
		return fmt.Errorf("an object of kind %q", o.Kind)
	case o.ModelUUID == "" || o.EntityUUID == "":
		return fmt.Errorf("%s %s without an owner", o.Kind, o.ID)
	}
	return nil
}

// CheckPath returns an error that satisfies errors.IsNotValid unless the path is absolute, and in its
// shortest form.
func CheckPath(p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p {
		return errors.NewNotValid(nil, fmt.Sprintf("%q is not an absolute path in its shortest form", p))
	}
	return nil
}

// maxID limits the length of an ID, in bytes.
const maxID = 1024

// CheckID returns an error that satisfies errors.IsNotValid unless an ID can be that of what a provider has.
func CheckID(id string) error {
	if id == "" || len(id) > maxID || !utf8.ValidString(id) {
		return errors.NewNotValid(nil, fmt.Sprintf("the ID has %d bytes: it is text of 1 to %d", len(id), maxID))
	}
	return nil
}

// checkDevice returns an error if a name is that of a file elsewhere.
func checkDevice(name string) error {
	if strings.Contains(name, "/") || name == "." || name == ".." {
		return fmt.Errorf("%q is not the name of a block device", name)
	}
	return nil
}

// ParseRequest returns a valid request. It refuses what it does not know, since an agent that ignored a
// part of a request would do something else. The error satisfies errors.IsNotValid.
func ParseRequest(data []byte) (Request, error) {
	var r Request
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return Request{}, errors.NewNotValid(err, "reading a task")
	}
	return r, r.Validate()
}
