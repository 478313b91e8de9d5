// Package mkfs makes filesystems on block devices with the programs of the filesystems'
// authors.
//
// It overwrites whatever is on the device without asking: call it only after
// signature.ProveBlank has found the device blank.
package mkfs

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/run"
	"github.com/stowage-io/stowage/storage/provider/internal/options"
)

const (
	// Attribute is the name of the pool attribute that chooses the type.
	Attribute = "fs"
	// Default is the type if the attribute is not set.
	Default = "ext4"
)

// Type is a filesystem type that can be made.
type Type struct {
	// Name is the name of the type, for users, the kernel and blkid.
	Name string
	// MinSize is the size in MiB of the smallest device on which the type fits. Some options
	// need more.
	MinSize uint64
	// LocksDevice means that the program may take the exclusive flock of the device itself,
	// and fails if its caller holds that lock.
	LocksDevice bool

	program run.Program
	// clear removes data that the program would refuse to overwrite; nil: no such data
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
		// -F lets mke2fs use a device that is not a partition. The device was proven blank, so
		// discarding it is useless, and would free the space of a thick volume. The kernel
		// initializes the inode tables in the background. With "-e remount-ro", a filesystem
		// that is found damaged becomes read-only.
		flags: func(uuid string) []flag {
			return []flag{
				{"-q", ""}, {"-F", ""}, {"-m", "0"}, {"-b", "4096"}, {"-U", uuid}, {"-e", "remount-ro"},
				{"-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"},
			}
		},
		options: ext4Options(),
	}, {
		Name: "xfs",
		// mkfs.xfs has refused smaller devices since version 5.19.
		MinSize:     300,
		LocksDevice: true, // newer versions take it
		program:     run.Program{Name: "mkfs.xfs", Package: "xfsprogs"},
		// -f overwrites what a killed run has left. -K does not discard, for the same reason
		// as for ext4.
		flags: func(uuid string) []flag {
			return []flag{{"-q", ""}, {"-f", ""}, {"-K", ""}, {"-m", "uuid=" + uuid}}
		},
		options: xfsOptions(),
	}, {
		Name: "btrfs",
		// mkfs.btrfs reports 114294784 bytes, with metadata stored twice.
		MinSize:     109,
		LocksDevice: true, // newer versions take it
		program:     run.Program{Name: "mkfs.btrfs", Package: "btrfs-progs"},
		clear:       clearBtrfs,
		flags: func(uuid string) []flag {
			return []flag{{"-q", ""}, {"-f", ""}, {"-K", ""}, {"-U", uuid}, {"--metadata", "dup"}}
		},
		options: btrfsOptions(),
	}}
}

// Names returns the names of the types.
func Names() []string {
	var names []string
	for _, t := range Types() {
		names = append(names, t.Name)
	}
	return names
}

// Parse returns the type named by the value of the attribute "fs"; nil and the empty string
// mean the default. The error satisfies errors.IsNotValid.
func Parse(value any) (Type, error) {
	name, ok := value.(string)
	if value != nil && !ok {
		return Type{}, errors.NewNotValid(nil, fmt.Sprintf("attribute %q is %T, want the name of a filesystem type", Attribute, value))
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

// Check checks that the program that makes the type is installed. The error satisfies
// errors.IsNotSupported and names the Debian package.
func (t Type) Check() error {
	_, err := t.program.Find()
	return errors.Annotatef(err, "making %s", t.Name)
}

// Make makes a filesystem with the UUID on the device, with options from ParseOptions. It
// overwrites whatever is on the device, including an earlier filesystem with the same UUID.
// The program works on the device that dev has open, whatever device has its name now.
func (t Type) Make(ctx context.Context, dev *os.File, uuid string, chosen []options.Choice) error {
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
		// mkfs.btrfs looks at the file behind each mounted loop device, and fails if one of
		// them is on a disk that has failed. Isolation hides them. The kernel still makes sure
		// that the device itself is not in use: each program opens it exclusively.
		Isolated: true,
	}.Run(ctx)
	return errors.Annotatef(err, "making %s", t.Name)
}
