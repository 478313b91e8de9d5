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

	unreadable []unreadable // as Scan has found them
}

// unreadable is an attached device whose backing file the kernel does not report.
type unreadable struct {
	number int
	err    error
	// path is the file's, as far as sysfs knows it: where it was last, as seen from this
	// process's root directory.
	path string
}

// Scan looks at every loop device. One that is attached but cannot be looked at
// is an error: it might be attached to any file. But the kernel, which asks the file's
// filesystem, answers EIO for one whose file is on a filesystem that was shut down, which is
// to be in the way of no other file: [Table.OfFile] tells whether it is in that of one.
func Scan() (*Table, error) {
	numbers, err := sized()
	if err != nil {
		return nil, errors.Annotate(err, "scanning loop devices")
	}
	t := &Table{byFile: make(map[FileID][]Device)}
	for _, number := range numbers {
		d, err := look(number)
		if errors.Is(err, unix.EIO) {
			var path string
			if path, err = readBackingFile(number); err == nil {
				t.unreadable = append(t.unreadable, unreadable{number, unix.EIO, path})
				continue
			}
		}
		if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) {
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
	if errors.Is(err, unix.ENOENT) {
		if _, ferr := readBackingFile(number); errors.Is(ferr, unix.ENOENT) {
			return Device{}, unix.ENXIO // it was removed after it was listed
		}
	}
	if err != nil {
		return Device{}, notPassedOn(err, number)
	}
	defer f.Close()
	return inspect(f, number)
}

// readBackingFile returns what sysfs says of the file of a device. unix.ENOENT means that
// the device is not attached.
func readBackingFile(number int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", number))
	return strings.TrimSuffix(string(data), "\n"), errors.Trace(err)
}

// OfFile returns the devices attached to a file, whose path is that by which it is known. It
// is an error if a device that could not be looked at may be attached to the file.
func (t *Table) OfFile(id FileID, path string) ([]Device, error) {
	for _, u := range t.unreadable {
		if u.mayShow(id, path) {
			return nil, errors.Annotatef(u.err, "finding out whether loop%d shows %s", u.number, path)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.byFile[id]), nil
}

// MayBe tells whether a device of that name could not be looked at, and has the sequence
// number.
func (t *Table) MayBe(name string, diskSeq uint64) (bool, error) {
	for _, u := range t.unreadable {
		d := Device{Number: u.number}
		if d.Name() != name {
			continue
		}
		seq, err := d.ReadDiskSeq()
		return seq == diskSeq, errors.Trace(err)
	}
	return false, nil
}

// mayShow tells whether a device may show a file. It does not if sysfs names another one:
// one that is there as well, or on a filesystem that has failed, or elsewhere.
func (u unreadable) mayShow(id FileID, path string) bool {
	var st unix.Stat_t
	switch err := unix.Stat(u.path, &st); err {
	case nil:
		return IDOf(&st) == id
	case unix.EIO:
		return u.path == path
	}
	// The path is one in another mount namespace, or the file has none any more. That of a
	// file whose filesystem was unmounted lazily begins at the filesystem's root.
	return strings.HasSuffix(path, strings.TrimSuffix(u.path, " (deleted)"))
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
