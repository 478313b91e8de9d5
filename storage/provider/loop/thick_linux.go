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

// A volume is thick if no write to it can fail because the filesystem that holds its file is
// full: the file has all its blocks, shares none with another file, and is written in place.

// notThick begins the remark on a volume that should be thick and is not guaranteed to be.
const notThick = "thick not guaranteed: "

// needed returns how many bytes of space it takes to allocate a file in full.
func (c *call) needed(f *os.File, size uint64) (uint64, error) {
	missing, err := extents.Find(f, size)
	if errors.Is(err, errors.NotSupported) {
		st, err := c.Status(f)
		return size - min(size, st.Blocks), errors.Trace(err)
	}
	return missing.Len(), errors.Trace(err)
}

// allocate gives a file all its blocks. It also replaces shared blocks with blocks of the
// file's own, if the filesystem can. It keeps the blocks that the file has.
func (c *call) allocate(f *os.File, size uint64) error {
	missing, err := extents.Find(f, size)
	if errors.Is(err, errors.NotSupported) {
		missing.Holes = []extents.Range{{End: size}} // the whole file may be a hole
	} else if err != nil {
		return errors.Trace(err)
	}
	for _, r := range missing.Holes {
		if err := extents.Allocate(c, f, r); errors.Is(err, unix.EOPNOTSUPP) {
			return errors.NewNotSupported(err, "allocating files in full on the filesystem of "+c.Files.Path()+" (thick volumes need one that can, such as ext4, XFS or btrfs)")
		} else if err != nil {
			return c.explainAllocation(f, size, err)
		}
	}
	for _, r := range missing.Shared {
		if err := extents.Unshare(c, f, r); errors.Is(err, unix.EOPNOTSUPP) {
			return nil // whyNotThick reports the shared blocks
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

// enlargeFile makes a file at least size bytes long, and allocates it if it is thick.
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

// syncFile syncs a file. It first checks that a thick file has the given size and all its
// blocks.
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
		return storage.Permanent(errors.Errorf("%s has %d bytes, %d of them allocated, instead of %d: its filesystem does not allocate files in full: use ext4, XFS or btrfs",
			f.Name(), st.Size, st.Blocks, size))
	}
	return errors.Trace(fsync.File(f))
}

// whyNotThick says why writes to an allocated file may fail because the filesystem is full. It
// returns "" if they cannot.
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
