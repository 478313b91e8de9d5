package devicetest

import (
	"fmt"
	"os"
	"path"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Opens runs f and returns how often this process has opened files and directories of
// /proc and /sys during it, by the last part of their paths. Those that are gone are
// under "": of a thread that has ended, for instance.
func Opens(t testing.TB, f func()) map[string]int {
	t.Helper()
	RequireRoot(t)
	events, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK|unix.FAN_UNLIMITED_QUEUE, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(events)
	for _, of := range []string{"/proc", "/sys"} {
		if err := unix.FanotifyMark(events, unix.FAN_MARK_ADD|unix.FAN_MARK_MOUNT, unix.FAN_OPEN|unix.FAN_ONDIR, unix.AT_FDCWD, of); err != nil {
			t.Fatalf("watching %s: %v", of, err)
		}
	}
	f()
	opens := make(map[string]int)
	buf := make([]byte, unsafe.Sizeof(unix.FanotifyEventMetadata{})) // of several, one that is gone would be left out
	for {
		n, err := unix.Read(events, buf)
		switch err {
		case nil:
		case unix.EAGAIN:
			return opens
		case unix.ENODEV, unix.ENXIO, unix.ENOENT, unix.ESRCH, unix.EINVAL, unix.EACCES, unix.EPERM:
			opens[""]++ // it is gone, or is for the process alone that has opened it
			continue
		default:
			t.Fatal(err)
		}
		for rest := buf[:n]; len(rest) > 0; {
			event := (*unix.FanotifyEventMetadata)(unsafe.Pointer(&rest[0]))
			rest = rest[event.Event_len:]
			if event.Fd < 0 {
				continue
			}
			if int(event.Pid) == os.Getpid() {
				name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", event.Fd))
				if err != nil {
					t.Error(err)
				}
				opens[path.Base(name)]++
			}
			unix.Close(int(event.Fd))
		}
	}
}
