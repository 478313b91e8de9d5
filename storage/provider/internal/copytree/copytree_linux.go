// Package copytree copies a directory with everything in it, for copies that stand for the
// original: it keeps owners, modes, times, ACLs and other extended attributes, hard links, symbolic
// links, holes, devices, sockets and FIFOs. Where the filesystem can, the copy shares blocks with
// the original.
//
// It leaves out what the kernel does not let a copy have or what belongs to a place on the disk:
// the time at which a file was made, inode numbers, quota projects, the attributes of chattr(1),
// such as immutable, and the division of a btrfs into subvolumes, which become directories. Space
// that was allocated in advance becomes a hole.
//
// It does not make the copy durable, and is not for directories that are in use.
package copytree

import (
	"context"
	"os"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/run"
	"github.com/stowage-io/stowage/storage/provider/internal/capability"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// cp is that of GNU: those of others lack options.
var cp = run.Program{Name: "cp", Package: "coreutils"}

// Copy copies what is in the directory from to the empty directory to, which also gets the owner,
// mode, times and extended attributes of from. It does not follow symbolic links, and does not copy
// what is mounted in from. If a process that has a file of from open exchanges its directories
// during the copy, the copy may have files from elsewhere: the caller must exclude such processes.
//
// The copy ends with ctx, or with this process, and is then incomplete. It has no other time limit,
// because it takes as long as there is data. The error satisfies errors.IsNotSupported if the
// program cp, or a capability, is missing.
func Copy(ctx context.Context, from, to *os.File) error {
	path, err := cp.Find()
	if err != nil {
		return errors.Trace(err)
	}
	// Without it, the kernel removes the setgid bits of other groups, and reports no error.
	if capability.FSetID.Missing() {
		return errors.NewNotSupported(nil, "copying a directory needs "+capability.FSetID.Name)
	}
	view, err := mount.Clone(from)
	if err != nil {
		return errors.Trace(err)
	}
	defer view.Close()
	source, err := os.Open(view.Path())
	if err != nil {
		return errors.Trace(err)
	}
	defer source.Close()
	_, err = run.Command{
		Path: path,
		Args: []string{
			"--recursive", "--no-dereference", "--preserve=mode,ownership,timestamps,links,xattr",
			"--reflink=auto", "--sparse=always", "--", run.FilePath(0) + "/.", run.FilePath(1) + "/.",
		},
		Files:          []*os.File{source, to},
		EndsWithCaller: true,
		EndsWithError:  true, // cp would try all the other files
	}.Run(ctx)
	err = capability.Explain(err, capability.DACOverride, capability.FOwner, capability.Chown, capability.MkNod, capability.SetFCap)
	return errors.Annotatef(err, "copying %s", from.Name())
}
