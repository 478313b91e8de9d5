package devicetest

import (
	"fmt"
	"os"
	"path"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Opens runs f and counts the files and directories of /proc and /sys that this process opens
// during it, by the last element of their paths. Files that no longer exist, such as those of
// a thread that has ended, count under "".
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
	buf := make([]byte, unsafe.Sizeof(unix.FanotifyEventMetadata{})) // for one event: a read of several would omit a file that no longer exists
	for {
		n, err := unix.Read(events, buf)
		switch err {
		case nil:
		case unix.EAGAIN:
			return opens
		case unix.ENODEV, unix.ENXIO, unix.ENOENT, unix.ESRCH, unix.EINVAL, unix.EACCES, unix.EPERM:
			opens[""]++ // the file no longer exists, or only the process that opened it may open it
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
