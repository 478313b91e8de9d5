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

// maxHolders is the maximum number of holders that an error text names.
const maxHolders = 5

// Holder is a process, or an object in the kernel, that keeps a mount or a block device busy.
type Holder struct {
	PID  int    // 0 for an object in the kernel
	Name string // command name, or name of the block device on top
	How  string // "working directory", "open file /srv/data/log", "mounted at /srv/data"
}

func (h Holder) String() string {
	if h.PID == 0 {
		return fmt.Sprintf("%s (%s)", h.Name, h.How)
	}
	return fmt.Sprintf("process %d (%s): %s", h.PID, h.Name, h.How)
}

// DescribeHolders returns a text for an error, such as "held by …".
func DescribeHolders(holders []Holder) string {
	if len(holders) == 0 && capability.SysPtrace.Missing() {
		return "held by something that is not visible without " + capability.SysPtrace.Name
	} else if len(holders) == 0 {
		return "held by something that is not visible from here"
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

// HoldersOfMount returns the processes that use a file or directory of a mount. It ignores
// what it cannot read, such as a process that ends during the scan: the result is for
// messages, not for decisions.
func HoldersOfMount(mountID uint64) []Holder {
	return scanProcesses(func(st *unix.Statx_t) bool {
		return st.Mnt_id == mountID
	})
}

// HoldersOfFile returns the other processes that have a file open.
func HoldersOfFile(dev, ino uint64) []Holder {
	holders := scanProcesses(func(st *unix.Statx_t) bool {
		return st.Ino == ino && unix.Mkdev(st.Dev_major, st.Dev_minor) == dev
	})
	return slices.DeleteFunc(holders, func(h Holder) bool { return h.PID == os.Getpid() })
}

// HoldersOfDevice returns the holders of a block device: processes that have it open, its
// mounts in any mount namespace, and block devices built on it.
func HoldersOfDevice(major, minor uint32) []Holder {
	holders := scanProcesses(func(st *unix.Statx_t) bool {
		return st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev_major == major && st.Rdev_minor == minor
	})
	for _, namespace := range ReadNamespaces() {
		holders = append(holders, namespace.Holders(func(t *Table) []*mountinfo.Info {
			return t.OfDevice(major, minor)
		})...)
	}
	return append(holders, onTop(major, minor)...)
}

// onTop returns the block devices that are built on one.
func onTop(major, minor uint32) []Holder {
	var holders []Holder
	entries, _ := os.ReadDir(fmt.Sprintf("/sys/dev/block/%d:%d/holders", major, minor))
	for _, entry := range entries {
		holders = append(holders, Holder{Name: entry.Name(), How: "block device on top"})
	}
	return holders
}

// HoldersOf returns the other processes that use the mounts which find returns for any mount
// namespace, or that have one of the block devices with the numbers open; the mounts in other mount
// namespaces that do not follow those here; and block devices on top. As
// [HoldersOfMount] it ignores what it cannot read.
func HoldersOf(find func(*Table) []*mountinfo.Info, devices []uint64) []Holder {
	mounts := make(map[uint64]bool) // the IDs of mounts are unique among all namespaces
	namespaces := ReadNamespaces()
	for _, n := range namespaces {
		for _, m := range find(n.Table) {
			mounts[uint64(m.ID)] = true
		}
	}
	holders := scanProcesses(func(st *unix.Statx_t) bool {
		return mounts[st.Mnt_id] ||
			st.Mode&unix.S_IFMT == unix.S_IFBLK && slices.Contains(devices, unix.Mkdev(st.Rdev_major, st.Rdev_minor))
	})
	holders = slices.DeleteFunc(holders, func(h Holder) bool { return h.PID == os.Getpid() })
	holders = append(holders, Elsewhere(namespaces, find)...)
	for _, number := range devices {
		holders = append(holders, onTop(unix.Major(number), unix.Minor(number))...)
	}
	return holders
}

// Elsewhere returns the mounts which find returns for other mount namespaces than that of this process.
// It leaves out slaves of other mounts, such as those of most services of the host: they go with the
// mounts that they follow.
func Elsewhere(namespaces []Namespace, find func(*Table) []*mountinfo.Info) []Holder {
	var holders []Holder
	for _, n := range namespaces {
		if !n.Own {
			holders = append(holders, n.Holders(func(t *Table) []*mountinfo.Info {
				return slices.DeleteFunc(slices.Clone(find(t)), func(m *mountinfo.Info) bool { return strings.Contains(m.Optional, "master:") })
			})...)
		}
	}
	return holders
}

// processes returns the IDs of the running processes.
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

// usedFile is a file or directory that a process uses.
type usedFile struct {
	pid  int
	path string // in /proc: a link that leads to the file without a lookup
	how  string
	stat unix.Statx_t
}

// name returns the path of the file, as far as the process can see it.
func (u usedFile) name() string {
	name, _ := os.Readlink(u.path)
	return name
}

func (u usedFile) holder() Holder {
	return Holder{PID: u.pid, Name: command(u.pid), How: u.how + " " + u.name()}
}

// scanProcesses returns each process that uses a matching file once, with the first such
// file.
func scanProcesses(match func(*unix.Statx_t) bool) []Holder {
	var holders []Holder
	for _, pid := range processes() {
		eachUsedFile(pid, func(u usedFile) bool {
			found := match(&u.stat)
			if found {
				holders = append(holders, u.holder())
			}
			return !found
		})
	}
	return holders
}

// eachUsedFile calls f with each file that a process uses, until f returns false.
func eachUsedFile(pid int, f func(usedFile) bool) {
	dir := fmt.Sprintf("/proc/%d", pid)
	use := func(name, how string) bool {
		u := usedFile{pid: pid, path: filepath.Join(dir, name), how: how}
		// The magic link leads to the file itself, without a lookup that an unreachable
		// network filesystem could block.
		err := unix.Statx(unix.AT_FDCWD, u.path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT,
			unix.STATX_TYPE|unix.STATX_MNT_ID, &u.stat)
		return err != nil || f(u)
	}
	if !use("cwd", "working directory") || !use("root", "root directory") || !use("exe", "running") {
		return
	}
	for _, in := range []struct{ dir, how string }{{"fd", "has open"}, {"map_files", "has mapped"}} {
		entries, _ := os.ReadDir(filepath.Join(dir, in.dir))
		for _, entry := range entries {
			if !use(filepath.Join(in.dir, entry.Name()), in.how) {
				return
			}
		}
	}
}

// HoldersWithin returns the other processes that use a directory, or something in it, through
// any mount in any mount namespace, as far as /proc shows them.
func HoldersWithin(d Directory) []Holder {
	var holders []Holder
	tables := make(map[uint64]*Table)
	for _, pid := range processes() {
		namespace, err := inode(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil || pid == os.Getpid() {
			continue
		}
		table, ok := tables[namespace]
		if !ok {
			table, _ = readTableAt(unix.AT_FDCWD, fmt.Sprintf("/proc/%d/mountinfo", pid))
			tables[namespace] = table
		}
		if table == nil {
			continue
		}
		eachUsedFile(pid, func(u usedFile) bool {
			through := table.ByID(u.stat.Mnt_id)
			if through == nil || through.Major != d.major || through.Minor != d.minor {
				return true
			}
			of, err := Locate(through, u.name())
			found := err == nil && within(of.root, d.root)
			if found {
				holders = append(holders, u.holder())
			}
			return !found
		})
	}
	return holders
}

func command(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(name))
}

// within reports whether a clean absolute path is dir or below it.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
