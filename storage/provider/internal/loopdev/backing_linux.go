package loopdev

import (
	"os"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// OpenBacking opens, for reading, the file at path if it is the whole backing file of the open
// loop device dev. It does not use the kernel's path of the backing file, which may belong to
// another mount namespace. The error satisfies errors.IsNotFound if dev is not an attached
// loop device, if dev shows only a part of its file, or if path does not name that file.
func OpenBacking(dev *os.File, path string) (*os.File, error) {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err == unix.ENOTTY || err == unix.EINVAL || err == unix.ENXIO {
		return nil, errors.NotFoundf("backing file of %s", dev.Name())
	} else if err != nil {
		return nil, errors.Annotatef(err, "reading the status of %s", dev.Name())
	}
	shown := Device{
		File:      FileID{Dev: decodeDev(info.Device), Ino: info.Inode},
		Offset:    info.Offset,
		SizeLimit: info.Sizelimit,
	}
	// O_NONBLOCK keeps the open of a pipe from blocking.
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
		return nil, errors.NewNotFound(nil, path+" is not the whole backing file of "+dev.Name())
	}
	return f, nil
}
