package diskmanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/storage"
)

// startWorker runs a worker with the events of an opened source until the test ends. It polls
// once an hour: whatever it sees, an event reported.
func startWorker(t *testing.T, open func() (EventSource, error)) (*Worker, published) {
	t.Helper()
	lists := make(published, 1000)
	w, err := New(Config{Publisher: lists, Events: open, PollInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Kill()
		if err := w.Wait(); err != nil {
			t.Errorf("killed worker ended with %v", err)
		}
	})
	lists.waitFor(t, "a first list", func([]storage.BlockDevice) bool { return true })
	return w, lists
}

// backingFile makes a sparse file and returns a function that finds its loop device in a list.
func backingFile(t *testing.T, mib int64) (path string, find func([]storage.BlockDevice) *storage.BlockDevice) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "volume")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, mib<<20); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	address := storage.LoopBusAddress(st.Dev, st.Ino)
	return path, func(devices []storage.BlockDevice) *storage.BlockDevice {
		i := slices.IndexFunc(devices, func(d storage.BlockDevice) bool { return d.BusAddress == address })
		if i < 0 {
			return nil
		}
		return &devices[i]
	}
}

// gate is an EventSource that reads nothing while it is closed.
type gate struct {
	EventSource
	mu         sync.Mutex    // held while it is closed
	overflowed chan struct{} // has a value after an overflow
}

func (g *gate) Next() (Hint, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	hint, err := g.EventSource.Next()
	if hint.All {
		select {
		case g.overflowed <- struct{}{}:
		default:
		}
	}
	return hint, err
}

// A device is attached and another detached while the smallest buffer is full: the only
// event is that some were lost.
func TestDevicesCorrectAfterOverflow(t *testing.T) {
	needRoot(t)
	t.Cleanup(func() { leaktest.VerifyNone(t) })
	g := &gate{overflowed: make(chan struct{}, 1)}
	_, lists := startWorker(t, func() (EventSource, error) {
		const smallest = 1
		events, err := openUevents(smallest)
		g.EventSource = events
		return g, err
	})
	before, findBefore := backingFile(t, 4)
	name, detachBefore := attachLoop(t, before)
	lists.waitFor(t, "the device before the storm", func(devices []storage.BlockDevice) bool { return findBefore(devices) != nil })

	// One more event ends the waiting call of Next, and the next call finds the gate closed.
	change := func() {
		if err := os.WriteFile("/sys/block/"+name+"/uevent", []byte("change"), 0); err != nil {
			t.Fatal(err)
		}
	}
	locked := make(chan struct{})
	go func() {
		g.mu.Lock()
		close(locked)
	}()
	for isClosed := false; !isClosed; {
		change()
		select {
		case <-locked:
			isClosed = true
		case <-time.After(time.Millisecond):
		}
	}
	select {
	case <-g.overflowed: // an earlier overflow
	default:
	}
	for range 1000 {
		change()
	}
	after, findAfter := backingFile(t, 4)
	_, detachAfter := attachLoop(t, after)
	detachBefore()
	g.mu.Unlock()

	lists.waitFor(t, "what happened in the storm", func(devices []storage.BlockDevice) bool {
		return findBefore(devices) == nil && findAfter(devices) != nil
	})
	// A listing that began before the storm may have found the same.
	select {
	case <-g.overflowed:
	case <-time.After(20 * time.Second):
		t.Error("nothing was lost")
	}
	detachAfter()
	lists.waitFor(t, "what happened after the storm", func(devices []storage.BlockDevice) bool { return findAfter(devices) == nil })
}

// A filesystem that is to grow waits for the size of its device.
func TestGrownDeviceIsPublished(t *testing.T) {
	needRoot(t)
	t.Cleanup(func() { leaktest.VerifyNone(t) })
	_, lists := startWorker(t, KernelEvents)
	file, find := backingFile(t, 4)
	name, _ := attachLoop(t, file)
	hasSize := func(mib uint64) func([]storage.BlockDevice) bool {
		return func(devices []storage.BlockDevice) bool {
			d := find(devices)
			return d != nil && d.Size == mib
		}
	}
	lists.waitFor(t, "the device", hasSize(4))
	for _, mib := range []int64{16, 17} {
		if err := os.Truncate(file, mib<<20); err != nil {
			t.Fatal(err)
		}
		loop, err := os.Open("/dev/" + name)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY, 0)
		loop.Close()
		if err != nil {
			t.Fatal(err)
		}
		lists.waitFor(t, fmt.Sprintf("%d MiB", mib), hasSize(uint64(mib)))
	}
}

