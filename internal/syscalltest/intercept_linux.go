package syscalltest

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Call is a system call that is about to be made.
type Call struct {
	// Number is the number of the call, such as unix.SYS_FSYNC.
	Number int
	// Args are the arguments of the call. Pointers among them are into this process.
	Args [6]uint64
	// N counts the intercepted calls, from 1.
	N int
}

// Path returns the path of the file whose descriptor is the first argument, or "" if that
// argument is not an open descriptor.
func (c Call) Path() string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", int(c.Args[0])))
	return path
}

// Result is the result to give a call.
type Result struct {
	skipped bool
	errno   unix.Errno
}

// Pass lets the kernel carry out the call.
var Pass = Result{}

// Succeed makes the call return 0 without doing anything.
var Succeed = Result{skipped: true}

// Fail makes the call return an error without doing anything.
func Fail(errno unix.Errno) Result { return Result{skipped: true, errno: errno} }

// Intercept runs f on a separate thread, and calls decide for each system call of that thread
// with one of the numbers. It returns f's error. It does not intercept calls of goroutines or
// processes that f starts. It skips the test if the kernel does not support that.
func Intercept(t testing.TB, numbers []int, decide func(Call) Result, f func() error) error {
	t.Helper()
	listener, failed := make(chan int), make(chan error, 1)
	done := make(chan error, 1)
	go func() {
		// The thread ends with the goroutine, and the filter with the thread.
		runtime.LockOSThread()
		fd, err := installFilter(numbers)
		if err != nil {
			failed <- err
			return
		}
		listener <- fd
		done <- f()
	}()
	var fd int
	select {
	case err := <-failed:
		t.Skipf("this kernel does not let system calls be intercepted: %v", err)
	case fd = <-listener:
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- serve(fd, stop, decide) }()
	err = <-done
	if _, werr := unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}); werr != nil {
		t.Fatal(werr)
	}
	if serr := <-served; serr != nil {
		t.Errorf("intercepting system calls: %v", serr)
	}
	unix.Close(stop)
	unix.Close(fd)
	return err
}

// FailSome is Intercept for one kind of call, which fails with EIO if fails returns true for
// the path of the call's descriptor.
func FailSome(t testing.TB, number int, fails func(path string) bool, f func() error) error {
	t.Helper()
	return Intercept(t, []int{number}, func(c Call) Result {
		if fails(c.Path()) {
			return Fail(unix.EIO)
		}
		return Pass
	}, f)
}

// installFilter makes the kernel report this thread's calls to the reader of the returned
// descriptor.
func installFilter(numbers []int) (int, error) {
	const load, jumpIfEqual, end = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{{Code: load, K: 0}} // the number, in struct seccomp_data
	for i, number := range numbers {
		filter = append(filter, unix.SockFilter{Code: jumpIfEqual, K: uint32(number), Jt: uint8(len(numbers) - i)})
	}
	filter = append(filter,
		unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: end, K: unix.SECCOMP_RET_USER_NOTIF})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return 0, errno
	}
	return int(fd), nil
}

// question and answer are struct seccomp_notif and struct seccomp_notif_resp.
type question struct {
	id          uint64
	pid, flags  uint32
	number      int32
	arch        uint32
	instruction uint64
	args        [6]uint64
}

type answer struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// serve decides calls until stop is readable.
func serve(listener, stop int, decide func(Call) Result) error {
	for n := 1; ; {
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}, {Fd: int32(stop), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return err
		}
		if ready[1].Revents != 0 {
			return nil
		}
		var q question
		if errno := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&q)); errno == unix.ENOENT || errno == unix.EINTR {
			continue // a signal has interrupted the call, which will be repeated
		} else if errno != 0 {
			return errno
		}
		result := decide(Call{Number: int(q.number), Args: q.args, N: n})
		a := answer{id: q.id, errno: -int32(result.errno)}
		if !result.skipped {
			a.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
		}
		switch errno := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a)); errno {
		case 0:
			n++
		case unix.ENOENT: // as above
		default:
			return errno
		}
	}
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return errno
}
