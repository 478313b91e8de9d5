package loopdev

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

const sysBlock = "/sys/block"

// Table is which loop devices were attached to which files when it was made. A
// bulk call makes it once, and notes in it what it changes. It is safe for
// concurrent use.
type Table struct {
	mu     sync.Mutex
	byFile map[FileID][]Device
}

// Scan looks at every loop device. One that is attached but cannot be looked at
// is an error: it might be attached to any file.
func Scan() (*Table, error) {
	dir, err := os.Open(sysBlock)
	if err != nil {
		return nil, errors.Annotate(err, "scanning loop devices")
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, errors.Annotate(err, "scanning loop devices")
	}
	t := &Table{byFile: make(map[FileID][]Device)}
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, "loop")
		if !ok {
			continue
		}
		number, err := strconv.Atoi(digits)
		if err != nil {
			continue
		}
		d, err := look(int(dir.Fd()), number)
		if errors.Is(err, unix.ENXIO) {
			continue
		} else if err != nil {
			return nil, errors.Annotate(err, "scanning loop devices")
		}
		t.Add(d)
	}
	return t, nil
}

// look inspects one device. unix.ENXIO means that it is not attached.
func look(sysBlockFD, number int) (Device, error) {
	// Devices that are not attached, most of them on a machine that had many
	// volumes, are told by sysfs without opening them.
	isAttached := func() bool {
		return unix.Faccessat(sysBlockFD, "loop"+strconv.Itoa(number)+"/loop/backing_file", unix.F_OK, 0) != unix.ENOENT
	}
	if !isAttached() {
		return Device{}, unix.ENXIO
	}
	f, err := openDevice(number, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, unix.ENOENT) && !isAttached() {
		return Device{}, unix.ENXIO // it went away meanwhile
	} else if err != nil {
		return Device{}, notPassedOn(err, number)
	}
	defer f.Close()
	return inspect(f, number)
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
