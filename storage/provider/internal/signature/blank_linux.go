package signature

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/internal/superblock"
)

// DefaultLimit is the default maximum time for reading a device, except for its ends, to prove
// it blank.
const DefaultLimit = time.Minute

// edge is the number of bytes at each end of a device that are always read to prove it blank.
// Filesystems, volume managers, swap areas and partition tables that are in use have their
// identifying data within them.
const edge = 4 << 20

// step is the number of bytes that are read at a time. They stay in a CPU's cache until they
// have been examined.
const step = 512 << 10

// alignment is the largest alignment that direct reads need for offsets and lengths, in bytes.
const alignment = 4 << 10

// NotBlankError is the error of ProveBlank for a device that was read without errors and
// contains something.
type NotBlankError struct {
	Found Signature
	// At is the offset of the first byte found that is not zero, if nothing was recognized.
	At int64
}

// Error implements error.
func (e *NotBlankError) Error() string {
	if e.Found.Type == "" {
		return fmt.Sprintf("not blank: it holds %s (byte %d is not zero)", e.Found, e.At)
	}
	return "not blank: it holds " + e.Found.String()
}

// UnreadError is the error of ProveBlank for a device that could be read only in part within
// the time limit. The part that was read is zero, and nothing was recognized.
type UnreadError struct {
	Read, Size int64 // in bytes
	Limit      time.Duration
}

// Error implements error.
func (e *UnreadError) Error() string {
	return fmt.Sprintf("only %d of its %d MiB could be read in %s: they are zero, the rest is unknown", e.Read>>20, e.Size>>20, e.Limit)
}

// errLimit is the cause that ends the reading of a device at its time limit.
const errLimit = errors.ConstError("reading takes too long")

// ProveBlank returns nil if the block device dev, of size bytes, is blank: blkid recognizes
// nothing on it, and all of it reads as zero. It returns a *NotBlankError for a device that
// contains something, an *UnreadError for one that cannot be read in time, and any other error
// if it could not be determined whether the device is blank. Callers must treat a device as
// not blank after any error.
func ProveBlank(ctx context.Context, dev *os.File, size int64) error {
	return new(Prober).ProveBlank(ctx, dev, size)
}

// ProveBlank is the package's [ProveBlank], with the settings of the Prober.
func (p *Prober) ProveBlank(ctx context.Context, dev *os.File, size int64) error {
	r, err := newReader(dev)
	if err != nil {
		return errors.Trace(err)
	}
	defer r.close()
	// Probing and reading the ends take a millisecond each, so they run concurrently.
	var found Signature
	var probing sync.WaitGroup
	var probeErr error
	probing.Go(func() { found, probeErr = p.probe(ctx, dev) })
	err = r.checkEdges(ctx, size)
	probing.Wait()
	if err == nil && probeErr == nil && found.Type == "" {
		err = p.inTime(ctx, size, r, func(ctx context.Context) error {
			return r.checkZero(ctx, edge, size-edge)
		})
	}
	if !describesContent(err) {
		return errors.Trace(err)
	}
	if probeErr != nil {
		return errors.Trace(probeErr)
	}
	return recognize(dev, size, found, err)
}

// inTime runs read within the time limit. It reads one device at a time, so that each gets the
// machine's full speed.
func (p *Prober) inTime(ctx context.Context, size int64, r *reader, read func(context.Context) error) error {
	limit := cmp.Or(p.Limit, DefaultLimit)
	end, err := cmp.Or(p.Turn, &p.own).take(ctx, limit)
	if err != nil {
		return errors.Trace(err)
	}
	defer end()
	limited, cancel := context.WithTimeoutCause(ctx, limit, errLimit)
	defer cancel()
	err = read(limited)
	if errors.Is(err, errLimit) {
		return &UnreadError{Read: r.read, Size: size, Limit: limit}
	}
	return errors.Trace(err)
}

// describesContent reports whether err describes the content of a device. A nil err does:
// everything that was read is zero. An error of reading, or of a context that has ended, does
// not.
func describesContent(err error) bool {
	var notBlank *NotBlankError
	var unread *UnreadError
	return err == nil || errors.As(err, &notBlank) || errors.As(err, &unread)
}

// recognize returns the result for a device on which blkid has recognized found, and whose
// content err describes.
func recognize(dev *os.File, size int64, found Signature, err error) error {
	if found.Type == "" && err != nil {
		backup, berr := superblock.FindBackup(dev, size)
		if berr != nil {
			return errors.Trace(berr)
		}
		found = Signature(backup)
	}
	if found.Type != "" {
		return &NotBlankError{Found: found}
	}
	return errors.Trace(err)
}

// holeReporters are the filesystems that report which parts of a file were never written, and
// report it correctly once the file is synced: SEEK_DATA finds all written parts. Other
// filesystems are not known to do so, or are known to get it wrong.
var holeReporters = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC}

