package main

import (
	"os"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// loopName matches a loop device in a path, by its name or its number.
var loopName = regexp.MustCompile(`/(?:loop|7:)([0-9]+)(?:/|$)`)

// matters reports whether a call on a file belongs to the agent's own work, in a machine below
// dir, and not to the Go runtime, a dynamic linker, or another program's loop device.
func matters(path, dir string) bool {
	switch {
	case strings.HasPrefix(path, dir+"/"):
		return true
	case strings.HasPrefix(path, "/dev/"), strings.HasPrefix(path, "/sys/block/"), strings.HasPrefix(path, "/sys/class/block/"),
		strings.HasPrefix(path, "/sys/dev/block/"), strings.HasPrefix(path, "/sys/devices/virtual/block/"):
		loop := loopName.FindStringSubmatch(path)
		if loop == nil {
			return path == "/dev/loop-control" || !strings.HasPrefix(path, "/dev/")
		}
		backing, err := os.ReadFile("/sys/block/loop" + loop[1] + "/loop/backing_file")
		return err != nil || strings.HasPrefix(string(backing), dir+"/") // or free, and about to be used
	}
	return strings.HasPrefix(path, "/proc/") && strings.HasSuffix(path, "/mountinfo")
}

// kindOf returns the purpose of a file in a machine below dir, without the numbers in its
// name.
func kindOf(path, dir string) string {
	rest, ours := strings.CutPrefix(path, dir+"/")
	if !ours {
		return digits.ReplaceAllString(path, "#")
	}
	_, rest, _ = strings.Cut(rest, "/") // the machine
	parts := strings.Split(rest, "/")
	name := parts[len(parts)-1]
	at := func(i int) string {
		if i < len(parts) {
			return parts[i]
		}
		return ""
	}
	switch {
	case parts[0] == "mnt" && len(parts) == 3:
		return "mount point"
	case parts[0] == "mnt" && len(parts) > 3:
		return "in a mounted filesystem"
	case strings.HasSuffix(name, ".json"):
		return "record " + at(3)
	case at(2) == storageDir && len(parts) > 6:
		return "in an object of " + at(3)
	case at(2) == storageDir && len(parts) == 6:
		return at(3) + " " + at(4) + " object"
	}
	return digits.ReplaceAllString(rest, "#")
}

// digits matches numbers, and UUIDs, which also vary in the names of files.
var digits = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]+`)

// faults are the plausible errors of each call.
var faults = map[string][]unix.Errno{
	"fsync":      {unix.EIO, unix.ENOSPC, unix.EINTR},
	"fdatasync":  {unix.EIO, unix.ENOSPC, unix.EINTR},
	"write":      {unix.EIO, unix.ENOSPC, unix.EINTR},
	"pwrite64":   {unix.EIO, unix.ENOSPC, unix.EINTR},
	"read":       {unix.EIO, unix.EINTR},
	"pread64":    {unix.EIO, unix.EINTR},
	"ftruncate":  {unix.EIO, unix.ENOSPC, unix.EINTR},
	"fallocate":  {unix.EIO, unix.ENOSPC, unix.EINTR},
	"ioctl":      {unix.EIO, unix.EBUSY, unix.ENOMEM, unix.EAGAIN, unix.EINTR},
	"flock":      {unix.EINTR, unix.EAGAIN, unix.ENOMEM},
	"getdents64": {unix.EIO, unix.ENOMEM},
	"fstat":      {unix.EIO, unix.ENOMEM},
	"openat":     {unix.EIO, unix.EMFILE, unix.ENOMEM, unix.EBUSY, unix.EINTR},
	"rename":     {unix.EIO, unix.ENOSPC, unix.ENOMEM, unix.EBUSY},
	"unlink":     {unix.EIO, unix.ENOMEM}, // a mount point that is busy is left, as it should be
	"mkdir":      {unix.EIO, unix.ENOSPC, unix.ENOMEM},
	"stat":       {unix.EIO, unix.ENOMEM, unix.EINTR},
	"statx":      {unix.EIO, unix.ENOMEM, unix.EINTR},
	"statfs":     {unix.EIO, unix.EINTR},
	"getxattr":   {unix.EIO, unix.ENOMEM},
	"setxattr":   {unix.EIO, unix.ENOSPC, unix.ENOMEM},
	"readlink":   {unix.EIO, unix.ENOMEM},
	"mount":      {unix.EIO, unix.EBUSY, unix.ENOMEM, unix.EINTR},
	"umount2":    {unix.EIO, unix.EBUSY, unix.ENOMEM},
	"move_mount": {unix.EIO, unix.EBUSY, unix.ENOMEM},
	"open_tree":  {unix.EIO, unix.EMFILE, unix.ENOMEM},
	"fsopen":     {unix.EMFILE, unix.ENOMEM},
	"fsconfig":   {unix.EIO, unix.EBUSY, unix.ENOMEM},
	"fsmount":    {unix.EIO, unix.EMFILE, unix.ENOMEM},
}
