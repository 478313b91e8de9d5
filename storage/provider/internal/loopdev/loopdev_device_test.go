//go:build linux

package loopdev

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

const fileSize = 1 << 20

// testPatience is longer than any step takes on a loaded machine.
const testPatience = time.Minute

// backing makes a backing file and returns it, open for writing.
func backing(t *testing.T, dir string) (*os.File, FileID) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "backing"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(fileSize); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return f, IDOf(&st)
}

func attach(t *testing.T, f *os.File, readOnly bool) *Handle {
	t.Helper()
	h, err := Attach(context.Background(), f, readOnly, 0, testLabel)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// found returns the devices of a file.
func found(t *testing.T, id FileID) []Device {
	t.Helper()
	table, err := Scan()
	if err != nil {
		t.Fatal(err)
	}
	devices, err := table.OfFile(id, "backing")
	if err != nil {
		t.Fatal(err)
	}
	return devices
}

// checkGone checks that no device is attached to a file. Other programs that scan devices
// may delay that briefly.
func checkGone(t *testing.T, id FileID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	for {
		devices := found(t, id)
		if len(devices) == 0 {
			return
		}
		if pause(ctx) != nil {
			t.Errorf("left: %+v", devices)
			return
		}
	}
}

func mustDetach(t *testing.T, d Device) {
	t.Helper()
	if err := Detach(context.Background(), d); err != nil {
		t.Error(err)
	}
}

func TestAttachAdoptDetach(t *testing.T) {
	dir := devicetest.Dir(t)
	f, id := backing(t, dir)
	h := attach(t, f, false)
	if h.File != id || h.ReadOnly || h.AutoClear || h.Label != testLabel || !h.IsWholeFile() || h.DiskSeq == 0 {
		t.Errorf("attached %+v", h)
	}
	h.Close()
	devices := found(t, id)
	if len(devices) != 1 || devices[0] != h.Device || devices[0].AutoClear {
		t.Fatalf("scan found %+v, want %+v", devices, h.Device)
	}

	again, err := Adopt(devices[0], f)
	if err != nil || again.DiskSeq != h.DiskSeq {
		t.Fatalf("adopted %+v, %v", again, err)
	}
	again.Close()

	for range 2 {
		mustDetach(t, devices[0])
	}
	checkGone(t, id)
	if _, err := Adopt(devices[0], f); err == nil {
		t.Error("adopted a detached device")
	}
}

// The file becomes longer, and then shorter, while it is attached.
func TestAdoptGrowsWithTheFile(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		dir := devicetest.Dir(t)
		f, _ := backing(t, dir)
		h := attach(t, f, readOnly)
		for _, want := range []int64{2 * fileSize, 2*fileSize + 512} {
			if err := f.Truncate(want); err != nil {
				t.Fatal(err)
			}
			again, err := Adopt(h.Device, f)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := size(again.f); err != nil || got != uint64(want) {
				t.Errorf("%d bytes, %v; want %d", got, err, want)
			}
			again.Close()
		}
		if err := f.Truncate(fileSize); err != nil {
			t.Fatal(err)
		}
		if _, err := Adopt(h.Device, f); !errors.Is(err, errors.NotValid) {
			t.Errorf("adopted a device larger than its file: %v", err)
		}
		if got, err := size(h.f); err != nil || got <= fileSize {
			t.Errorf("the device became smaller: %d bytes, %v", got, err)
		}
		discard(t, h)
	}
}

func TestDiscard(t *testing.T) {
	dir := devicetest.Dir(t)
	f, id := backing(t, dir)
	discard(t, attach(t, f, false))
	checkGone(t, id)
}

func discard(t *testing.T, h *Handle) {
	t.Helper()
	if err := h.Discard(t.Context()); err != nil {
		t.Error(err)
	}
	h.Close()
}

