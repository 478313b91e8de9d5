package signature

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// edge is how much of each end of a device is read to prove it blank, in
// bytes. The filesystems, volume managers, swap areas and partition tables
// that are in use keep what identifies them within it.
const edge = 4 << 20

// step is how much of that is read at a time, in bytes: so much stays in the cache
// of a CPU until it has been looked at.
const step = 512 << 10

// NotBlankError is what ProveBlank returns for a device that was read well and
// has something on it.
type NotBlankError struct {
	Found Signature
}

// Error implements error.
func (e *NotBlankError) Error() string {
	return "not blank: it holds " + e.Found.String()
}

// ProveBlank returns nil when nothing is on the block device dev, size bytes
// long: its first and last 4 MiB read as zero, blkid recognises nothing, and
// there is no copy of a btrfs superblock, from which all of a btrfs can be had
// back when its beginning is lost.
// It returns a *NotBlankError for a device that holds something, and any other
// error when that could not be found out; such a device is not blank either.
func ProveBlank(ctx context.Context, dev *os.File, size int64) error {
	return proveBlank(ctx, dev, size, Probe)
}

// proveBlank is ProveBlank with a way of asking blkid.
func proveBlank(ctx context.Context, dev *os.File, size int64, ask func(context.Context, *os.File) (Signature, error)) error {
	// Past the page cache: it shows what is on the device, and costs a third less.
	direct, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", dev.Fd()), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return errors.Annotatef(err, "opening %s for direct reading", dev.Name())
	}
	defer direct.Close()
	// Each takes a millisecond.
	var found Signature
	var probing sync.WaitGroup
	var probeErr error
	probing.Go(func() { found, probeErr = ask(ctx, dev) })
	zero, err := zeroEdges(direct, size)
	probing.Wait()
	if err == nil {
		err = probeErr
	}
	if err != nil {
		return errors.Trace(err)
	}
	if found.Type == "" {
		if found, err = btrfsCopy(dev, size); err != nil {
			return errors.Trace(err)
		}
	}
	if !zero || found.Type != "" {
		return errors.Trace(&NotBlankError{Found: found})
	}
	return nil
}

// zeroEdges reports whether the first and last 4 MiB read as zero. A short
// read is an error.
func zeroEdges(r io.ReaderAt, size int64) (bool, error) {
	if size <= 0 {
		return false, errors.Errorf("size %d leaves nothing to look at", size)
	}
	// Direct reading wants memory that is aligned, as a page is.
	buf, err := unix.Mmap(-1, 0, step, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false, errors.Annotate(err, "getting memory to read into")
	}
	defer func() { _ = unix.Munmap(buf) }()
	span := func(from, to int64) (bool, error) {
		for at := from; at < to; at += int64(len(buf)) {
			part := buf[:min(int64(len(buf)), to-at)]
			if n, err := r.ReadAt(part, at); n < len(part) {
				return false, errors.Annotatef(err, "reading %d bytes at %d", len(part), at)
			}
			if !isZero(part) {
				return false, nil
			}
		}
		return true, nil
	}
	firstEnd := min(edge, size)
	zero, err := span(0, firstEnd)
	if err != nil || !zero {
		return false, errors.Trace(err)
	}
	zero, err = span(max(firstEnd, size-edge), size)
	return zero, errors.Trace(err)
}

// isZero tells whether all bytes are zero: the first is, and each is what the one
// before it is.
func isZero(b []byte) bool {
	return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}
