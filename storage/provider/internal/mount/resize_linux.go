package mount

import (
	"strconv"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// ResizeTmpfs sets the size in bytes of the tmpfs that is mounted at a target, while it is in
// use. Its content stays, and so does its read-only state.
func ResizeTmpfs(target *Target, size uint64) error {
	fail := func(op, detail string, err error) error {
		return &Error{Op: op, Source: "tmpfs", Target: target.Path, Detail: detail, Err: err}
	}
	fd, err := unix.Fspick(int(target.f.Fd()), "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	if err != nil {
		return fail("fspick", "", unsupported("fspick", err))
	}
	defer unix.Close(fd)
	if err := unix.FsconfigSetString(fd, "size", strconv.FormatUint(size, 10)); err != nil {
		return fail("fsconfig size", messages(fd), err)
	}
	if err := unix.FsconfigReconfigure(fd); err != nil {
		return fail("reconfigure", messages(fd), err)
	}
	now, err := target.FilesystemSize()
	if err != nil {
		return errors.Trace(err)
	}
	if now != size {
		return fail("reconfigure", "", errors.Errorf("it has %d bytes, not %d", now, size))
	}
	return nil
}
