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

// Namespace is a mount namespace with its mounts.
type Namespace struct {
	// Own means that this is the namespace of this process.
	Own bool
	// PID is a process in the namespace, 0 if none is known.
	PID int
	*Table
}

// ReadNamespaces reads the mounts of every mount namespace: of those that have a process and,
// if the kernel lists them (Linux 6.12), of those that only a file or a descriptor keeps
// alive. It ignores namespaces that end while it reads, and those that this process is not
// allowed to see.
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

// readTableAt reads the table at a path relative to a directory.
func readTableAt(dir int, path string) (*Table, error) {
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	return ParseTable(f)
}

// readTableIn enters a namespace and reads its mounts from inside.
func readTableIn(namespace *os.File) (table *Table, err error) {
	osthread.Do(func() {
		var proc int
		// The other namespace may have no /proc.
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

// The ioctls that lead from a mount namespace to its neighbours in the kernel's list:
// _IOR(0xb7, 11, struct mnt_ns_info) and 12, in linux/nsfs.h. Their values are the same on all
// architectures that have the common _IOR.
const (
	nextNamespace     = 0x8010b70b
	previousNamespace = 0x8010b70c
)

// eachNamespace calls f with each mount namespace of the machine that this process may see,
// except its own. It does nothing if the kernel does not list namespaces.
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

// Holders returns the mounts of the namespace that filter selects. A mount in another
// namespace is described with a process that sees it.
func (n Namespace) Holders(filter func(*Table) []*mountinfo.Info) []Holder {
	var holders []Holder
	for _, m := range filter(n.Table) {
		h := Holder{Name: Describe(m), How: "mounted at " + m.Mountpoint}
		switch {
		case n.Own:
		case n.PID != 0:
			h.PID, h.Name = n.PID, command(n.PID)
		default:
			h.How += " in a mount namespace without a visible process"
		}
		holders = append(holders, h)
	}
	return holders
}

// IsPrivate reports whether a mount is unaffected by mounting and unmounting elsewhere.
func IsPrivate(m *mountinfo.Info) bool {
	return !strings.Contains(m.Optional, "shared:") && !strings.Contains(m.Optional, "master:")
}
