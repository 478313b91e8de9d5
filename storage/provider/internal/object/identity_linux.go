package object

import (
	"fmt"
	"os"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// Identity identifies the file or directory of an object. The device number is valid as long
// as the filesystem stays mounted, and so within one boot at most.
type Identity struct {
	Dev    uint64 `json:"dev,omitempty"`
	Ino    uint64 `json:"ino,omitempty"`
	BootID string `json:"boot-id,omitempty"`

	// A new file may get the inode number of a file that was just deleted. Born, the time at
	// which the file was made, in nanoseconds since 1970, distinguishes the two. On
	// filesystems that do not record that, Generation does: a number that changes each time
	// the inode is used for a new file. Zero means unknown, as in old records.
	Born       int64  `json:"born,omitempty"`
	Generation uint32 `json:"generation,omitempty"`
}

// String returns a text for errors.
func (i Identity) String() string {
	text := fmt.Sprintf("inode %d on device %d:%d", i.Ino, unix.Major(i.Dev), unix.Minor(i.Dev))
	if i.Born != 0 {
		text += ", made at " + time.Unix(0, i.Born).UTC().Format(time.RFC3339Nano)
	}
	if i.Generation != 0 {
		text += fmt.Sprintf(", generation %d", i.Generation)
	}
	return text
}

// Status is the status of a file.
type Status struct {
	Identity
	Type   uint32 // as in unix.S_IFREG
	Size   uint64 // in bytes
	Blocks uint64 // bytes that the filesystem has allocated
	Links  uint32
}

// getVersion is FS_IOC_GETVERSION, which x/sys lacks: _IOR('v', 1, long), derived from
// FS_IOC_GETFLAGS, which is _IOR('f', 1, long).
const getVersion = unix.FS_IOC_GETFLAGS&^0xff00 | 'v'<<8

// Is reports whether a file that was found under an object's name is the object. The object is
// on the same filesystem as its record. Is ignores object.Dev, because the device number of
// that filesystem may have changed.
func (c *Call) Is(object, found Identity) bool {
	return object.Ino == found.Ino && found.Dev == c.Dev &&
		sameIfKnown(object.Born, found.Born) && sameIfKnown(object.Generation, found.Generation)
}

func sameIfKnown[T comparable](a, b T) bool {
	var unknown T
	return a == b || a == unknown || b == unknown
}

// StatusOf reads the status of an entry of the directory of objects, without following a
// symbolic link. If the entry does not exist, the error is unix.ENOENT.
func (c *Call) StatusOf(name string) (Status, error) {
	st, err := c.Files.Statx(name)
	if err != nil {
		return Status{}, errors.Trace(err)
	}
	found := c.newStatus(st)
	if found.Born == 0 && (found.Type == unix.S_IFREG || found.Type == unix.S_IFDIR) {
		f, err := c.Files.OpenFile(name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return Status{}, errors.Trace(err)
		}
		defer f.Close()
		return c.Status(f)
	}
	return found, nil
}

// Status reads the status of an open file.
func (c *Call) Status(f *os.File) (Status, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return Status{}, &os.PathError{Op: "statx", Path: f.Name(), Err: err}
	}
	found := c.newStatus(st)
	if found.Born == 0 {
		// Filesystems without this number report that with various errors.
		found.Generation, _ = unix.IoctlGetUint32(int(f.Fd()), getVersion)
	}
	return found, nil
}

func (c *Call) newStatus(st unix.Statx_t) Status {
	found := Status{
		Identity: Identity{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino, BootID: c.BootID},
		Type:     uint32(st.Mode) & unix.S_IFMT,
		Size:     st.Size,
		Blocks:   st.Blocks * 512,
		Links:    st.Nlink,
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		found.Born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return found
}
