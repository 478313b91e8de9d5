package loop

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/internal/nocow"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/freeze"
	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/reflink"
)

// A file and its lasting copy share blocks only if both are thin: the first write to a shared
// block needs a new one, and that can fail on a full filesystem. A copy that is deleted as soon as
// it has been read also shares the blocks of a thick file, for so long.

// origin is the file that a copy is made from, and what is known about its users.
type origin struct {
	*os.File
	rec record
	// device shows the file to users who may write to it. It is nil if nobody can.
	device *loopdev.Device
}

// openOrigin opens the file of a complete volume or snapshot.
func (c *call) openOrigin(volumeID string) (*origin, error) {
	id, rec, err := c.loadExisting(volumeID)
	if err == nil {
		err = c.settle(id, &rec)
	}
	if err != nil {
		return nil, errors.Trace(err)
	}
	f, _, err := c.openBacking(id, rec, unix.O_RDONLY)
	if err != nil {
		return nil, errors.Trace(err)
	}
	device, err := c.device(id, rec)
	if err != nil {
		f.Close()
		return nil, errors.Trace(err)
	}
	if device != nil && device.ReadOnly {
		device = nil
	}
	return &origin{File: f, rec: rec, device: device}, nil
}

// copyFrom returns a function for makeNew that fills a file with the contents of the origin. limit
// is the longest time for which a mounted filesystem may be frozen.
func (c *call) copyFrom(o *origin, how allocation, limit time.Duration) func(*os.File) error {
	return func(to *os.File) error {
		byReference, err := c.canReflink(o.File)
		if err != nil {
			return errors.Trace(err)
		}
		if byReference && how == thin && o.rec.Allocation == thin {
			err := c.quietly(o, limit, func(context.Context) error { return reflink.Clone(to, o.File) })
			if !errors.Is(err, errors.NotSupported) { // two files of btrfs may differ in NOCOW
				return errors.Trace(err)
			}
		}
		switch {
		case o.device == nil:
			return errors.Trace(copyData(c, to, o.File, o.rec.Size))
		case byReference:
			return errors.Trace(c.copyThroughReflink(to, o, limit))
		}
		return errors.Trace(c.copyFrozen(to, o, limit))
	}
}

// canReflink reports whether a file can be copied by reference. It tries that, so the file is
// written to the disk.
func (c *call) canReflink(f *os.File) (bool, error) {
	still, err := c.unnamedFile(f)
	if err == nil {
		defer still.Close()
		err = reflink.Clone(still, f)
	}
	if errors.Is(err, errors.NotSupported) {
		return false, nil
	}
	return err == nil, errors.Trace(err)
}

// copyThroughReflink copies a file that is in use by way of a copy by reference without a name,
// which goes away with this process.
func (c *call) copyThroughReflink(to *os.File, o *origin, limit time.Duration) error {
	still, err := c.unnamedFile(o.File)
	if err != nil {
		return errors.Trace(err)
	}
	defer still.Close()
	// While the blocks are shared, each write to the volume needs a new one.
	if o.rec.Allocation == thick {
		if err := c.space.take(c.Call, o.rec.Size); err != nil {
			return errors.Annotate(err, "writing to it while it is copied")
		}
		defer c.space.done(o.rec.Size, false)
	}
	if err := c.quietly(o, limit, func(context.Context) error { return reflink.Clone(still, o.File) }); err != nil {
		return errors.Trace(err)
	}
	crash.At("backing file copied by reference")
	return errors.Trace(copyData(c, to, still, o.rec.Size))
}

// unnamedFile makes a file without a name that can share blocks with another one.
func (c *call) unnamedFile(like *os.File) (*os.File, error) {
	f, err := reflink.Unnamed(c.Files.File(), like.Name()+" (copied by reference)")
	if err != nil {
		return nil, errors.Trace(err)
	}
	inPlace, err := nocow.IsSet(like)
	if err == nil && inPlace {
		err = nocow.Set(f)
	}
	if err != nil {
		f.Close()
		return nil, errors.Trace(err)
	}
	return f, nil
}

// copyFrozen copies a file that is in use and whose filesystem cannot copy by reference. It copies
// the file once while it is used, and what has changed since then while the mounted filesystem is
// frozen. The first copy shows whether the second one can be fast enough.
func (c *call) copyFrozen(to *os.File, o *origin, limit time.Duration) error {
	const remedy = "detach it, or use a data directory on xfs or btrfs"
	tooSlow := func() error {
		return storage.Permanent(errors.Errorf("it is in use, and copying it would take longer than the %v for which it may be frozen (%s): %s",
			limit, FreezeLimitAttribute, remedy))
	}
	mounted, err := o.mounted()
	if err != nil {
		return errors.Trace(err)
	}
	if mounted == nil {
		return storage.Permanent(errors.Errorf("it is attached as %s and not mounted, so writing to it cannot be held up while it is copied: %s", o.device.Name(), remedy))
	}
	mounted.Close()
	ctx, cancel := context.WithTimeout(c, limit)
	defer cancel()
	err = copyData(ctx, to, o.File, o.rec.Size)
	if err == nil {
		err = c.quietly(o, limit, func(ctx context.Context) error { return copyChanges(ctx, to, o.File, o.rec.Size) })
	}
	if c.Err() == nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, freeze.ErrNotHeld)) {
		return tooSlow()
	}
	return errors.Trace(err)
}

