//go:build linux

package loopdev

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/looptest"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// A scan finds every attached device while the kernel removes others: a device that is left
// out would be attached to its file a second time.
// Finding N31.
func TestScanWhileDevicesAreRemoved(t *testing.T) {
	f, _ := backing(t, devicetest.Dir(t))
	control, err := openControl()
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	// The kernel lists devices in the order in which they were added, so those that are
	// removed come before those that stay.
	const removed, staying = 20, 40
	numbers := addDevices(t, control, removed+staying)
	defer removeDevices(control, numbers)
	for _, number := range numbers[removed:] {
		device, err := openDevice(number, unix.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		err = configure(device, f, false, 0, testLabel)
		device.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer looptest.Detach(device.Name())
	}

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		removeDevices(control, numbers[:removed])
	}()
	for lists := 0; ; lists++ {
		found, err := attachedNumbers()
		if err != nil {
			t.Error(err)
			break
		}
		// One that is just being removed may be in the list, too.
		found = slices.DeleteFunc(found, func(number int) bool { return !slices.Contains(numbers[removed:], number) })
		if !slices.Equal(found, numbers[removed:]) {
			t.Errorf("list %d has %v, want %v", lists, found, numbers[removed:])
			break
		}
		select {
		case <-ended:
			return
		default:
		}
	}
	<-ended
}

// A device that is detached while its file in sysfs is open counts as detached.
// Finding N40.
func TestScanWhileDeviceIsDetached(t *testing.T) {
	f, id := backing(t, devicetest.Dir(t))
	control, err := openControl()
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	numbers := addDevices(t, control, 1)
	defer removeDevices(control, numbers)
	device, err := openDevice(numbers[0], unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	if err := configure(device, f, false, 0, testLabel); err != nil {
		t.Fatal(err)
	}
	attribute, err := os.Open(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", numbers[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer attribute.Close()
	if err := clearFD(device); err != nil {
		t.Fatal(err)
	}
	device.Close()
	checkGone(t, id)
	if path, err := readAttribute(attribute); !errors.Is(err, unix.ENOENT) {
		t.Errorf("the file of a device that was detached is %q, %v", path, err)
	}
}

// addDevices adds loop devices whose numbers nobody uses. They are so high that nobody else is
// given them.
func addDevices(t *testing.T, control *os.File, n int) (numbers []int) {
	t.Helper()
	for number := 2000; len(numbers) < n; number++ {
		switch err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, number); err {
		case nil:
			numbers = append(numbers, number)
		case unix.EEXIST, unix.EINTR:
		default:
			removeDevices(control, numbers)
			t.Fatalf("adding loop%d: %v", number, err)
		}
	}
	return numbers
}

// removeDevices removes the numbers of loop devices that are not attached. Another program may
// have such a device open for a moment.
func removeDevices(control *os.File, numbers []int) {
	for _, number := range numbers {
		for deadline := time.Now().Add(patience); ; {
			err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, number)
			if err != unix.EBUSY && err != unix.EINTR || time.Now().After(deadline) {
				break
			}
			_ = pause(context.Background())
		}
	}
}
