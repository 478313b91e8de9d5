// Package fsattr reads the attributes with which pools and filesystems choose what is made on
// a volume and how it is mounted. docs/reference/filesystems.md lists them.
package fsattr

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/mkfs"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/options"
)

// The names of the attributes.
const (
	Type         = mkfs.Attribute
	MkfsOptions  = "mkfs-options"
	MountOptions = "mount-options"
	// UUID is an attribute of filesystems only: a filesystem with this UUID is already on the
	// volume.
	UUID = "uuid"
	// Copied is an attribute of filesystems only. If it is true, the volume is a copy of another one. It has
	// a copy of the filesystem there, with the UUID of the original, if that was made.
	Copied = "copied"
	// Mounted is an attribute of filesystems only. If it is true, the volume is a filesystem of its provider.
	Mounted = "mounted"
)

// OfPools returns the names of the attributes of pools of volumes.
func OfPools() []string { return []string{Type, MkfsOptions, MountOptions} }

// Choice is what the attributes choose.
type Choice struct {
	Type mkfs.Type
	// AnyType means that the filesystem that exists may be of any type.
	AnyType bool
	// Mkfs and Mount are options as the user wrote them. They have been checked, except for
	// Mount if AnyType is set.
	Mkfs, Mount string
	// UUID, if not empty, is the UUID of the filesystem to take over.
	UUID string
	// Copied says that the volume is a copy, which may have a filesystem.
	Copied bool
	// Mounted says that the volume is a filesystem of its provider. The other attributes are the provider's.
	Mounted bool

	chosen []options.Choice
}

// CheckSize checks whether the filesystem to be made fits on a device of size MiB. A
// filesystem that exists already fits, however small the device is. The error satisfies
// errors.IsNotValid.
func (c Choice) CheckSize(size uint64) error {
	if c.exists() {
		return nil
	}
	return c.Type.CheckSize(size, c.chosen)
}

// exists reports whether the filesystem exists already.
func (c Choice) exists() bool { return c.UUID != "" || c.Copied || c.Mounted }

// LeastSize returns the size in MiB of the smallest device on which the filesystem can be made.
func (c Choice) LeastSize() uint64 { return c.Type.LeastSize(c.chosen) }

// Parse reads the attributes of a filesystem and ignores all other attributes. The error
// satisfies errors.IsNotValid.
func Parse(attrs map[string]any) (Choice, error) {
	var c Choice
	var err error
	if c.Mounted, err = flag(attrs, Mounted); c.Mounted || err != nil {
		return c, errors.Trace(err)
	}
	if c.Type, err = mkfs.Parse(attrs[Type]); err != nil {
		return Choice{}, errors.Trace(err)
	}
	if c.UUID, err = parseUUID(attrs); err != nil {
		return Choice{}, errors.Trace(err)
	}
	if c.Copied, err = flag(attrs, Copied); err != nil {
		return Choice{}, errors.Trace(err)
	}
	if c.Mount, err = text(attrs, MountOptions); err != nil {
		return Choice{}, errors.Trace(err)
	}
	if c.Mkfs, err = text(attrs, MkfsOptions); err != nil {
		return Choice{}, errors.Trace(err)
	}
	// An existing filesystem is not made, so the pool's mkfs options do not matter.
	if c.UUID == "" {
		if c.chosen, err = c.Type.ParseOptions(c.Mkfs); err != nil {
			return Choice{}, errors.Annotatef(err, "attribute %q", MkfsOptions)
		}
	}
	c.AnyType = c.exists() && (attrs[Type] == nil || attrs[Type] == "")
	if c.AnyType {
		return c, nil
	}
	return c, CheckMount(c.Type.Name, c.Mount)
}

// Discards reports whether the filesystem tells its device which blocks it no longer uses.
func (c Choice) Discards() bool {
	return slices.ContainsFunc(strings.Split(c.Mount, ","), func(option string) bool {
		key, _, _ := strings.Cut(option, "=")
		return key == "discard"
	})
}

// CheckMount checks whether a filesystem type accepts a value of the attribute
// "mount-options". The error satisfies errors.IsNotValid.
func CheckMount(fsType, value string) error {
	_, err := mount.ParseOptions(fsType, value)
	return errors.Annotatef(err, "attribute %q", MountOptions)
}

// ParseMount reads the mount options of a filesystem that is not on a volume, and ignores all
// other attributes. It returns them as the user wrote them. The type is one that
// [mount.Options] knows. The error satisfies errors.IsNotValid.
func ParseMount(fsType string, attrs map[string]any) (string, error) {
	value, err := text(attrs, MountOptions)
	if err != nil {
		return "", errors.Trace(err)
	}
	return value, CheckMount(fsType, value)
}

// ParsePool reads the attributes of a pool, which apply to the filesystems made on its
// volumes, as Parse does.
func ParsePool(attrs map[string]any) (Choice, error) {
	for _, name := range []string{UUID, Copied, Mounted} {
		if _, ok := attrs[name]; ok {
			return Choice{}, errors.NewNotValid(nil, fmt.Sprintf("attribute %q is allowed for a filesystem, not for a pool", name))
		}
	}
	return Parse(attrs)
}

func parseUUID(attrs map[string]any) (string, error) {
	value, err := text(attrs, UUID)
	if value == "" || err != nil {
		return "", errors.Trace(err)
	}
	id, err := CanonicalUUID(value)
	return id, errors.Annotatef(err, "attribute %q", UUID)
}

// CanonicalUUID returns a UUID in the form in which superblocks are read: lower-case, in
// groups. The error satisfies errors.IsNotValid.
func CanonicalUUID(value string) (string, error) {
	id, err := uuid.Parse(value)
	if err != nil || len(value) != 36 || id == uuid.Nil {
		return "", errors.NewNotValid(nil, fmt.Sprintf("%q is not the UUID of a filesystem: use the form that blkid prints", value))
	}
	return id.String(), nil
}

func flag(attrs map[string]any, name string) (bool, error) {
	switch value := attrs[name].(type) {
	case nil:
		return false, nil
	case bool:
		return value, nil
	default:
		return false, errors.NewNotValid(nil, fmt.Sprintf("attribute %q: %v is neither true nor false", name, value))
	}
}

func text(attrs map[string]any, name string) (string, error) {
	value, ok := attrs[name]
	if !ok || value == nil {
		return "", nil
	}
	s, ok := value.(string)
	if !ok {
		return "", errors.NewNotValid(nil, fmt.Sprintf("attribute %q is %T, want a string", name, value))
	}
	return s, nil
}