// quietly calls copy while nothing changes the file of the origin. If a filesystem is mounted from
// the volume, it is frozen for that time, at most for the limit. copy must return when its context
// ends. If the volume is attached and not mounted, quietly only writes out what programs have
// written: users of the device still write to it.
func (c *call) quietly(o *origin, limit time.Duration, copy func(context.Context) error) (err error) {
	if o.device == nil {
		return errors.Trace(copy(c))
	}
	mounted, err := o.mounted()
	if err != nil {
		return errors.Trace(err)
	}
	if mounted == nil {
		if err := o.syncDevice(); err != nil {
			return errors.Trace(err)
		}
		return errors.Trace(copy(c))
	}
	defer mounted.Close()
	// What is written out before need not be written out while the filesystem is frozen.
	if err := unix.Syncfs(int(mounted.Fd())); err != nil {
		return errors.Annotatef(err, "syncing %s", mounted.Name())
	}
	if err := fsync.File(o.File); err != nil {
		return errors.Trace(err)
	}
	ctx, cancel := context.WithTimeout(c, limit)
	defer cancel()
	frozen, err := freeze.Hold(ctx, mounted, limit)
	if err != nil {
		return errors.Trace(err)
	}
	crash.At("filesystem frozen")
	err = copy(ctx)
	if terr := frozen.Thaw(); err == nil {
		err = errors.Annotate(terr, mounted.Name())
	}
	return errors.Trace(err)
}

// mounted opens the root directory of a filesystem that is mounted from the device of the origin,
// in this mount namespace. It returns nil if no filesystem is mounted.
func (o *origin) mounted() (*os.File, error) {
	device, err := blockdev.Open(o.device.Path())
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer device.Close()
	table, err := mount.ReadTable()
	if err != nil {
		return nil, errors.Trace(err)
	}
	var failure error
	for _, m := range table.OfDevice(device.Major, device.Minor) {
		target, err := mount.OpenMount(m)
		if err == nil {
			dir, derr := target.OpenDir()
			target.Close()
			if derr == nil {
				return dir, nil
			}
			err = derr
		}
		failure = err // another mount of the filesystem may be accessible
	}
	return nil, errors.Trace(failure)
}

// syncDevice writes to the file what programs have written to its device.
func (o *origin) syncDevice() error {
	device, err := blockdev.Open(o.device.Path())
	if err != nil {
		return errors.Trace(err)
	}
	defer device.Close()
	return errors.Trace(device.Sync())
}

// copyStep is how much is copied at once, in bytes.
const copyStep = 1 << 20

// copyData copies the first size bytes of a file to a blank file of at least this length.
func copyData(ctx context.Context, to, from *os.File, size uint64) error {
	buf := make([]byte, copyStep)
	for at := uint64(0); ; {
		data, err := nextData(from, at, size)
		if err != nil || data == size {
			return errors.Trace(err)
		}
		part := buf[:min(copyStep, size-data)]
		// Read and write: copy_file_range could make the files share blocks.
		if err := readPart(ctx, from, part, data); err != nil {
			return errors.Trace(err)
		}
		if _, err := to.WriteAt(part, int64(data)); err != nil {
			return errors.Trace(err)
		}
		at = data + uint64(len(part))
	}
}

// copyChanges makes the first size bytes of an older copy equal to the file. It writes only what
// differs.
func copyChanges(ctx context.Context, to, from *os.File, size uint64) error {
	buf, old := make([]byte, copyStep), make([]byte, copyStep)
	for at := uint64(0); ; {
		data, err := nextData(from, at, size)
		if err != nil {
			return errors.Trace(err)
		}
		copied, err := nextData(to, at, size)
		if err != nil {
			return errors.Trace(err)
		}
		if at = min(data, copied); at == size {
			return nil
		}
		n := min(copyStep, size-at)
		if err := readPart(ctx, from, buf[:n], at); err != nil {
			return errors.Trace(err)
		}
		if err := readPart(ctx, to, old[:n], at); err != nil {
			return errors.Trace(err)
		}
		if !bytes.Equal(buf[:n], old[:n]) {
			if _, err := to.WriteAt(buf[:n], int64(at)); err != nil {
				return errors.Trace(err)
			}
		}
		at += n
	}
}

// nextData returns the offset of the next byte, from at on, that is not in a hole. If only a hole
// is left, it returns size.
func nextData(f *os.File, at, size uint64) (uint64, error) {
	data, err := unix.Seek(int(f.Fd()), int64(at), unix.SEEK_DATA)
	if err == unix.ENXIO {
		return size, nil
	}
	return min(uint64(data), size), errors.Annotatef(err, "reading %s", f.Name())
}

func readPart(ctx context.Context, f *os.File, part []byte, at uint64) error {
	if err := ctx.Err(); err != nil {
		return errors.Trace(err)
	}
	n, err := f.ReadAt(part, int64(at))
	if err == io.EOF && n < len(part) {
		return errors.NewNotValid(nil, fmt.Sprintf("%s has become shorter while it was copied", f.Name()))
	} else if err != io.EOF {
		return errors.Trace(err)
	}
	return nil
}
