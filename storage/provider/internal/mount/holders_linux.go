package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/capability"
)

// maxHolders is how many holders an error text names.
const maxHolders = 5

// Holder is a process, or something in the kernel, that keeps a mount or a block
// device busy.
type Holder struct {
	PID  int    // 0 for something in the kernel
	Name string // command name, or name of the block device on top
	How  string // "working directory", "open file /srv/data/log", "mounted at /srv/data"
}

func (h Holder) String() string {
	if h.PID == 0 {
		return fmt.Sprintf("%s (%s)", h.Name, h.How)
	}
	return fmt.Sprintf("process %d (%s): %s", h.PID, h.Name, h.How)
}

// DescribeHolders is a text for an error.
func DescribeHolders(holders []Holder) string {
	if len(holders) == 0 && capability.SysPtrace.Missing() {
		return "held by nobody who can be seen without " + capability.SysPtrace.Name
	} else if len(holders) == 0 {
		return "held by nobody who can be seen from here"
	}
	names := make([]string, 0, maxHolders+1)
	for i, h := range holders {
		if i == maxHolders {
			names = append(names, fmt.Sprintf("and %d more", len(holders)-i))
			break
		}
		names = append(names, h.String())
	}
	return "held by " + strings.Join(names, ", ")
}

// HoldersOfMount names the processes that have a file or directory of a mount in
// use. What cannot be read, such as a process that ends meanwhile, is passed
// over: the result is for people to read, not to decide by.
func HoldersOfMount(mountID uint64) []Holder {
	return scanProcesses(func(st *unix.Statx_t) bool {
		return st.Mnt_id == mountID
	})
}

// HoldersOfFile names the other processes that have a file open.
func HoldersOfFile(dev, ino uint64) []Holder {
	holders := scanProcesses(func(st *unix.Statx_t) bool {
		return st.Ino == ino && unix.Mkdev(st.Dev_major, st.Dev_minor) == dev
	})
	return slices.DeleteFunc(holders, func(h Holder) bool { return h.PID == os.Getpid() })
}

// HoldersOfDevice names who keeps a block device busy: processes that have it
// open, mounts of it in any mount namespace, block devices built on it.
func HoldersOfDevice(major, minor uint32) []Holder {
	holders := scanProcesses(func(st *unix.Statx_t) bool {
		return st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev_major == major && st.Rdev_minor == minor
	})
	for _, namespace := range ReadNamespaces() {
		holders = append(holders, namespace.Holders(func(t *Table) []*mountinfo.Info {
			return t.OfDevice(major, minor)
		})...)
	}
	onTop, _ := os.ReadDir(fmt.Sprintf("/sys/dev/block/%d:%d/holders", major, minor))
	for _, entry := range onTop {
		holders = append(holders, Holder{Name: entry.Name(), How: "block device on top"})
	}
	return holders
}

// processes lists the running processes.
func processes() []int {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	sort.Ints(pids)
	return pids
}

// scanProcesses names each process once, with the first thing of it that matches.
func scanProcesses(match func(*unix.Statx_t) bool) []Holder {
	var holders []Holder
	for _, pid := range processes() {
		dir := fmt.Sprintf("/proc/%d", pid)
		things := []string{"cwd", "root", "exe"}
		fds, _ := os.ReadDir(filepath.Join(dir, "fd"))
		for _, fd := range fds {
			things = append(things, "fd/"+fd.Name())
		}
		for _, thing := range things {
			var st unix.Statx_t
			path := filepath.Join(dir, thing)
			// The magic link leads to the file itself, without a lookup that a
			// dead network filesystem could block.
			err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT,
				unix.STATX_TYPE|unix.STATX_MNT_ID, &st)
			if err != nil || !match(&st) {
				continue
			}
			how, _ := os.Readlink(path)
			holders = append(holders, Holder{PID: pid, Name: command(pid), How: describeThing(thing) + " " + how})
			break
		}
	}
	return holders
}

func describeThing(thing string) string {
	switch thing {
	case "cwd":
		return "working directory"
	case "root":
		return "root directory"
	case "exe":
		return "running"
	}
	return "has open"
}

func command(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(name))
}