// The test sends what udev sends as root once the links of a device exist, and forged
// messages first.
func TestUdevEventsAreBelievedFromRootOnly(t *testing.T) {
	needRoot(t)
	events, err := openUevents(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	giveUp := time.AfterFunc(20*time.Second, func() { events.Close() })
	defer giveUp.Stop()
	const pairs = "ACTION=change\x00DEVPATH=/devices/virtual/block/udevtest\x00SUBSYSTEM=block\x00"
	send := func(uid int, message []byte) {
		t.Helper()
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		credentials := unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(uid), Gid: 0})
		if err := unix.Sendmsg(fd, message, credentials, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: udevGroup}, 0); err != nil {
			t.Fatal(err)
		}
	}
	const nobody = 65534
	send(nobody, udevMessage(strings.Replace(pairs, "udevtest", "forged", 1)))
	send(0, []byte("change@/devices/virtual/block/forged\x00"+strings.Replace(pairs, "udevtest", "forged", 1)))
	send(0, udevMessage(pairs))
	for { // skips the events of this machine's other devices
		hint, err := events.Next()
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(hint.Disks, "forged") {
			t.Fatal("a message that is not udev's was believed")
		}
		if slices.Contains(hint.Disks, "udevtest") {
			return
		}
	}
}

// TestPainAttachedButItsLocationNeverAppears (juju #22198, #23291): the device appeared and
// its event was lost. A rescan is enough to find it, and what is published says where it is.
func TestPainAttachedButItsLocationNeverAppears(t *testing.T) {
	needRoot(t)
	t.Cleanup(func() { leaktest.VerifyNone(t) })
	w, lists := startWorker(t, silence)
	file, find := backingFile(t, 4)
	name, _ := attachLoop(t, file)
	w.Rescan()
	lists.waitFor(t, "the device, without an event", func(devices []storage.BlockDevice) bool {
		d := find(devices)
		if d == nil {
			return false
		}
		path, err := storage.BlockDevicePath(*d)
		return err == nil && path == "/dev/"+name
	})
}

// TestPainEventLost (juju #20332): the event of a change of a known device was lost.
func TestPainEventLost(t *testing.T) {
	needRoot(t)
	t.Cleanup(func() { leaktest.VerifyNone(t) })
	w, lists := startWorker(t, silence)
	file, find := backingFile(t, 4)
	_, detach := attachLoop(t, file)
	w.Rescan()
	lists.waitFor(t, "the device", func(devices []storage.BlockDevice) bool { return find(devices) != nil })
	detach()
	w.Rescan()
	lists.waitFor(t, "the device's absence", func(devices []storage.BlockDevice) bool { return find(devices) == nil })
}

// silence opens an event source without events.
func silence() (EventSource, error) {
	closed := make(chan struct{})
	return silent{closed, sync.OnceFunc(func() { close(closed) })}, nil
}

type silent struct {
	closed chan struct{}
	close  func()
}

func (s silent) Next() (Hint, error) {
	<-s.closed
	return Hint{}, os.ErrClosed
}

func (s silent) Close() error {
	s.close()
	return nil
}

// observerEnv makes the test binary run as an observer process. Its value says how the
// surroundings are changed first.
const observerEnv = "DISKMANAGER_TEST_OBSERVER"

func TestMain(m *testing.M) {
	surroundings, ok := os.LookupEnv(observerEnv)
	if !ok {
		os.Exit(m.Run())
	}
	if err := observe(surroundings); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// report is what an observer writes, one per line.
type report struct {
	Devices  []storage.BlockDevice // published
	Events   int64                 // so far
	NoEvents string                // why there are no events
}

// observe runs a worker until the standard input is closed.
func observe(surroundings string) error {
	poll := 50 * time.Millisecond
	switch surroundings {
	case "read-only /sys":
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("", "/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return err
		}
		poll = time.Hour
	case "hidden /sys/devices/virtual":
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("none", "/sys/devices/virtual", "tmpfs", unix.MS_RDONLY, ""); err != nil {
			return err
		}
	case "no netlink":
		if err := forbidNetlink(); err != nil {
			return err
		}
	case "idle":
		poll = time.Hour
	}
	o := &observer{out: json.NewEncoder(os.Stdout)}
	w, err := New(Config{Publisher: o, PollInterval: poll, Logger: o, Events: func() (EventSource, error) {
		events, err := KernelEvents()
		if err != nil {
			return nil, err
		}
		return counting{events, &o.events}, nil
	}})
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	w.Kill()
	return errors.Join(err, w.Wait())
}

type observer struct {
	out      *json.Encoder
	events   atomic.Int64
	noEvents string // by the loop, before it publishes
}

func (o *observer) SetMachineBlockDevices(devices []storage.BlockDevice) error {
	return o.out.Encode(report{Devices: devices, Events: o.events.Load(), NoEvents: o.noEvents})
}

func (o *observer) Debugf(string, ...any) {}

// Warningf notes why there are no events. It ignores that a device cannot be read: that device
// belongs to another program.
func (o *observer) Warningf(format string, args ...any) {
	if warning := fmt.Sprintf(format, args...); strings.HasPrefix(warning, "cannot receive ") {
		o.noEvents = warning
	}
}

type counting struct {
	EventSource
	n *atomic.Int64
}

func (c counting) Next() (Hint, error) {
	hint, err := c.EventSource.Next()
	if err == nil {
		c.n.Add(1)
	}
	return hint, err
}

// forbidNetlink makes the kernel refuse this process netlink sockets, as the sandboxes of
// service managers do.
func forbidNetlink() error {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret    = unix.BPF_RET | unix.BPF_K
		number = 0  // in struct seccomp_data
		first  = 16 // argument, its less significant half
	)
	filter := []unix.SockFilter{
		{Code: load, K: number},
		{Code: equal, K: unix.SYS_SOCKET, Jf: 3},
		{Code: load, K: first},
		{Code: equal, K: unix.AF_NETLINK, Jf: 1},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

// startObserver starts another process that observes, in namespaces of its own.
func startObserver(t testing.TB, surroundings string, namespaces uintptr) (pid int, reports <-chan report) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), observerEnv+"="+surroundings)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	if namespaces&syscall.CLONE_NEWUSER != 0 {
		all := []syscall.SysProcIDMap{{Size: 1 << 16}}
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = all, all
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reported := make(chan report, 1000)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for decoder := json.NewDecoder(stdout); ; {
			var r report
			if err := decoder.Decode(&r); err == io.EOF {
				return
			} else if err != nil {
				t.Errorf("reading the output of the observer with %s: %v", surroundings, err)
				_, _ = io.Copy(io.Discard, stdout) // it does not end while it cannot write
				return
			}
			reported <- r
		}
	}()
	t.Cleanup(func() {
		stdin.Close()
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("the observer with %s: %v", surroundings, err)
		}
	})
	return cmd.Process.Pid, reported
}

