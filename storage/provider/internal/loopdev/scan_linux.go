package loopdev

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/sysblock"
)

// Table records which loop devices were attached to which files when it was made. A bulk call
// makes one, and records its own changes in it. It is safe for concurrent use.
type Table struct {
	mu     sync.Mutex
	byFile map[FileID][]Device

	unreadable []unreadable // as found by Scan
}

// unreadable is an attached device whose backing file the kernel does not report.
type unreadable struct {
	number int
	err    error
	// path is the path of the file according to sysfs: its last one, relative to this
	// process's root directory.
	path string
}

// Scan inspects every loop device. It fails if a device is attached but cannot be inspected,
// because the device might be attached to any file. The exception is a device for which the
// kernel, which asks the file's filesystem, returns EIO because that filesystem was shut down:
// such a device must not affect other files, and [Table.OfFile] decides which file it may
// affect.
func Scan() (*Table, error) {
	numbers, err := attachedNumbers()
	if err != nil {
		return nil, errors.Annotate(err, "scanning loop devices")
	}
	t := &Table{byFile: make(map[FileID][]Device)}
	for _, number := range numbers {
		d, err := inspectNumber(number)
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

// attachedNumbers returns the numbers of the loop devices that are attached.
func attachedNumbers() ([]int, error) {
	names, err := sysblock.Names()
	if err != nil {
		return nil, errors.Trace(err)
	}
	var numbers []int
	for _, name := range names {
		if number, ok := sysblock.LoopNumber(name); ok {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// inspectNumber inspects one device. The error is unix.ENXIO if the device is not attached.
func inspectNumber(number int) (Device, error) {
	f, err := openDevice(number, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, unix.ENOENT) {
		if _, ferr := readBackingFile(number); errors.Is(ferr, unix.ENOENT) {
			return Device{}, unix.ENXIO // the device was removed after it was listed
		}
	}
	if err != nil {
		return Device{}, explainOpenError(err, number)
	}
	defer f.Close()
	return inspect(f, number)
}

// readBackingFile returns the path of a device's file in sysfs. The error is unix.ENOENT if
// the device is not attached.
func readBackingFile(number int) (string, error) {
	attribute, err := os.Open(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", number))
	if err != nil {
		return "", errors.Trace(err)
	}
	defer attribute.Close()
	return readAttribute(attribute)
}

// readAttribute is readBackingFile for a file that is open. The kernel answers ENODEV if the device was
// detached after that.
func readAttribute(attribute *os.File) (string, error) {
	data, err := io.ReadAll(attribute)
	if errors.Is(err, unix.ENODEV) {
		err = unix.ENOENT
	}
	return strings.TrimSuffix(string(data), "\n"), errors.Trace(err)
}

// OfFile returns the devices attached to the file with the given identity and known path. It
// fails if a device that could not be inspected may be attached to the file.
func (t *Table) OfFile(id FileID, path string) ([]Device, error) {
	for _, u := range t.unreadable {
		if u.mayShow(id, path) {
			return nil, errors.Annotatef(u.err, "checking whether loop%d shows %s", u.number, path)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.byFile[id]), nil
}

// IsUnreadable reports whether a device that could not be inspected has the given name and
// sequence number.
func (t *Table) IsUnreadable(name string, diskSeq uint64) (bool, error) {
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

// mayShow reports whether the device may show a file. It does not if sysfs names another file:
// one that exists, one on a filesystem that has failed, or one elsewhere.
func (u unreadable) mayShow(id FileID, path string) bool {
	var st unix.Stat_t
	switch err := unix.Stat(u.path, &st); err {
	case nil:
		return IDOf(&st) == id
	case unix.EIO:
		return u.path == path
	}
	// The path belongs to another mount namespace, or the file no longer has a path. If the
	// file's filesystem was unmounted lazily, the path begins at the filesystem's root.
	return strings.HasSuffix(path, strings.TrimSuffix(u.path, " (deleted)"))
}

// Add records that a device has been attached.
func (t *Table) Add(d Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byFile[d.File] = append(t.byFile[d.File], d)
}

// Remove records that a device has been detached.
func (t *Table) Remove(d Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byFile[d.File] = slices.DeleteFunc(t.byFile[d.File], func(other Device) bool {
		return other.Number == d.Number
	})
}
