// Package fsuuid gives a filesystem on a block device another UUID. It is for copies of a device,
// whose filesystem has the UUID of the original: the kernel does not mount two xfs or btrfs
// filesystems with the same UUID, and a UUID identifies a filesystem on a machine.
//
// It writes to the device with the programs of the filesystems' authors. It is not for devices
// that are in use.
package fsuuid

import (
	"context"
	"encoding/binary"
	"os"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/run"
	"github.com/stowage-io/stowage/internal/superblock"
	"github.com/stowage-io/stowage/storage/provider/internal/capability"
)

// Set gives the filesystem on a device the UUID. The filesystem must be of the given type: ext4,
// xfs or btrfs. It may be as a power cut, or a snapshot of a mounted device, has left it: what is
// in its log is written to its place first. Nothing else may use the device. dev must be open for
// writing, and its name must be the path of the device. The original of the filesystem may be
// mounted. A btrfs with a log cannot be mounted beside it before Linux 6.7, which is an error; a
// snapshot of a mounted btrfs has none, because freezing it empties the log.
//
// Set can be repeated, also after it was interrupted. The error satisfies errors.IsNotSupported if
// the type is another one, or if a program is missing.
func Set(ctx context.Context, dev *os.File, fsType, id string) error {
	if parsed, err := uuid.Parse(id); err != nil || parsed.String() != id {
		return errors.NotValidf("UUID %q", id)
	}
	var err error
	switch fsType {
	case "ext4":
		err = setExt4(ctx, dev, id)
	case "xfs":
		err = setXFS(ctx, dev, id)
	case "btrfs":
		err = setBtrfs(ctx, dev, id)
	default:
		return errors.NotSupportedf("changing the UUID of %s", fsType)
	}
	return errors.Annotatef(err, "changing the UUID of the %s on %s", fsType, dev.Name())
}

func setExt4(ctx context.Context, dev *os.File, id string) error {
	// tune2fs computes all checksums again, and refuses a filesystem that was not checked since it
	// was last mounted. e2fsck also replays the journal, and completes an interrupted tune2fs.
	err := tool(ctx, run.Program{Name: "e2fsck", Package: "e2fsprogs"}, dev, "-f", "-p")
	var exit *run.Error
	if errors.As(err, &exit) && exit.ExitCode == 1 { // it has repaired something
		err = nil
	}
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(tool(ctx, run.Program{Name: "tune2fs", Package: "e2fsprogs"}, dev, "-f", "-U", id))
}

func setXFS(ctx context.Context, dev *os.File, id string) error {
	// xfs_db refuses a filesystem whose log is not empty, and only the kernel can replay it.
	if err := mountOnce("xfs", dev, "nouuid"); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(tool(ctx, run.Program{Name: "xfs_db", Package: "xfsprogs"}, dev, "-x", "-c", "uuid "+id))
}

func setBtrfs(ctx context.Context, dev *os.File, id string) error {
	sb, err := readBtrfs(dev)
	if err != nil {
		return errors.Trace(err)
	}
	// btrfstune refuses the UUID that the filesystem has already.
	if sb.uuid == id && !sb.changing {
		return nil
	}
	// btrfstune makes the log useless. Where nothing is in the log, the filesystem is not mounted:
	// kernels before 6.7 refuse to mount it beside the original.
	if sb.hasLog {
		if err := mountOnce("btrfs", dev, "nodiscard"); err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(tool(ctx, run.Program{Name: "btrfstune", Package: "btrfs-progs"}, dev, "-f", "-M", id))
}

// btrfs is what matters here in the superblock of a btrfs.
type btrfs struct {
	uuid string
	// changing reports that a change of the UUID was interrupted.
	changing bool
	hasLog   bool
}

// The place of the superblock, and of fields in it, and the flags with which btrfstune marks a
// filesystem whose UUID is being changed: kernel-shared/uapi/btrfs_tree.h of btrfs-progs.
const (
	btrfsSuperblock = 64 << 10
	btrfsFlags      = 0x38
	btrfsLogRoot    = 0x60
	btrfsChanging   = 1<<35 | 1<<36
)

func readBtrfs(dev *os.File) (btrfs, error) {
	found, err := superblock.Read(dev)
	if err != nil {
		return btrfs{}, errors.Trace(err)
	}
	if found.Type != "btrfs" {
		return btrfs{}, errors.NewNotValid(nil, "there is no btrfs")
	}
	var fields [btrfsLogRoot + 8]byte
	if _, err := dev.ReadAt(fields[:], btrfsSuperblock); err != nil {
		return btrfs{}, errors.Trace(err)
	}
	return btrfs{
		uuid:     found.UUID,
		changing: binary.LittleEndian.Uint64(fields[btrfsFlags:])&btrfsChanging != 0,
		hasLog:   binary.LittleEndian.Uint64(fields[btrfsLogRoot:]) != 0,
	}, nil
}

func tool(ctx context.Context, p run.Program, dev *os.File, args ...string) error {
	path, err := p.Find()
	if err != nil {
		return errors.Trace(err)
	}
	// Isolated: the programs look at all mounts, to see whether the device is in use, and would
	// find the original. The kernel still gives them the device only if nobody else uses it.
	_, err = run.Command{Path: path, Args: append(args, run.FilePath(0)), Files: []*os.File{dev}, Isolated: true}.Run(ctx)
	return errors.Trace(err)
}

// mountOnce mounts a filesystem where nobody sees it, and unmounts it.
func mountOnce(fsType string, dev *os.File, option string) error {
	fd, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return errors.Annotate(capability.Explain(err, capability.SysAdmin), "fsopen")
	}
	defer unix.Close(fd)
	if err := unix.FsconfigSetString(fd, "source", dev.Name()); err != nil {
		return errors.Annotate(err, "fsconfig source")
	}
	if err := unix.FsconfigSetFlag(fd, option); err != nil {
		return errors.Annotatef(err, "fsconfig %s", option)
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return errors.Annotate(err, "mounting it to replay its log")
	}
	mount, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return errors.Annotate(err, "fsmount")
	}
	return errors.Trace(unix.Close(mount))
}
