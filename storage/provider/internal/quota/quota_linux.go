package quota

import (
	"os"
	"unsafe"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

const (
	// Project numbers here have 31 bits. No other program is known to use this range: people
	// number theirs from 1, container engines continue from there, and Kubernetes begins at
	// 1<<20.
	firstProject = 1 << 30
	projectMask  = firstProject - 1

	// maxTaken is how many used numbers FreeProject tries before it fails.
	maxTaken = 1000
)

// Constants from linux/quota.h and linux/dqblk_xfs.h.
const (
	projectQuota = 2
	getQuota     = 0x800007
	setQuota     = 0x800008
	getState     = 'X'<<8 + 8

	stateVersion = 1
	accounted    = 1 << 4
	enforced     = 1 << 5

	limitUnit  = 1024
	limitsOnly = 1
)

// state is the beginning of struct fs_quota_statv, with space for the rest.
type state struct {
	version int8
	_       uint8
	flags   uint16
	_       [63]uint32
}

// usage is struct if_dqblk.
type usage struct {
	hardLimit, softLimit, space           uint64 // limits are in units of limitUnit, space is in bytes
	hardInodes, softInodes, inodes, _, __ uint64
	valid                                 uint32
}

// Check returns an error that satisfies errors.IsNotSupported unless the filesystem of an open
// directory currently enforces project quotas.
func Check(dir *os.File) error {
	s := state{version: stateVersion}
	if err := control(dir, getState, 0, unsafe.Pointer(&s)); err != nil {
		return errors.Trace(err)
	}
	if s.flags&(accounted|enforced) != accounted|enforced {
		return none(dir)
	}
	_, err := ProjectOf(dir)
	return errors.Trace(err)
}

// FreeProject returns a project without files and without a limit, for an open directory with
// the given inode number. Two directories that exist at the same time get the same project
// only if their inode numbers agree in 30 bits and neither has been moved to its project yet.
func FreeProject(dir *os.File, ino uint64) (uint32, error) {
	// The filesystem reuses inode numbers, and a reused one leads to the same project, for
	// which the filesystem already has a quota record.
	first := ino ^ ino>>30 ^ ino>>60
	for i := range uint64(maxTaken) {
		project := uint32(firstProject | (first+i)&projectMask)
		free, err := isFree(dir, project)
		if err != nil {
			return 0, errors.Trace(err)
		} else if free {
			return project, nil
		}
	}
	return 0, errors.Errorf("%d quota projects from %d on are taken on the filesystem of %s",
		maxTaken, firstProject|first&projectMask, dir.Name())
}

// IsOwn reports whether a project is one that FreeProject may return.
func IsOwn(project uint32) bool {
	return project&^projectMask == firstProject
}

func isFree(dir *os.File, project uint32) (bool, error) {
	var u usage
	err := control(dir, getQuota, project, unsafe.Pointer(&u))
	if errors.Is(err, unix.ENOENT) {
		return true, nil // xfs has no record of the project
	}
	return u.hardLimit|u.softLimit|u.space|u.hardInodes|u.softInodes|u.inodes == 0, errors.Trace(err)
}

// SetLimit sets the number of bytes that the files of a project may use on the filesystem of
// an open directory, rounded up to KiB; 0 means no limit. If the filesystem has no project
// quota, the error satisfies errors.IsNotSupported.
func SetLimit(dir *os.File, project uint32, bytes uint64) error {
	u := usage{hardLimit: (bytes + limitUnit - 1) / limitUnit, valid: limitsOnly}
	return errors.Trace(control(dir, setQuota, project, unsafe.Pointer(&u)))
}

// control is quotactl_fd(2).
func control(dir *os.File, command, project uint32, data unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, dir.Fd(),
		uintptr(command<<8|projectQuota), uintptr(project), uintptr(data), 0, 0)
	switch errno {
	case 0:
		return nil
	case unix.ENOSYS, unix.EINVAL, unix.EOPNOTSUPP, unix.ESRCH:
		// The kernel, the filesystem type or this mount does not support project quotas.
		return none(dir)
	case unix.EPERM:
		return errors.NewNotSupported(errno, "setting project quotas needs CAP_SYS_ADMIN")
	}
	return &os.PathError{Op: "quotactl_fd", Path: dir.Name(), Err: errno}
}

func none(dir *os.File) error {
	return errors.NewNotSupported(nil, "the filesystem of "+dir.Name()+" has no project quota")
}
