package loop

import (
	"fmt"
	"os"
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/internal/nocow"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/extents"
)

// A volume is thick if no write to it can fail for want of space on the filesystem that
// has its file: the file has all its blocks, shares none with another file, and is written
// in place.

// notThick begins the remark on a volume that was to be thick, and is not for certain.
const notThick = "thick not guaranteed: "

// needed returns how many bytes of space it takes to allocate a file.
func (c *call) needed(f *os.File, size uint64) (uint64, error) {
	missing, err := extents.Find(f, size)
	if errors.Is(err, errors.NotSupported) {
		st, err := c.Status(f)
		return size - min(size, st.Blocks), errors.Trace(err)
	}
	return missing.Len(), errors.Trace(err)
}

// allocate gives a file all its blocks, and blocks of its own for those that it shares,
// where its filesystem can. What it has already it keeps.
func (c *call) allocate(f *os.File, size uint64) error {
	missing, err := extents.Find(f, size)
	if errors.Is(err, errors.NotSupported) {
		missing.Holes = []extents.Range{{End: size}} // it may be one
	} else if err != nil {
		return errors.Trace(err)
	}
	for _, r := range missing.Holes {
		if err := extents.Allocate(c, f, r); errors.Is(err, unix.EOPNOTSUPP) {
			return errors.NewNotSupported(err, "allocating files in full on the filesystem of "+c.Files.Path()+", which loop volumes need (ext4, XFS and btrfs can),")
		} else if err != nil {
			return c.explainAllocation(f, size, err)
		}
	}
	for _, r := range missing.Shared {
		if err := extents.Unshare(c, f, r); errors.Is(err, unix.EOPNOTSUPP) {
			return nil // see whyNotThick
		} else if err != nil {
			return c.explainAllocation(f, size, err)
		}
	}
	return nil
}

func (c *call) explainAllocation(f *os.File, size uint64, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		available, aerr := c.Files.Available()
		if aerr != nil {
			return errors.Annotatef(err, "allocating %d MiB", size>>20)
		}
		return errors.Annotatef(c.NoSpace(size, available), "allocating %s (%v)", f.Name(), err)
	}
	return errors.Annotatef(err, "allocating %s", f.Name())
}

// enlargeFile makes a file at least so many bytes long, and allocates it if it is thick.
func (c *call) enlargeFile(f *os.File, how allocation, size uint64) error {
	if how == thick {
		return c.allocate(f, size)
	}
	st, err := c.Status(f)
	if err == nil && st.Size < size {
		err = f.Truncate(int64(size))
	}
	return errors.Trace(err)
}

// syncFile makes durable a file of a size, once it is sure that it has all its blocks if
// it is thick.
func (c *call) syncFile(f *os.File, how allocation, size uint64) error {
	if how == thin {
		return errors.Trace(fsync.File(f))
	}
	st, err := c.Status(f)
	if err != nil {
		return errors.Trace(err)
	}
	missing, err := extents.Find(f, size)
	if err != nil && !errors.Is(err, errors.NotSupported) {
		return errors.Trace(err)
	}
	if st.Size != size || st.Blocks < size || len(missing.Holes) > 0 {
		return storage.Permanent(errors.Errorf("%s has %d bytes, %d of them allocated, not %d bytes: its filesystem does not allocate in full, as ext4, XFS and btrfs do",
			f.Name(), st.Size, st.Blocks, size))
	}
	return errors.Trace(fsync.File(f))
}

// whyNotThick says why writes to a file that has been allocated may fail for want of
// space; nothing where they cannot.
func (c *call) whyNotThick(f *os.File, size uint64) (string, error) {
	missing, err := extents.Find(f, size)
	if err != nil && !errors.Is(err, errors.NotSupported) {
		return "", errors.Trace(err)
	}
	inPlace, err := nocow.IsSet(f)
	if err != nil {
		return "", errors.Trace(err)
	}
	var why []string
	if !inPlace {
		why = append(why, "its file is on btrfs without NOCOW (copy on write)")
	}
	if n := missing.SharedLen(); n > 0 {
		why = append(why, fmt.Sprintf("it shares %d MiB of its file with a snapshot or another file", (n+1<<20-1)>>20))
	}
	return strings.Join(why, ", and "), nil
}