func waitForReport(t testing.TB, reports <-chan report, what string, agrees func(report) bool) report {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case r := <-reports:
			if agrees(r) {
				return r
			}
		case <-timeout:
			t.Fatalf("not seen in 20 s: %s", what)
		}
	}
}

// A device of the machine is attached and detached: another process, with fewer rights,
// publishes both.
func TestConvergesInSandbox(t *testing.T) {
	needRoot(t)
	for _, test := range []struct {
		surroundings string
		namespaces   uintptr
		events       bool   // whether an event reports the device
		noEvents     string // the warning, if the worker knows that there are none
		hidden       bool   // the device cannot be seen
	}{
		{surroundings: "a network namespace", namespaces: syscall.CLONE_NEWNET, events: true},
		{surroundings: "a network namespace of a user namespace", namespaces: syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER},
		{surroundings: "read-only /sys", namespaces: syscall.CLONE_NEWNS, events: true},
		{surroundings: "hidden /sys/devices/virtual", namespaces: syscall.CLONE_NEWNS, events: true, hidden: true},
		{
			surroundings: "no netlink",
			noEvents:     "cannot receive block device events, polling every 50ms instead: opening a kernel event socket: socket: address family not supported by protocol",
		},
	} {
		t.Run(test.surroundings, func(t *testing.T) {
			t.Cleanup(func() { leaktest.VerifyNone(t) })
			_, reports := startObserver(t, test.surroundings, test.namespaces)
			file, find := backingFile(t, 4)
			first := waitForReport(t, reports, "a first list", func(report) bool { return true })
			if first.NoEvents != test.noEvents {
				t.Errorf("warned %q, want %q", first.NoEvents, test.noEvents)
			}
			if test.hidden {
				for _, d := range first.Devices {
					if strings.HasPrefix(d.DeviceName, "loop") {
						t.Errorf("%s is listed, which is hidden", d.DeviceName)
					}
				}
				return
			}
			told := false
			// A poll may find the device before its event is read: then try again.
			for deadline := time.Now().Add(20 * time.Second); !told && time.Now().Before(deadline); {
				_, detach := attachLoop(t, file)
				waitForReport(t, reports, "the device", func(r report) bool { return find(r.Devices) != nil })
				detach()
				last := waitForReport(t, reports, "the device's absence", func(r report) bool { return find(r.Devices) == nil })
				told = last.Events > 0
				if !test.events {
					break
				}
			}
			if told != test.events {
				t.Errorf("an event reported it: %v, want %v", told, test.events)
			}
		})
	}
}

// BenchmarkIdle measures how often a process that does nothing but observe wakes
// up, over seconds in which no device changes: b.N of them.
func BenchmarkIdle(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("a process of its own in a user namespace needs root")
	}
	// The events of other programs on this machine do not arrive in these namespaces.
	pid, reports := startObserver(b, "idle", syscall.CLONE_NEWNET|syscall.CLONE_NEWUSER)
	waitForReport(b, reports, "a first list", func(report) bool { return true })
	second := time.NewTicker(time.Second)
	defer second.Stop()
	<-second.C // let the runtime become idle
	before := contextSwitches(b, pid)
	for b.Loop() {
		<-second.C
	}
	b.ReportMetric(float64(contextSwitches(b, pid)-before)/float64(b.N), "wakeups/s")
}

// contextSwitches returns how often the threads of a process have waited for
// something until now.
func contextSwitches(t testing.TB, pid int) int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("threads %q, %v", files, err)
	}
	sum := 0
	for _, file := range files {
		status, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(status)) {
			if count, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
				n, err := strconv.Atoi(strings.TrimSpace(count))
				if err != nil {
					t.Fatal(err)
				}
				sum += n
			}
		}
	}
	return sum
}
