package mount

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/osthread"
)

// Namespace is what is mounted in one mount namespace.
type Namespace struct {
	// Own says that it is the namespace of this process.
	Own bool
	// PID is a process that lives there, 0 where none is known.
	PID int
	*Table
}

// ReadNamespaces reads the mounts of every mount namespace: of those that a process lives
// in, and where the kernel lists them (Linux 6.12) also of those that only a file or a
// descriptor keeps. It passes over namespaces that end while it reads, and what this
// process is not allowed to see.
func ReadNamespaces() []Namespace {
	var namespaces []Namespace
	seen := make(map[uint64]bool)
	own, _ := inode("/proc/thread-self/ns/mnt")
	for _, pid := range processes() {
		id, err := inode(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil || seen[id] {
			continue
		}
		table, err := readTableAt(unix.AT_FDCWD, fmt.Sprintf("/proc/%d/mountinfo", pid))
		if err != nil {
			continue
		}
		seen[id] = true
		namespaces = append(namespaces, Namespace{Own: id == own, PID: pid, Table: table})
	}
	eachNamespace(func(namespace *os.File) {
		var st unix.Stat_t
		if err := unix.Fstat(int(namespace.Fd()), &st); err != nil || seen[st.Ino] {
			return
		}
		if table, err := readTableIn(namespace); err == nil {
			seen[st.Ino] = true
			namespaces = append(namespaces, Namespace{Own: st.Ino == own, Table: table})
		}
	})
	return namespaces
}

func inode(path string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return st.Ino, err
}

// readTableAt reads the table at a path below a directory.
func readTableAt(dir int, path string) (*Table, error) {
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	return ParseTable(f)
}

// readTableIn reads the mounts of a namespace from inside.
func readTableIn(namespace *os.File) (table *Table, err error) {
	osthread.Do(func() {
		var proc int
		// There need be no /proc where it goes.
		if proc, err = unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return
		}
		defer unix.Close(proc)
		if err = unix.Unshare(unix.CLONE_FS); err != nil {
			return
		}
		if err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
			return
		}
		table, err = readTableAt(proc, "thread-self/mountinfo")
	})
	return table, err
}

// namespaceInfo is the kernel's struct mnt_ns_info.
type namespaceInfo struct {
	size, mounts uint32
	id           uint64
}

// The requests that lead from a mount namespace to its neighbours in the kernel's list,
// _IOR(0xb7, 11, struct mnt_ns_info) and 12, as linux/nsfs.h has them. They are the same
// on all architectures whose _IOR is the common one.
const (
	nextNamespace     = 0x8010b70b
	previousNamespace = 0x8010b70c
)

// eachNamespace calls f with each mount namespace of the machine that this process may
// see, but not its own. A kernel that does not list them has none.
func eachNamespace(f func(*os.File)) {
	for _, request := range []uintptr{nextNamespace, previousNamespace} {
		at, err := os.Open("/proc/thread-self/ns/mnt")
		for err == nil {
			var info namespaceInfo
			fd, _, errno := unix.Syscall(unix.SYS_IOCTL, at.Fd(), request, uintptr(unsafe.Pointer(&info)))
			at.Close()
			if errno != 0 {
				break
			}
			at = os.NewFile(fd, "mount namespace")
			unix.CloseOnExec(int(fd))
			f(at)
		}
	}
}

// Holders are the mounts of the namespace that filter picks out. Those of other
// namespaces are told with a process that sees them.
func (n Namespace) Holders(filter func(*Table) []*mountinfo.Info) []Holder {
	var holders []Holder
	for _, m := range filter(n.Table) {
		h := Holder{Name: Describe(m), How: "mounted at " + m.Mountpoint}
		switch {
		case n.Own:
		case n.PID != 0:
			h.PID, h.Name = n.PID, command(n.PID)
		default:
			h.How += " in a mount namespace that no process is seen in"
		}
		holders = append(holders, h)
	}
	return holders
}

// IsPrivate reports whether mounting and unmounting elsewhere does not change a mount.
func IsPrivate(m *mountinfo.Info) bool {
	return !strings.Contains(m.Optional, "shared:") && !strings.Contains(m.Optional, "master:")
}
