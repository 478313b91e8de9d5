// Package syscallfault runs a program and makes one of its system calls fail once.
//
// The program and its children are under a seccomp filter that reports each call of certain
// kinds to this process. So calls are counted over all threads and children, a call fails
// exactly once, and only calls on relevant files are counted, not those of the runtime itself.
// It is not for production: each reported call waits for this process.
package syscallfault

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Fault says which call fails, and how.
type Fault struct {
	Call  string // one of Calls
	Error unix.Errno
	// Class is the ID of the class of calls to count; empty: all calls of the name.
	Class string
	N     int // the first is 1
}

// Calls returns the names of the calls that can be made to fail, in alphabetical order.
func Calls() []string {
	var names []string
	for _, c := range calls {
		names = append(names, c.name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Injector starts programs and makes their calls fail. Its methods are safe for concurrent
// use.
type Injector struct {
	// watch reports whether calls on the file at a path count.
	watch func(path string) bool
	kind  func(path string) string

	mu       sync.Mutex
	only     string
	armed    bool
	fault    Fault
	step     string
	counts   map[string]int
	classes  map[Class]int
	failed   string
	programs map[string]program // by path
}

// New returns an injector of faults into calls on the files that watch selects. kind returns
// the kind of a file, by which calls are sorted into classes.
func New(watch func(path string) bool, kind func(path string) string) *Injector {
	return &Injector{watch: watch, kind: kind, programs: map[string]program{}}
}

// Only makes the programs that are started from now on report only calls of a name, which makes
// all their other calls as fast as usual. If the name is empty, they report all that can fail.
func (i *Injector) Only(call string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.only = call
}

// Arm starts counting calls, and makes the call that the fault names fail once. If the fault
// names no call, none fails: calls are only counted, and sorted into classes.
func (i *Injector) Arm(f Fault) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.armed, i.fault, i.counts, i.classes, i.failed = true, f, map[string]int{}, map[Class]int{}, ""
}

// Mark sets the step of the calls that follow.
func (i *Injector) Mark(step string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.step = step
}

// Disarm stops counting calls and making them fail.
func (i *Injector) Disarm() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.armed = false
}

// Counts returns the number of calls since Arm, by name: of all calls, or of the one that is
// to fail.
func (i *Injector) Counts() map[string]int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return maps.Clone(i.counts)
}

// Classes returns the number of calls of each class since Arm, if the fault named no call.
func (i *Injector) Classes() map[Class]int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return maps.Clone(i.classes)
}

// Failed describes the call that has failed since Arm; empty: none has.
func (i *Injector) Failed() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.failed
}

// argv0 is the name under which this program starts itself to run another under the filter.
const argv0 = "under-syscall-faults"

// Main must be called first by the main function of a program that uses an injector: the
// program starts itself to start the other. Main returns if the program was started normally.
func Main() {
	if os.Args[0] != argv0 {
		return
	}
	err := enter(os.Args[1], os.Args[2:])
	fmt.Fprintln(os.Stderr, "syscallfault:", err)
	os.Exit(125)
}

// socket is the descriptor over which a program sends its listener.
const socket = 3

// enter executes the program under the filter for the calls of a name.
func enter(only string, args []string) error {
	runtime.LockOSThread() // the filter belongs to the thread
	filter := filterProgram(only)
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		// A signal (Go sends many) does not interrupt a call that has been counted.
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
		uintptr(unsafe.Pointer(&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})))
	if errno != 0 {
		return fmt.Errorf("installing the filter: %w", errno)
	}
	if err := unix.Sendmsg(socket, []byte{0}, unix.UnixRights(int(listener)), nil, 0); err != nil {
		return fmt.Errorf("sending the listener: %w", err)
	}
	unix.CloseOnExec(socket)
	return unix.Exec(args[0], args, os.Environ())
}

// filterProgram returns a filter that reports the calls of a name, or all that can be made to
// fail if it is empty, and allows all others.
func filterProgram(only string) []unix.SockFilter {
	var numbers []uint32
	for nr, c := range calls {
		if only == "" || only == c.name {
			numbers = append(numbers, nr)
		}
	}
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	equal := func(k uint32, yes, no int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: uint8(yes), Jf: uint8(no)}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	all := []unix.SockFilter{load(4), equal(auditArch, 0, len(numbers)+1), load(0)}
	for i, nr := range numbers {
		all = append(all, equal(nr, len(numbers)-i, 0))
	}
	return append(all, ret(unix.SECCOMP_RET_ALLOW), ret(unix.SECCOMP_RET_USER_NOTIF))
}

