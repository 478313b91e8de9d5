// Package privilege reports which of the agent's work this machine does not allow, by the
// capabilities of the process, and by the devices and programs that exist.
//
// docs/reference/privileges.md also says what is needed for what, and the example systemd unit
// grants it: tests keep the three consistent. Another test removes each capability and
// observes what fails.
package privilege

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// Need is a requirement of a part of the agent's work.
type Need struct {
	// Name is the name of a capability or a program, or the path of a device.
	Name string
	// For is what the agent can do with it.
	For string
	// Remedy is what to do if it is missing.
	Remedy string
	// Vital says that the agent can do nothing without it.
	Vital bool
}

// Lack is a need that is not met.
type Lack struct {
	Need
	// Why says what is wrong.
	Why string
}

// String returns the lack as one line for the operator.
func (l Lack) String() string {
	return fmt.Sprintf("cannot %s: %s; %s", l.For, l.Why, l.Remedy)
}

// Check returns the needs that are not met on this machine, capabilities first.
func Check() ([]Lack, error) {
	effective, err := effectiveCapabilities()
	if err != nil {
		return nil, errors.Trace(err)
	}
	return missing(effective, searchPath), nil
}

// searchPath is where programs are searched for when they are run, regardless of the
// environment.
const searchPath = "/usr/sbin:/usr/bin:/sbin:/bin"

func missing(effective uint64, path string) []Lack {
	var lacks []Lack
	for _, c := range capabilities() {
		if effective&(1<<c.number) == 0 {
			lacks = append(lacks, Lack{Need: c.Need, Why: c.Name + " is missing"})
		}
	}
	for _, need := range devices() {
		if err := tryDevice(need.Name); err != nil {
			lacks = append(lacks, Lack{Need: need, Why: err.Error()})
		}
	}
	for _, need := range programs() {
		if !hasProgram(need.Name, path) {
			lacks = append(lacks, Lack{Need: need, Why: need.Name + " is not in " + path})
		}
	}
	return lacks
}

// effectiveCapabilities returns the effective capabilities of this process, bit N for
// capability N.
func effectiveCapabilities() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0, errors.Annotate(err, "reading the capabilities of this process")
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}

type capability struct {
	Need
	number int
}

func capabilities() []capability {
	need := func(number int, name, what string) capability {
		return capability{number: number, Need: Need{
			Name: name, For: what, Remedy: "start it with " + name + ", see docs/reference/privileges.md",
		}}
	}
	admin := need(unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "mount and unmount, grow attached volumes, make filesystems on volumes, grow xfs and btrfs filesystems")
	admin.Vital = true
	admin.Remedy = "run it as root, with CAP_SYS_ADMIN"
	return []capability{
		admin,
		need(unix.CAP_SYS_RESOURCE, "CAP_SYS_RESOURCE", "grow ext4 filesystems"),
		need(unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE", "make mount points in directories of other users, import what is theirs, destroy rootfs directories that hold directories of theirs"),
		need(unix.CAP_FOWNER, "CAP_FOWNER", "destroy rootfs directories that hold sticky directories of other users, copy rootfs directories that hold files of theirs"),
		need(unix.CAP_CHOWN, "CAP_CHOWN", "import files of other users as volumes, copy rootfs directories that hold files of theirs"),
		need(unix.CAP_FSETID, "CAP_FSETID", "copy rootfs directories, for snapshots and for storage from them"),
		need(unix.CAP_MKNOD, "CAP_MKNOD", "copy rootfs directories that hold devices"),
		need(unix.CAP_SETFCAP, "CAP_SETFCAP", "copy rootfs directories that hold programs with capabilities"),
		need(unix.CAP_LEASE, "CAP_LEASE", "see whether somebody uses a file of another user that is imported"),
		need(unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "name the processes that keep a mount or a device busy"),
		need(unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "receive many device events at once without losing some, which costs a look at all devices"),
	}
}

func devices() []Need {
	return []Need{{
		Name: "/dev/loop-control", For: "make loop volumes",
		Remedy: "load the kernel module loop, in a container pass on the device and /dev/loop*",
	}}
}

func tryDevice(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func programs() []Need {
	need := func(name, what, debianPackage string) Need {
		return Need{Name: name, For: what, Remedy: "install the Debian package " + debianPackage}
	}
	return []Need{
		need("blkid", "make filesystems on volumes", "util-linux"),
		need("mkfs.ext4", "make ext4 filesystems", "e2fsprogs"),
		need("mkfs.xfs", "make xfs filesystems", "xfsprogs"),
		need("mkfs.btrfs", "make btrfs filesystems", "btrfs-progs"),
		need("cp", "make snapshots and copies of rootfs directories", "coreutils"),
	}
}

func hasProgram(name, path string) bool {
	for dir := range strings.SplitSeq(path, ":") {
		info, err := os.Stat(filepath.Join(dir, name))
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return true
		}
	}
	return false
}
