// Package extents finds the blocks that a file does not have to itself, and allocates them. It
// is for files whose writes must not fail because the filesystem is full. On btrfs such a file
// must also be written in place: see package nocow.
package extents

import (
	"context"
	"os"
	"unsafe"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// allocationStep and copyStep are the number of bytes that one call allocates or unshares.
// Unsharing copies the data. The steps let a cancelled context take effect.
const (
	allocationStep = 1 << 30
	copyStep       = 64 << 20
)

// Range is a part of a file, in bytes.
type Range struct {
	Start, End uint64
}

// Missing describes what a file lacks to have all its blocks to itself.
type Missing struct {
	// Holes have no blocks.
	Holes []Range
	// Shared blocks belong to another file too (a snapshot or a copy by reference): the next
	// write to them needs new blocks.
	Shared []Range
}

// Len returns the total length of Holes and Shared in bytes, which is the space that the file
// still needs.
func (m Missing) Len() uint64 { return length(m.Holes) + length(m.Shared) }

// SharedLen returns the total length of Shared in bytes.
func (m Missing) SharedLen() uint64 { return length(m.Shared) }

func length(ranges []Range) (n uint64) {
	for _, r := range ranges {
		n += r.End - r.Start
	}
	return n
}

// Find returns what the first size bytes of a file lack. If the filesystem does not report
// extents, such as tmpfs, the error satisfies errors.IsNotSupported.
func Find(f *os.File, size uint64) (Missing, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Missing{}, errors.Annotatef(err, "reading the size of %s", f.Name())
	}
	m, err := find(f, min(size, uint64(st.Size)))
	// Blocks beyond the end of the file do not count: the part up to size is a hole.
	if err == nil && uint64(st.Size) < size {
		m.Holes = add(m.Holes, Range{uint64(st.Size), size})
	}
	return m, errors.Trace(err)
}

func find(f *os.File, size uint64) (Missing, error) {
	var m Missing
	var at uint64 // everything before at is known
	for at < size {
		before := at
		found, err := fiemap(f, at, size-at)
		if err == unix.EOPNOTSUPP || err == unix.ENOTTY {
			return Missing{}, errors.NewNotSupported(err, "finding the blocks of "+f.Name())
		} else if err != nil {
			return Missing{}, errors.Annotatef(err, "finding the blocks of %s", f.Name())
		}
		last := len(found) == 0
		for _, e := range found {
			start, end := max(e.logical, at), min(e.logical+e.length, size)
			if start > at {
				m.Holes = add(m.Holes, Range{at, min(start, size)})
			}
			switch {
			case start >= end:
			case e.flags&extentDelayed != 0:
				m.Holes = add(m.Holes, Range{start, end}) // the space is reserved, but has no blocks yet
			case e.flags&extentShared != 0:
				m.Shared = add(m.Shared, Range{start, end})
			}
			at = max(at, end)
			last = last || e.flags&extentLast != 0
		}
		if (last || at == before) && at < size {
			m.Holes = add(m.Holes, Range{at, size})
			at = size
		}
	}
	return m, nil
}

// add appends a range, or extends the last one if the two are adjacent.
func add(ranges []Range, r Range) []Range {
	if n := len(ranges); n > 0 && ranges[n-1].End == r.Start {
		ranges[n-1].End = r.End
		return ranges
	}
	return append(ranges, r)
}

// Allocate allocates blocks for the holes of a file in a range, and makes the file at least as
// long as the end of the range. It changes nothing else. It can be repeated after an error.
func Allocate(ctx context.Context, f *os.File, r Range) error {
	return errors.Trace(fallocate(ctx, f, 0, r, allocationStep))
}

// Unshare gives a file blocks of its own for those that it shares in a range. It can be
// repeated after an error, and then continues where it stopped. The error is unix.EOPNOTSUPP
// if the filesystem cannot unshare: of those that share blocks, only xfs can.
func Unshare(ctx context.Context, f *os.File, r Range) error {
	return errors.Trace(fallocate(ctx, f, unix.FALLOC_FL_UNSHARE_RANGE, r, copyStep))
}

func fallocate(ctx context.Context, f *os.File, mode uint32, r Range, step uint64) error {
	for at := r.Start; at < r.End; {
		if err := ctx.Err(); err != nil {
			return errors.Trace(err)
		}
		n := min(r.End-at, step)
		switch err := unix.Fallocate(int(f.Fd()), mode, int64(at), int64(n)); err {
		case nil:
			at += n
		case unix.EINTR:
			// The runtime interrupts system calls now and then.
		default:
			return errors.Trace(err)
		}
	}
	return nil
}

// These constants are from linux/fiemap.h.
const (
	fiemapRequest = 0xc020660b // FS_IOC_FIEMAP

	extentLast    = 0x0001
	extentDelayed = 0x0004
	extentShared  = 0x2000
)

// extent is struct fiemap_extent.
type extent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

// fiemap returns the first extents of a part of a file, in order.
func fiemap(f *os.File, start, length uint64) ([]extent, error) {
	// request is struct fiemap.
	var request struct {
		start, length uint64
		flags         uint32
		mapped, count uint32
		_             uint32
		extents       [128]extent
	}
	request.start, request.length, request.count = start, length, uint32(len(request.extents))
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fiemapRequest, uintptr(unsafe.Pointer(&request)))
		switch errno {
		case 0:
			return request.extents[:request.mapped], nil
		case unix.EINTR:
		default:
			return nil, errno
		}
	}
}