// Start starts a command under the filter.
func (i *Injector) Start(cmd *exec.Cmd) error {
	if len(calls) == 0 {
		return errors.New("system calls cannot be made to fail on this architecture")
	}
	if len(cmd.ExtraFiles) > 0 {
		return errors.New("a command with extra files cannot be started")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("making a socket: %w", err)
	}
	defer unix.Close(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	i.mu.Lock()
	only := i.only
	i.mu.Unlock()
	cmd.Args = append([]string{argv0, only, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/proc/self/exe"
	cmd.ExtraFiles = []*os.File{theirs}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return err
	}
	listener, err := receive(pair[0])
	if err != nil {
		_ = cmd.Process.Kill()
		return errors.Join(err, cmd.Wait())
	}
	go i.serve(listener)
	return nil
}

// receive returns the listener that a program sends.
func receive(socket int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("receiving the listener: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, fmt.Errorf("receiving the listener: %w", err)
	}
	if len(messages) == 0 {
		return -1, errors.New("the program has ended before it was started")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, fmt.Errorf("receiving the listener: %w", err)
	}
	return fds[0], nil
}

// notification is struct seccomp_notif, and response is struct seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	nr, arch   uint32
	ip         uint64
	args       [6]uint64
}

type response struct {
	id    uint64
	val   int64
	error int32
	flags uint32
}

// serve answers notifications until all processes under the filter have ended.
func (i *Injector) serve(listener int) {
	defer unix.Close(listener)
	for {
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil {
			if err == unix.EINTR {
				continue
			}
			return
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			return
		}
		var n notification
		if errno := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); errno != 0 {
			continue // the process has been killed, or a signal came first
		}
		r := response{id: n.id}
		if errno := i.answer(&n); errno != 0 {
			r.error = -int32(errno)
		} else {
			r.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
		}
		_ = ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)) // the process may have been killed
	}
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return errno
}

// answer returns the error with which a call fails; 0: the call proceeds.
func (i *Injector) answer(n *notification) unix.Errno {
	i.mu.Lock()
	defer i.mu.Unlock()
	c := calls[n.nr]
	if !i.armed || i.failed != "" || i.fault.Call != "" && i.fault.Call != c.name {
		return 0
	}
	path, ok := c.file(n)
	if ok && path != everywhere && !i.watch(path) || !ok {
		return 0
	}
	if i.fault.Call == "" || i.fault.Class != "" {
		class := Class{Step: i.step, Call: c.name, Kind: i.kind(path) + c.detail(n), Origin: i.origin(n)}
		if i.fault.Class != "" && class.ID() != i.fault.Class {
			return 0
		}
		i.classes[class]++
	}
	i.counts[c.name]++
	if i.fault.Call == "" || i.counts[c.name] != i.fault.N {
		return 0
	}
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", n.pid)) // for the message only
	i.failed = fmt.Sprintf("%s(%s%s) of %s", c.name, path, c.detail(n), strings.TrimSpace(string(comm)))
	return i.fault.Error
}

// call is a system call. file returns the file that it is about.
type call struct {
	name string
	file func(*notification) (path string, ok bool)
}

// detail returns what else distinguishes a call.
func (c call) detail(n *notification) string {
	if c.name == "ioctl" {
		return fmt.Sprintf(", %#x", n.args[1])
	}
	return ""
}

// everywhere is the path of calls that are about no file but count anyway.
const everywhere = ""

func anywhere(*notification) (string, bool) { return everywhere, true }

func fd(arg int) func(*notification) (string, bool) {
	return func(n *notification) (string, bool) { return descriptor(n.pid, int32(n.args[arg])) }
}

func path(arg int) func(*notification) (string, bool) {
	return func(n *notification) (string, bool) { return resolve(n.pid, unix.AT_FDCWD, n.args[arg]) }
}

func at(dir, arg int) func(*notification) (string, bool) {
	return func(n *notification) (string, bool) { return resolve(n.pid, int32(n.args[dir]), n.args[arg]) }
}

// descriptor returns the path of an open file.
func descriptor(pid uint32, fd int32) (string, bool) {
	link := fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
	if fd == unix.AT_FDCWD {
		link = fmt.Sprintf("/proc/%d/cwd", pid)
	}
	path, err := os.Readlink(link)
	return path, err == nil && strings.HasPrefix(path, "/")
}

// resolve returns the path that a process passes as a string in its memory.
func resolve(pid uint32, dir int32, address uint64) (string, bool) {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return "", false
	}
	defer memory.Close()
	buffer := make([]byte, unix.PathMax)
	n, _ := memory.ReadAt(buffer, int64(address)) // the page after the string may not exist
	name, _, found := bytes.Cut(buffer[:n], []byte{0})
	if !found {
		return "", false
	}
	if fd, rest, ok := cutDescriptor(string(name)); ok {
		base, ok := descriptor(pid, fd)
		return filepath.Join(base, rest), ok
	}
	if strings.HasPrefix(string(name), "/") {
		return filepath.Clean(string(name)), true
	}
	base, ok := descriptor(pid, dir)
	if !ok {
		return "", false
	}
	return filepath.Join(base, string(name)), true
}

// cutDescriptor splits a path that goes through an open file of the process.
func cutDescriptor(path string) (fd int32, rest string, ok bool) {
	for _, prefix := range []string{"/proc/self/fd/", "/proc/thread-self/fd/"} {
		if after, ok := strings.CutPrefix(path, prefix); ok {
			digits, rest, _ := strings.Cut(after, "/")
			n, err := strconv.ParseInt(digits, 10, 32)
			return int32(n), rest, err == nil
		}
	}
	return 0, "", false
}
