package signature

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
)

// edge is how much of each end of a device is read to prove it blank, in
// bytes. The filesystems, volume managers, swap areas and partition tables
// that are in use keep what identifies them within it.
const edge = 4 << 20

// step is how much of that is read at a time, in bytes: so much stays in the cache
// of a CPU until it has been looked at.
const step = 512 << 10

// alignment is what direct reading asks of offsets and lengths, in bytes, at most.
const alignment = 4 << 10

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
	return new(Prober).ProveBlank(ctx, dev, size)
}

// ProveBlank is [ProveBlank].
func (p *Prober) ProveBlank(ctx context.Context, dev *os.File, size int64) error {
	// Each takes a millisecond.
	var found Signature
	var probing sync.WaitGroup
	var probeErr error
	probing.Go(func() { found, probeErr = p.probe(ctx, dev) })
	zero, err := hasZeroEdges(ctx, dev, size)
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

func hasZeroEdges(ctx context.Context, dev *os.File, size int64) (bool, error) {
	r, err := newReader(dev)
	if err != nil {
		return false, errors.Trace(err)
	}
	defer r.close()
	return r.isZeroAtEdges(ctx, size)
}

// tellsHoles are the filesystems that tell which parts of a file were never written, and
// show the truth once the file is synced: SEEK_DATA finds all that was. Of others that is
// not known, or is known to be wrong.
var tellsHoles = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC}

// TellsHoles reports whether [Prober.ProveFileBlank] can rely on the filesystem of a file.
func TellsHoles(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && slices.Contains(tellsHoles, int64(st.Type))
}

// ProveFileBlank is [ProveBlank] of a loop device by its file, which [TellsHoles], and which
// was size bytes long when the device was attached: what was never written is not read, and
// all else is. What was written to the device is to have reached the file.
func (p *Prober) ProveFileBlank(ctx context.Context, dev, file *os.File, size int64) error {
	if err := fsync.File(file); err != nil {
		return errors.Annotatef(err, "syncing %s", file.Name())
	}
	zero, err := isZeroFile(ctx, file, size)
	if err != nil || zero {
		return errors.Trace(err)
	}
	found, err := p.probe(ctx, dev)
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(&NotBlankError{Found: found})
}

// isZeroFile tells whether the first size bytes of a file are zero.
func isZeroFile(ctx context.Context, f *os.File, size int64) (bool, error) {
	st, err := f.Stat()
	if err != nil {
		return false, errors.Trace(err)
	}
	if st.Size() < size {
		// What of the device is behind its end cannot be read.
		return false, errors.Annotatef(unix.EIO, "%s has %d bytes, and its device %d", f.Name(), st.Size(), size)
	}
	var r *reader
	for at := int64(0); at < size; {
		from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO || err == nil && from >= size {
			return true, nil
		} else if err != nil {
			return false, errors.Annotatef(err, "looking for data in %s", f.Name())
		}
		to, err := unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
		if err != nil {
			return false, errors.Annotatef(err, "looking for the end of data in %s", f.Name())
		}
		// Data may be what was only read, and is in the page cache.
		if r == nil {
			if r, err = newReader(f); err != nil {
				return false, errors.Trace(err)
			}
			defer r.close()
		}
		zero, err := r.isZero(ctx, from, min(to, size))
		if err != nil || !zero {
			return false, errors.Trace(err)
		}
		at = to
	}
	return true, nil
}

// reader reads a device or a file to compare it with zero.
type reader struct {
	io.ReaderAt
	buf []byte

	f *os.File
}

// newReader reads past the page cache where the filesystem of f can do that: it shows what
// is on the disk, and costs a third less.
func newReader(f *os.File) (*reader, error) {
	path := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	direct, err := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EINVAL) { // tmpfs, before Linux 6.6
		direct, err = os.OpenFile(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, errors.Annotatef(err, "opening %s for direct reading", f.Name())
	}
	r, err := newReaderAt(direct)
	if err != nil {
		direct.Close()
		return nil, errors.Trace(err)
	}
	r.f = direct
	return r, nil
}

func newReaderAt(r io.ReaderAt) (*reader, error) {
	// Direct reading wants memory that is aligned, as a page is.
	buf, err := unix.Mmap(-1, 0, step, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, errors.Annotate(err, "getting memory to read into")
	}
	return &reader{ReaderAt: r, buf: buf}, nil
}

func (r *reader) close() {
	_ = unix.Munmap(r.buf)
	if r.f != nil {
		r.f.Close()
	}
}

// isZeroAtEdges reports whether the first and last 4 MiB of size bytes read as zero.
func (r *reader) isZeroAtEdges(ctx context.Context, size int64) (bool, error) {
	if size <= 0 {
		return false, errors.Errorf("size %d leaves nothing to look at", size)
	}
	firstEnd := min(edge, size)
	zero, err := r.isZero(ctx, 0, firstEnd)
	if err != nil || !zero {
		return false, errors.Trace(err)
	}
	return r.isZero(ctx, max(firstEnd, size-edge), size)
}

// isZero reports whether what is in between reads as zero. A short read is an error.
func (r *reader) isZero(ctx context.Context, from, to int64) (bool, error) {
	for at := from &^ (alignment - 1); at < to; at += step {
		if err := ctx.Err(); err != nil {
			return false, errors.Annotatef(err, "reading at %d", at)
		}
		want := min(step, to-at)
		// Of a file more is read than there is, so that the length is aligned.
		n, err := r.ReadAt(r.buf[:(want+alignment-1)&^(alignment-1)], at)
		if int64(n) < want {
			return false, errors.Annotatef(err, "reading %d bytes at %d", want, at)
		}
		if !isZero(r.buf[max(0, from-at):want]) {
			return false, nil
		}
	}
	return true, nil
}

// isZero tells whether all bytes are zero: the first is, and each is what the one
// before it is.
func isZero(b []byte) bool {
	return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}
