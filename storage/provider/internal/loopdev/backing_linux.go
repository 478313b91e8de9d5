package loopdev

import (
	"os"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// OpenBacking opens, for reading, the file that the open loop device dev shows. It opens
// what is at path, never the path that the kernel has for the file, which may be of another
// mount namespace. The error satisfies errors.IsNotFound where dev is no loop device, shows
// a part of its file only, or what is at path is another file.
func OpenBacking(dev *os.File, path string) (*os.File, error) {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err == unix.ENOTTY || err == unix.EINVAL || err == unix.ENXIO {
		return nil, errors.NotFoundf("file behind %s", dev.Name())
	} else if err != nil {
		return nil, errors.Annotatef(err, "reading the status of %s", dev.Name())
	}
	shown := Device{
		File:      FileID{Dev: decodeDev(info.Device), Ino: info.Inode},
		Offset:    info.Offset,
		SizeLimit: info.Sizelimit,
	}
	// O_NONBLOCK keeps the open of a pipe from waiting.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP || err == unix.ENXIO {
		return nil, errors.NotFoundf("file %s", path)
	} else if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, errors.Annotatef(err, "reading %s", path)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || shown.File != IDOf(&st) || !shown.IsWholeFile() {
		f.Close()
		return nil, errors.NotFoundf("file behind %s: what is at %s", dev.Name(), path)
	}
	return f, nil
}
