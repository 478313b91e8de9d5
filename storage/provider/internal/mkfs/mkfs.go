// Package mkfs makes filesystems on block devices with the programs of the
// filesystems' authors.
//
// It overwrites whatever is on the device without asking: call it only after
// signature.ProveBlank has said that nothing is.
package mkfs

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/internal/run"
	"github.com/stowage-io/stowage/storage/provider/internal/options"
)

const (
	// Attribute is the name of the pool attribute that chooses the type.
	Attribute = "fs"
	// Default is the type where the attribute is not given.
	Default = "ext4"
)

// Type is a filesystem type that can be made.
type Type struct {
	// Name is the name of the type: to users, to the kernel and to blkid.
	Name string
	// MinSize is the size in MiB of the smallest device that takes it. Some options
	// need more.
	MinSize uint64
	// LocksDevice is set where the program may take the exclusive flock of
	// the device for itself, so that a caller who holds it makes it fail.
	LocksDevice bool

	program run.Program
	// clear removes what the program would refuse to overwrite; nil: nothing.
	clear   func(dev *os.File) error
	flags   func(uuid string) []flag
	options []Option
}

// Types returns the filesystem types that can be made, the default first.
func Types() []Type {
	return []Type{{
		Name:    "ext4",
		MinSize: 1,
		program: run.Program{Name: "mkfs.ext4", Package: "e2fsprogs"},
		// -F lets mke2fs take a device that is not a partition. The device
		// was proven blank, so nothing is gained by discarding it, and a
		// discard would give back the space of a thick volume. The kernel
		// clears inode tables in the background. One that is found damaged is
		// written to no more.
		flags: func(uuid string) []flag {
			return []flag{
				{"-q", ""}, {"-F", ""}, {"-m", "0"}, {"-b", "4096"}, {"-U", uuid}, {"-e", "remount-ro"},
				{"-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"},
			}
		},
		options: ext4Options(),
	}, {
		Name: "xfs",
		// mkfs.xfs refuses less since version 5.19.
		MinSize:     300,
		LocksDevice: true, // newer versions do
		program:     run.Program{Name: "mkfs.xfs", Package: "xfsprogs"},
		// -f is for what a run that was killed has left; -K does not
		// discard, as above.
		flags: func(uuid string) []flag {
			return []flag{{"-q", ""}, {"-f", ""}, {"-K", ""}, {"-m", "uuid=" + uuid}}
		},
		options: xfsOptions(),
	}, {
		Name: "btrfs",
		// mkfs.btrfs says 114294784 bytes, with metadata that are kept twice.
		MinSize:     109,
		LocksDevice: true, // newer versions do
		program:     run.Program{Name: "mkfs.btrfs", Package: "btrfs-progs"},
		clear:       clearBtrfs,
		flags: func(uuid string) []flag {
			return []flag{{"-q", ""}, {"-f", ""}, {"-K", ""}, {"-U", uuid}, {"--metadata", "dup"}}
		},
		options: btrfsOptions(),
	}}
}

// Names are the names of the types.
func Names() []string {
	var names []string
	for _, t := range Types() {
		names = append(names, t.Name)
	}
	return names
}

// Parse returns the type that the value of the attribute "fs" names; nil and
// the empty string name the default. The error satisfies errors.IsNotValid.
func Parse(value any) (Type, error) {
	name, ok := value.(string)
	if value != nil && !ok {
		return Type{}, errors.NotValidf("attribute %q: %T, want the name of a filesystem type,", Attribute, value)
	}
	if name == "" {
		name = Default
	}
	for _, t := range Types() {
		if t.Name == name {
			return t, nil
		}
	}
	return Type{}, errors.NewNotValid(nil, fmt.Sprintf("attribute %q is %q, want one of %s",
		Attribute, name, strings.Join(Names(), ", ")))
}

// Check says whether the program that makes the type is here. The error
// satisfies errors.IsNotSupported and names the Debian package.
func (t Type) Check() error {
	_, err := t.program.Find()
	return errors.Annotatef(err, "making %s", t.Name)
}

// Make makes a filesystem with the UUID on the device, and with options that
// ParseOptions has returned. An earlier filesystem with the same UUID on the device is
// overwritten like everything else. The program works on the very device that dev has
// open, whatever has become of its name.
func (t Type) Make(ctx context.Context, dev *os.File, uuid string, chosen []options.Given) error {
	if t.clear != nil {
		if err := t.clear(dev); err != nil {
			return errors.Annotatef(err, "making %s", t.Name)
		}
	}
	path, err := t.program.Find()
	if err != nil {
		return errors.Annotatef(err, "making %s", t.Name)
	}
	_, err = run.Command{
		Path:  path,
		Args:  append(t.arguments(uuid, chosen), run.FilePath(0)),
		Files: []*os.File{dev},
		// mkfs.btrfs looks at the file behind each loop device that is mounted, and fails
		// where one of them is on a disk that has failed. That the device is not in use
		// itself is for the kernel to say: each program opens it exclusively.
		Isolated: true,
	}.Run(ctx)
	return errors.Annotatef(err, "making %s", t.Name)
}