// A device of another program would be detached by the kernel at its last close.
func TestKeepForeignDevice(t *testing.T) {
	dir := devicetest.Dir(t)
	f, id := backing(t, dir)
	loop := devicetest.AttachLoop(t, f.Name())
	holder, err := os.Open(loop.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := setAutoClear(holder, true); err != nil {
		t.Fatal(err)
	}
	devices := found(t, id)
	if len(devices) != 1 || devices[0].Label != (Label{}) || !devices[0].AutoClear {
		t.Fatalf("found %+v", devices)
	}
	h, err := Adopt(devices[0], f)
	if err == nil {
		err = h.Keep(testLabel)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	holder.Close()
	if devices := found(t, id); len(devices) != 1 || devices[0].AutoClear || devices[0].Label != testLabel {
		t.Errorf("found %+v", devices)
	}
}

func TestReadOnly(t *testing.T) {
	dir := devicetest.Dir(t)
	f, id := backing(t, dir)
	h := attach(t, f, true)
	defer func() { h.Close(); mustDetach(t, h.Device) }()
	if !h.ReadOnly || len(found(t, id)) != 1 || !found(t, id)[0].ReadOnly {
		t.Errorf("attached %+v", h)
	}
	w, err := os.OpenFile(h.Path(), os.O_WRONLY, 0)
	if err == nil {
		_, err = w.Write(make([]byte, 4096))
		if err == nil {
			err = w.Sync()
		}
		w.Close()
	}
	if err == nil {
		t.Error("wrote to a read-only device")
	}
}

// The backing file is open for reading only. The kernel would attach it read-only and
// report success.
func TestReadOnlyFileIsNotAttachedForWriting(t *testing.T) {
	dir := devicetest.Dir(t)
	_, id := backing(t, dir)
	f, err := os.Open(filepath.Join(dir, "backing"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if h, err := Attach(context.Background(), f, false, 0, testLabel); err == nil {
		h.Close()
		t.Error("attached")
	}
	checkGone(t, id)
}

// A new file has the name of a deleted one that is still attached.
func TestDeletedFileDistinguishedFromNewFile(t *testing.T) {
	dir := devicetest.Dir(t)
	f, oldID := backing(t, dir)
	h := attach(t, f, false)
	defer func() { h.Close(); mustDetach(t, h.Device) }()
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	_, newID := backing(t, dir)
	if devices := found(t, newID); len(devices) != 0 {
		t.Errorf("the new file is reported as attached: %+v", devices)
	}
	if devices := found(t, oldID); len(devices) != 1 {
		t.Errorf("the deleted file is not reported as attached: %+v", devices)
	}
}

// A foreign device on a filesystem that has failed does not affect others.
// Finding N10.
func TestScanSkipsDeviceOnDeadFilesystem(t *testing.T) {
	devicetest.RequireProgram(t, "mkfs.xfs")
	dir := devicetest.Dir(t)
	disk := devicetest.NewLoop(t, 300<<20)
	if out, err := exec.Command("mkfs.xfs", "-q", disk.Path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := unix.Mount(disk.Path, dir, "xfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		// A program that scans devices may keep the one on it busy briefly.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	dead, _ := backing(t, dir)
	defer dead.Close()
	h := attach(t, dead, false)
	defer func() {
		h.Close()
		devicetest.ClearLoop(t, filepath.Base(devicePath(h.Number)))
	}()
	top, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	const iocShutdown = 0x8004587d // XFS_IOC_GOINGDOWN
	err = unix.IoctlSetPointerInt(int(top.Fd()), iocShutdown, unix.FS_SHUTDOWN_FLAGS_NOLOGFLUSH)
	top.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.IoctlLoopGetStatus64(int(h.f.Fd())); !errors.Is(err, unix.EIO) {
		t.Skipf("this kernel reports the status of a device on a dead filesystem: %v", err)
	}

	f, id := backing(t, devicetest.Dir(t))
	other := attach(t, f, false)
	defer func() { other.Close(); mustDetach(t, other.Device) }()
	if devices := found(t, id); len(devices) != 1 || devices[0].Number != other.Number {
		t.Errorf("found %+v, want loop%d", devices, other.Number)
	}
}

// Another program takes the number as soon as the device is detached. Detaching succeeds,
// even if the status of the new device cannot be read.
// Finding N27.
func TestDetachWhenNumberIsReused(t *testing.T) {
	f, _ := backing(t, devicetest.Dir(t))
	h := attach(t, f, false)
	h.Close()
	other, _ := backing(t, devicetest.Dir(t))
	cleared, taken, ours := false, false, false
	err := syscalltest.Intercept(t, []int{unix.SYS_IOCTL}, func(c syscalltest.Call) syscalltest.Result {
		switch {
		case c.Path() != h.Path():
		case c.Args[1] == unix.LOOP_CLR_FD:
			cleared = true
		case c.Args[1] == unix.LOOP_GET_STATUS64 && cleared:
			if !taken {
				taken, ours = true, take(t, h.Number, other)
			}
			if ours {
				return syscalltest.Fail(unix.EIO)
			}
		}
		return syscalltest.Pass
	}, func() error { return Detach(context.Background(), h.Device) })
	if err != nil || !taken {
		t.Errorf("taken: %v; detaching: %v", taken, err)
	}
	if ours {
		devicetest.ClearLoop(t, filepath.Base(devicePath(h.Number)))
	}
}

// take attaches a device of the given number to a file, and reports whether it was free.
func take(t *testing.T, number int, file *os.File) bool {
	device, err := openDevice(number, unix.O_RDWR)
	if err == nil {
		defer device.Close()
		err = unix.IoctlLoopConfigure(int(device.Fd()), &unix.LoopConfig{Fd: uint32(file.Fd())})
	}
	if err != nil && err != unix.EBUSY {
		t.Error(err)
	}
	return err == nil
}

// The kernel fails once to report the status of a device.
// Fault F28.
func TestScanDeviceStatusError(t *testing.T) {
	f, id := backing(t, devicetest.Dir(t))
	h := attach(t, f, false)
	h.Close()
	defer mustDetach(t, h.Device)
	other, otherID := backing(t, devicetest.Dir(t))
	var table *Table
	err := syscalltest.Intercept(t, []int{unix.SYS_IOCTL}, func(c syscalltest.Call) syscalltest.Result {
		if c.Args[1] == unix.LOOP_GET_STATUS64 && c.Path() == h.Path() {
			return syscalltest.Fail(unix.EIO)
		}
		return syscalltest.Pass
	}, func() (err error) {
		table, err = Scan()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if devices, err := table.OfFile(id, f.Name()); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), h.Name()+" shows "+f.Name()) {
		t.Errorf("devices of its file: %v, %v", devices, err)
	}
	if devices, err := table.OfFile(otherID, other.Name()); err != nil || len(devices) != 0 {
		t.Errorf("devices of another file of that name: %v, %v", devices, err)
	}
	for seq, want := range map[uint64]bool{h.DiskSeq: true, h.DiskSeq - 1: false} {
		if is, err := table.IsUnreadable(h.Name(), seq); err != nil || is != want {
			t.Errorf("with sequence number %d: %t, %v", seq, is, err)
		}
	}
}

func TestDetachBusyNamesTheHolder(t *testing.T) {
	for _, test := range []struct {
		about string
		flags int
	}{
		{"open", os.O_RDONLY},
		{"open exclusively", os.O_RDONLY | unix.O_EXCL},
	} {
		t.Run(test.about, func(t *testing.T) {
			dir := devicetest.Dir(t)
			f, id := backing(t, dir)
			h := attach(t, f, false)
			h.Close()
			holder, err := os.OpenFile(h.Path(), test.flags, 0)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("cat")
			cmd.ExtraFiles = []*os.File{holder}
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			holder.Close()
			err = Detach(context.Background(), h.Device)
			if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "(cat): has open "+h.Path()) {
				t.Errorf("detaching: %v", err)
			}
			stdin.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			devices := found(t, id)
			if len(devices) != 1 || devices[0] != h.Device {
				t.Errorf("after a refused detach: %+v, want %+v", devices, h.Device)
			}
			mustDetach(t, h.Device)
		})
	}
}

// The writer's close is not the last one: another program has the device open, and closes
// it while the device is being detached.
func TestDetachFlushesWrites(t *testing.T) {
	dir := devicetest.Dir(t)
	f, id := backing(t, dir)
	h := attach(t, f, false)
	opener, err := os.Open(h.Path())
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	writer, err := os.OpenFile(h.Path(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.WriteString("precious"); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	closed := false
	err = syscalltest.Intercept(t, []int{unix.SYS_IOCTL}, func(c syscalltest.Call) syscalltest.Result {
		if c.Args[1] == unix.LOOP_CLR_FD {
			closed = opener.Close() == nil
		}
		return syscalltest.Pass
	}, func() error { return Detach(t.Context(), h.Device) })
	if err != nil || !closed {
		t.Fatalf("closed: %v; detaching: %v", closed, err)
	}
	checkGone(t, id)
	got := make([]byte, len("precious"))
	if _, err := f.ReadAt(got, 0); err != nil || string(got) != "precious" {
		t.Errorf("the file has %q, %v", got, err)
	}
}

// udev has the device open while it is detached.
func TestDetachWaitsForBriefOpeners(t *testing.T) {
	dir := devicetest.Dir(t)
	f, id := backing(t, dir)
	h := attach(t, f, false)
	h.Close()
	opener, err := os.Open(h.Path())
	if err != nil {
		t.Fatal(err)
	}
	cleared := make(chan error, 1)
	go func() {
		cleared <- detach(t.Context(), h.Device, testPatience)
	}()
	// With autoclear set, the kernel has accepted the detach.
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	for armed := false; !armed; {
		d, err := inspect(opener, h.Number)
		if err == nil {
			err = pause(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		armed = d.AutoClear
	}
	opener.Close()
	if err := <-cleared; err != nil {
		t.Error(err)
	}
	checkGone(t, id)
}

// TestConfigureInSteps configures a device as on a kernel without LOOP_CONFIGURE.
func TestConfigureInSteps(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		dir := devicetest.Dir(t)
		f, id := backing(t, dir)
		control, err := openControl()
		if err != nil {
			t.Fatal(err)
		}
		defer control.Close()
		unlock, err := lock(context.Background(), control)
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
		mode := unix.O_RDWR
		if readOnly {
			mode = unix.O_RDONLY
		}
		var number int
		var dev *os.File
		for {
			if number, err = unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE); err != nil {
				t.Fatal(err)
			}
			if dev, err = openDevice(number, mode); err == nil {
				if err = configureInSteps(dev, f, &unix.LoopInfo64{Flags: unix.LO_FLAGS_DIRECT_IO}); err == nil {
					break
				}
				dev.Close()
			}
			// Programs that do not take the lock, such as losetup, may take the device first.
			if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENXIO) {
				t.Fatal(err)
			}
			if err := pause(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		defer dev.Close()
		if !canConfigure(dev) {
			t.Log("this kernel has no LOOP_CONFIGURE")
		}
		h, err := newHandle(dev, number)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.verify(f, readOnly); err != nil {
			t.Error(err)
		}
		control.Close()
		discard(t, h)
		checkGone(t, id)
	}
}

// Eight callers attach and discard devices concurrently.
func TestConcurrentAttach(t *testing.T) {
	dir := devicetest.Dir(t)
	const callers, each = 8, 5
	failures := make(chan error, callers)
	for range callers {
		go func() {
			failures <- func() error {
				f, err := os.CreateTemp(dir, "")
				if err != nil {
					return err
				}
				defer f.Close()
				if err := f.Truncate(fileSize); err != nil {
					return err
				}
				for range each {
					h, err := Attach(context.Background(), f, false, 0, testLabel)
					if err == nil {
						err = h.Discard(t.Context())
					}
					if err != nil {
						return err
					}
					h.Close()
				}
				return nil
			}()
		}()
	}
	for range callers {
		if err := <-failures; err != nil {
			t.Error(err)
		}
	}
}

// Callers without the lock take each other's free devices, and find devices that another
// caller is just detaching.
func TestConcurrentAttachWithoutLock(t *testing.T) {
	dir := devicetest.Dir(t)
	control, err := openControl()
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	var callers sync.WaitGroup
	for n := range 2 {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(n)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(fileSize); err != nil {
			t.Fatal(err)
		}
		callers.Go(func() {
			for range 300 {
				h, err := attachAny(t.Context(), control, f, false, 0, testLabel)
				if err != nil {
					t.Error(err)
					return
				}
				if err := h.Discard(t.Context()); err != nil {
					t.Error(err)
				}
				h.Close()
			}
		})
	}
	callers.Wait()
}

// Another program holds the lock on the control device and never releases it.
func TestAttachDespiteHeldLock(t *testing.T) {
	dir := devicetest.Dir(t)
	f, _ := backing(t, dir)
	control, err := openControl()
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	if err := unix.Flock(int(control.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Attach(ctx, f, false, 0, testLabel); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	discard(t, attach(t, f, false))
}
