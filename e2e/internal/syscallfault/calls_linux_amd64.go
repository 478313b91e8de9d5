package syscallfault

import "golang.org/x/sys/unix"

// calls are the system calls that can be made to fail, by number. The older and the newer form
// of a call have the same name.
var calls = map[uint32]call{
	unix.SYS_FSYNC:      {"fsync", fd(0)},
	unix.SYS_FDATASYNC:  {"fdatasync", fd(0)},
	unix.SYS_WRITE:      {"write", fd(0)},
	unix.SYS_PWRITE64:   {"pwrite64", fd(0)},
	unix.SYS_READ:       {"read", fd(0)},
	unix.SYS_PREAD64:    {"pread64", fd(0)},
	unix.SYS_FTRUNCATE:  {"ftruncate", fd(0)},
	unix.SYS_FALLOCATE:  {"fallocate", fd(0)},
	unix.SYS_IOCTL:      {"ioctl", fd(0)},
	unix.SYS_FLOCK:      {"flock", fd(0)},
	unix.SYS_GETDENTS64: {"getdents64", fd(0)},
	unix.SYS_FSTAT:      {"fstat", fd(0)},
	unix.SYS_OPEN:       {"openat", path(0)},
	unix.SYS_OPENAT:     {"openat", at(0, 1)},
	unix.SYS_OPENAT2:    {"openat", at(0, 1)},
	unix.SYS_RENAME:     {"rename", path(1)},
	unix.SYS_RENAMEAT:   {"rename", at(2, 3)},
	unix.SYS_RENAMEAT2:  {"rename", at(2, 3)},
	unix.SYS_UNLINK:     {"unlink", path(0)},
	unix.SYS_RMDIR:      {"unlink", path(0)},
	unix.SYS_UNLINKAT:   {"unlink", at(0, 1)},
	unix.SYS_MKDIR:      {"mkdir", path(0)},
	unix.SYS_MKDIRAT:    {"mkdir", at(0, 1)},
	unix.SYS_STAT:       {"stat", path(0)},
	unix.SYS_LSTAT:      {"stat", path(0)},
	unix.SYS_NEWFSTATAT: {"stat", at(0, 1)},
	unix.SYS_STATX:      {"statx", at(0, 1)},
	unix.SYS_STATFS:     {"statfs", path(0)},
	unix.SYS_FSTATFS:    {"statfs", fd(0)},
	unix.SYS_GETXATTR:   {"getxattr", path(0)},
	unix.SYS_LGETXATTR:  {"getxattr", path(0)},
	unix.SYS_FGETXATTR:  {"getxattr", fd(0)},
	unix.SYS_SETXATTR:   {"setxattr", path(0)},
	unix.SYS_LSETXATTR:  {"setxattr", path(0)},
	unix.SYS_FSETXATTR:  {"setxattr", fd(0)},
	unix.SYS_READLINK:   {"readlink", path(0)},
	unix.SYS_READLINKAT: {"readlink", at(0, 1)},
	unix.SYS_MOUNT:      {"mount", path(1)},
	unix.SYS_UMOUNT2:    {"umount2", path(0)},
	unix.SYS_MOVE_MOUNT: {"move_mount", at(2, 3)},
	unix.SYS_OPEN_TREE:  {"open_tree", at(0, 1)},
	unix.SYS_FSOPEN:     {"fsopen", anywhere},
	unix.SYS_FSCONFIG:   {"fsconfig", anywhere},
	unix.SYS_FSMOUNT:    {"fsmount", anywhere},
}

const auditArch = unix.AUDIT_ARCH_X86_64
