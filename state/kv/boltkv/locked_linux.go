package boltkv

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// newLockedError returns the error of a file that another process has locked.
func newLockedError(path string, file *os.File) error {
	pid := lockHolder(file)
	return &LockedError{Path: path, PID: pid, Program: program(pid)}
}

// lockHolder returns the PID of the process that has locked the file, or 0 if it is not known:
// the process may have ended, or be in a PID namespace that is not visible from here.
func lockHolder(file *os.File) int {
	info, err := file.Stat()
	if err != nil {
		return 0
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	inode := ":" + strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10)
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK  ADVISORY  WRITE 1234 fd:01:131090 0 EOF
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != "FLOCK" || !strings.HasSuffix(fields[5], inode) {
			continue
		}
		// The device number here differs from that of stat on some filesystems, so check that
		// the process has the file open.
		pid, err := strconv.Atoi(fields[4])
		if err == nil && pid > 0 && hasOpen(pid, info) {
			return pid
		}
	}
	return 0
}

// hasOpen reports whether the process has the file open.
func hasOpen(pid int, file os.FileInfo) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		if info, err := os.Stat(dir + "/" + entry.Name()); err == nil && os.SameFile(info, file) {
			return true
		}
	}
	return false
}

// program returns the name of the process, empty if it is not known.
func program(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}
