package loopdev

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// Table is which loop devices were attached to which files when it was made. A
// bulk call makes it once, and notes in it what it changes. It is safe for
// concurrent use.
type Table struct {
	mu     sync.Mutex
	byFile map[FileID][]Device
}

// Scan looks at every loop device. One that is attached but cannot be looked at
// is an error: it might be attached to any file. But one whose file is on a filesystem
// that was shut down, which the kernel asks about the file, is on no file that anybody
// can open: it is left out, or it would be in the way of all others.
func Scan() (*Table, error) {
	numbers, err := sized()
	if err != nil {
		return nil, errors.Annotate(err, "scanning loop devices")
	}
	t := &Table{byFile: make(map[FileID][]Device)}
	for _, number := range numbers {
		d, err := look(number)
		if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EIO) {
			continue
		} else if err != nil {
			return nil, errors.Annotate(err, "scanning loop devices")
		}
		t.Add(d)
	}
	return t, nil
}

// sized returns the numbers of the loop devices that have a size, as those have that
// show a file which is not empty. Of the others, which are not attached, there may be
// a thousand on a machine that had many volumes.
func sized() ([]int, error) {
	data, err := os.ReadFile("/proc/partitions")
	if err != nil {
		return nil, errors.Trace(err)
	}
	var numbers []int
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) != 4 {
			continue
		}
		digits, ok := strings.CutPrefix(fields[3], "loop")
		if number, err := strconv.Atoi(digits); ok && err == nil {
			numbers = append(numbers, number)
		}
	}
	return numbers, nil
}

// look inspects one device. unix.ENXIO means that it is not attached.
func look(number int) (Device, error) {
	f, err := openDevice(number, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, unix.ENOENT) && !hasFile(number) {
		return Device{}, unix.ENXIO // it went away meanwhile
	} else if err != nil {
		return Device{}, notPassedOn(err, number)
	}
	defer f.Close()
	return inspect(f, number)
}

func hasFile(number int) bool {
	_, err := os.Stat(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", number))
	return !errors.Is(err, unix.ENOENT)
}

// OfFile returns the devices attached to a file.
func (t *Table) OfFile(id FileID) []Device {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.byFile[id])
}

// Add notes that a device has been attached.
func (t *Table) Add(d Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byFile[d.File] = append(t.byFile[d.File], d)
}

// Remove notes that a device has been detached.
func (t *Table) Remove(d Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byFile[d.File] = slices.DeleteFunc(t.byFile[d.File], func(other Device) bool {
		return other.Number == d.Number
	})
}
