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

// DefaultLimit is how long a device is read at most to prove it blank, beside its ends.
const DefaultLimit = time.Minute

// edge is how much of each end of a device is read to prove it blank, in
// bytes. Filesystems, volume managers, swap areas and partition tables
// that are in use keep what identifies them within it.
const edge = 4 << 20

// step is how much is read at a time, in bytes: so much stays in the cache
// of a CPU until it has been looked at.
const step = 512 << 10

// alignment is what direct reading asks of offsets and lengths, in bytes, at most.
const alignment = 4 << 10

// NotBlankError is what ProveBlank returns for a device that was read well and
// has something on it.
type NotBlankError struct {
	Found Signature
	// At is where the first byte is that was found and is not zero, in bytes, if
	// nothing was recognized.
	At int64
}

// Error implements error.
func (e *NotBlankError) Error() string {
	if e.Found.Type == "" {
		return fmt.Sprintf("not blank: it holds %s (byte %d is not zero)", e.Found, e.At)
	}
	return "not blank: it holds " + e.Found.String()
}

// UnreadError is what ProveBlank returns for a device that could be read only in part within
// the time limit: that part is zero, and nothing was recognized.
type UnreadError struct {
	Read, Size int64 // bytes
	Limit      time.Duration
}

// Error implements error.
func (e *UnreadError) Error() string {
	return fmt.Sprintf("in %s only %d of its %d MiB could be read, which are zero", e.Limit, e.Read>>20, e.Size>>20)
}

// errLimit ends the reading of a device.
const errLimit = errors.ConstError("reading takes too long")

// ProveBlank returns nil when nothing is on the block device dev, size bytes
// long: blkid recognizes nothing, and all of it reads as zero.
// It returns a *NotBlankError for a device that holds something, an *UnreadError for one
// that cannot be read in time, and any other
// error when that could not be found out; such a device is not blank either.
func ProveBlank(ctx context.Context, dev *os.File, size int64) error {
	return new(Prober).ProveBlank(ctx, dev, size)
}

// ProveBlank is [ProveBlank].
func (p *Prober) ProveBlank(ctx context.Context, dev *os.File, size int64) error {
	r, err := newReader(dev)
	if err != nil {
		return errors.Trace(err)
	}
	defer r.close()
	// Each takes a millisecond.
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
	if !concernsContent(err) {
		return errors.Trace(err)
	}
	if probeErr != nil {
		return errors.Trace(probeErr)
	}
	return recognize(dev, size, found, err)
}

// inTime reads within the time limit: one device at a time, so that each has what the
// machine can read in that time.
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

// concernsContent tells whether err describes the content of a device. A nil err does: all
// that was read is zero. An error of reading, or of a context that has ended, does not.
func concernsContent(err error) bool {
	var notBlank *NotBlankError
	var unread *UnreadError
	return err == nil || errors.As(err, &notBlank) || errors.As(err, &unread)
}

// recognize returns what is to be said of a device on which blkid has found this, and which
// reads as err says.
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

// tellsHoles are the filesystems that tell which parts of a file were never written, and
// show the truth once the file is synced: SEEK_DATA finds all that was. Of others that is
// not known, or is known to be wrong.
var tellsHoles = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC}

// TellsHoles reports whether [Prober.ProveFileBlank] can rely on the filesystem of a file.
func TellsHoles(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && slices.Contains(tellsHoles, int64(st.Type))
}

// ProveFileBlank is [ProveBlank] of a loop device by its file, which [TellsHoles]: what was
// never written is not read, and all else is. What was written to the device, size bytes
// long, is to have reached the file.
func (p *Prober) ProveFileBlank(ctx context.Context, dev, file *os.File, size int64) error {
	if err := fsync.File(file); err != nil {
		return errors.Annotatef(err, "syncing %s", file.Name())
	}
	st, err := file.Stat()
	if err != nil {
		return errors.Trace(err)
	}
	if st.Size() < size {
		// What of the device is behind its end cannot be read.
		return errors.Annotatef(unix.EIO, "%s has %d bytes, and its device %d", file.Name(), st.Size(), size)
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
	if err == nil || !concernsContent(err) {
		return errors.Trace(err)
	}
	found, perr := p.probe(ctx, dev)
	if perr != nil {
		return errors.Trace(perr)
	}
	return recognize(dev, size, found, err)
}

// nextData returns where the next data of a file begin and end that has size bytes; from is
// size where there are none.
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

// reader reads a device or a file to compare it with zero.
type reader struct {
	io.ReaderAt
	buf  []byte
	read int64 // bytes

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

// checkEdges is checkZero of the first and last 4 MiB of size bytes.
func (r *reader) checkEdges(ctx context.Context, size int64) error {
	if size <= 0 {
		return errors.Errorf("size %d leaves nothing to look at", size)
	}
	firstEnd := min(edge, size)
	if err := r.checkZero(ctx, 0, firstEnd); err != nil {
		return errors.Trace(err)
	}
	return r.checkZero(ctx, max(firstEnd, size-edge), size)
}

// checkData is checkZero of the data of a file that has size bytes. Data may be what was only
// read, and is in the page cache.
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

// checkZero returns a *NotBlankError unless what is in between reads as zero. A short read is
// an error, and so is the end of the context.
func (r *reader) checkZero(ctx context.Context, from, to int64) error {
	for at := from &^ (alignment - 1); at < to; at += step {
		if ctx.Err() != nil {
			return errors.Annotatef(context.Cause(ctx), "reading at %d", at)
		}
		want := min(step, to-at)
		// Of a file more is read than there is, so that the length is aligned.
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

// isZero tells whether all bytes are zero: the first is, and each is what the one
// before it is.
func isZero(b []byte) bool {
	return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}
