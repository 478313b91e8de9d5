package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// loopDevice is a loop device as the kernel shows it.
type loopDevice struct {
	Path string // of the device
	File string // behind it
}

// loopsBelow returns the loop devices whose file is below dir.
func loopsBelow(tb testing.TB, dir string) []loopDevice {
	tb.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		tb.Fatal(err)
	}
	var loops []loopDevice
	for _, file := range files {
		backing, err := os.ReadFile(file)
		if err != nil {
			continue // detached since
		}
		// The name of a deleted file ends in " (deleted)".
		if below(string(backing), dir) {
			name := strings.Split(file, "/")[3]
			loops = append(loops, loopDevice{"/dev/" + name, strings.TrimSpace(string(backing))})
		}
	}
	return loops
}

// mountsBelow returns what is mounted on dir and below it, the last mounted first.
func mountsBelow(tb testing.TB, dir string) []*mountinfo.Info {
	tb.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		tb.Fatal(err)
	}
	slices.Reverse(mounts)
	return mounts
}

// processesOf returns the command lines of processes that name dir.
func processesOf(tb testing.TB, dir string) []string {
	tb.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		tb.Fatal(err)
	}
	var lines []string
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(line), dir) {
			lines = append(lines, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return lines
}

// unmountAndDetach takes away all mounts and loop devices below dir.
func unmountAndDetach(tb testing.TB, dir string) {
	tb.Helper()
	for _, m := range mountsBelow(tb, dir) {
		if err := unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW); err != nil {
			tb.Errorf("unmounting %s: %v", m.Mountpoint, err)
		}
	}
	for _, l := range loopsBelow(tb, dir) {
		device, err := os.Open(l.Path)
		if err != nil {
			tb.Error(err)
			continue
		}
		if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil {
			tb.Errorf("detaching %s: %v", l.Path, err)
		}
		device.Close()
	}
}

func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
