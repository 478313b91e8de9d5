package spec

import (
	"fmt"
	"path"
	"slices"
	"strconv"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

const (
	// MaxBytes bounds the size of a file.
	MaxBytes = 1 << 20
	// MaxInstances bounds the number of instances that one file may request, as the sum of all
	// counts.
	MaxInstances = 100_000
	// maxPoolName bounds the name of a pool, in bytes.
	maxPoolName = 255
)

// File is the parsed content of a file.
type File struct {
	// Name is the file's name as the user gave it. It is used only in messages.
	Name    string
	Storage []Storage
	Pools   []Pool
}

// Storage declares one storage instance, or several of the same form.
type Storage struct {
	Entry
	Name string
	// Directive has a pool, a size, and a count of at least 1.
	Directive storage.Directive
	Kind      storage.StorageKind
	// From says whose contents the storage gets; zero for an empty one. In a file, it is a snapshot.
	From state.From
	// Asker is the program that asks for the storage; zero for a user.
	Asker state.Asker
	// Labels are what the file says about the storage; nil if it does not say.
	Labels map[string]string
	// Machine is the name or the number of the machine that is to have the storage, or
	// [machine.Any]; empty if the file does not say.
	Machine string
	// MachineLabels are those that a machine must have to be chosen for [machine.Any].
	MachineLabels map[string]string
	// Detached says that the storage is made, and not attached.
	Detached bool
	// Mount is a clean absolute path for a filesystem, empty for a block device.
	Mount string
	// Filesystem and MkfsOptions choose the filesystem that is made on a volume, MountOptions
	// how any filesystem is mounted; empty if the file does not choose. Options are
	// comma-separated, each `key` or `key=value`.
	Filesystem, MkfsOptions, MountOptions string
}

// IsAnywhere reports whether a machine is to be chosen for the storage.
func (s *Storage) IsAnywhere() bool { return s.Machine == machine.Any }

// Choice is a field by which a file chooses a filesystem.
type Choice struct {
	Field string
	Value *string
	// OnVolume says that only filesystems on volumes have the choice.
	OnVolume bool
}

// Choices returns the choices of an entry: the type first, and then the options, which depend
// on it.
func (s *Storage) Choices() []Choice {
	return []Choice{
		{"filesystem", &s.Filesystem, true},
		{"mkfs-options", &s.MkfsOptions, true},
		{"mount-options", &s.MountOptions, false},
	}
}

// ChoicesFor returns the choices that an entry has if its filesystem is on a volume, or else is made
// by the provider itself. A block device has none.
func (s *Storage) ChoicesFor(onVolume bool) []Choice {
	return slices.DeleteFunc(s.Choices(), func(c Choice) bool {
		return s.Kind == storage.StorageKindBlock || c.OnVolume && !onVolume
	})
}

// Pool declares a named configuration of a provider.
type Pool struct {
	Entry
	Name       string
	Provider   storage.ProviderType
	Attributes storage.Attrs
}

// Instance is one of the instances that a [Storage] declares.
type Instance struct {
	Name  string
	Mount string
}

// Instances returns the instances of the entry: itself, or, if its count is more than one,
// NAME/0, NAME/1, … mounted on MOUNT/0, MOUNT/1, ….
func (s Storage) Instances() []Instance {
	if s.Directive.Count == 1 {
		return []Instance{{Name: s.Name, Mount: s.Mount}}
	}
	instances := make([]Instance, s.Directive.Count)
	for i := range instances {
		number := strconv.Itoa(i)
		instances[i].Name = s.Name + "/" + number
		if s.Mount != "" {
			instances[i].Mount = path.Join(s.Mount, number)
		}
	}
	return instances
}

// Entry is the position of a list item in the file. For a request that is in no file, it has only a
// title, and the names of its fields.
type Entry struct {
	file   string
	title  string
	line   int
	fields map[string]int
}

// Errorf returns an error about a field of the entry, or, if field is empty, about the entry
// as a whole. A request need not have the field.
func (e Entry) Errorf(field, format string, args ...any) error {
	line := e.line
	if at, ok := e.fields[field]; ok {
		line = at
	}
	what := e.title + ": "
	_, known := e.fields[field]
	switch {
	case e.file == "" && known, e.file != "" && field != "":
		what += field + ": "
	}
	if e.file == "" {
		return errors.NewNotValid(nil, what+fmt.Sprintf(format, args...))
	}
	return invalid(e.file, line, "%s%s", what, fmt.Sprintf(format, args...))
}

// RequestFile is the name of a file that stands for one request: its user knows no lines.
const RequestFile = "(request)"

func invalid(file string, line int, format string, args ...any) error {
	if file == RequestFile {
		return errors.NewNotValid(nil, fmt.Sprintf(format, args...))
	}
	return errors.NewNotValid(nil, fmt.Sprintf("%s:%d: %s", file, line, fmt.Sprintf(format, args...)))
}