// ReportsHoles reports whether [Prober.ProveFileBlank] can rely on the filesystem of a file.
func ReportsHoles(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && slices.Contains(holeReporters, int64(st.Type))
}

// ProveFileBlank is [Prober.ProveBlank] for a loop device, through its file, for which
// [ReportsHoles] must be true: it reads everything except the parts that were never written.
// All data written to the device, which has size bytes, must have reached the file.
func (p *Prober) ProveFileBlank(ctx context.Context, dev, file *os.File, size int64) error {
	if err := fsync.File(file); err != nil {
		return errors.Annotatef(err, "syncing %s", file.Name())
	}
	st, err := file.Stat()
	if err != nil {
		return errors.Trace(err)
	}
	if st.Size() < size {
		// The part of the device beyond the end of the file cannot be read.
		return errors.Annotatef(unix.EIO, "%s has %d bytes, but its device has %d", file.Name(), st.Size(), size)
	}
	if from, _, err := nextData(file, 0, size); err != nil || from == size {
		return errors.Trace(err)
	}
	r, err := newReader(file)
	if err != nil {
		return errors.Trace(err)
	}
	defer r.close()
	err = p.inTime(ctx, size, r, func(ctx context.Context) error { return r.checkData(ctx, file, size) })
	if err == nil || !describesContent(err) {
		return errors.Trace(err)
	}
	found, perr := p.probe(ctx, dev)
	if perr != nil {
		return errors.Trace(perr)
	}
	return recognize(dev, size, found, err)
}

// nextData returns the next data range at or after offset at, in a file of size bytes. from is
// size if there is no more data.
func nextData(f *os.File, at, size int64) (from, to int64, err error) {
	from, err = unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	if err == unix.ENXIO || err == nil && from >= size {
		return size, size, nil
	} else if err != nil {
		return 0, 0, errors.Annotatef(err, "looking for data in %s", f.Name())
	}
	to, err = unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
	return from, min(to, size), errors.Annotatef(err, "looking for the end of data in %s", f.Name())
}

// reader reads a device or a file and compares it with zero.
type reader struct {
	io.ReaderAt
	buf  []byte
	read int64 // in bytes

	f *os.File
}

// newReader reads without the page cache if the filesystem of f supports that: this shows what
// is on the disk, and costs a third less.
func newReader(f *os.File) (*reader, error) {
	path := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	direct, err := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EINVAL) { // tmpfs before Linux 6.6
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
	// Direct reads need aligned memory, such as whole pages.
	buf, err := unix.Mmap(-1, 0, step, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, errors.Annotate(err, "allocating a read buffer")
	}
	return &reader{ReaderAt: r, buf: buf}, nil
}

func (r *reader) close() {
	_ = unix.Munmap(r.buf)
	if r.f != nil {
		r.f.Close()
	}
}

// checkEdges is checkZero for the first and the last 4 MiB of a device of size bytes.
func (r *reader) checkEdges(ctx context.Context, size int64) error {
	if size <= 0 {
		return errors.Errorf("device size %d is not positive", size)
	}
	firstEnd := min(edge, size)
	if err := r.checkZero(ctx, 0, firstEnd); err != nil {
		return errors.Trace(err)
	}
	return r.checkZero(ctx, max(firstEnd, size-edge), size)
}

// checkData is checkZero for the data of a file of size bytes. Data includes parts that were
// only read and are in the page cache.
func (r *reader) checkData(ctx context.Context, f *os.File, size int64) error {
	for at := int64(0); at < size; {
		from, to, err := nextData(f, at, size)
		if err == nil {
			err = r.checkZero(ctx, from, to)
		}
		if err != nil {
			return errors.Trace(err)
		}
		at = to
	}
	return nil
}

// checkZero returns a *NotBlankError unless all bytes in [from, to) are zero. It also fails
// for a short read and when the context ends.
func (r *reader) checkZero(ctx context.Context, from, to int64) error {
	for at := from &^ (alignment - 1); at < to; at += step {
		if ctx.Err() != nil {
			return errors.Annotatef(context.Cause(ctx), "reading at %d", at)
		}
		want := min(step, to-at)
		// The length is rounded up to the alignment, so this may read beyond the end of a
		// file.
		n, err := r.ReadAt(r.buf[:(want+alignment-1)&^(alignment-1)], at)
		if int64(n) < want {
			return errors.Annotatef(err, "reading %d bytes at %d", want, at)
		}
		r.read += want
		if part := r.buf[max(0, from-at):want]; !isZero(part) {
			first := slices.IndexFunc(part, func(b byte) bool { return b != 0 })
			return &NotBlankError{At: max(at, from) + int64(first)}
		}
	}
	return nil
}

// isZero reports whether all bytes are zero: the first is, and each equals the one before it.
func isZero(b []byte) bool {
	return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}
