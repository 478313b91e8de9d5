package markfile

import (
	"os"

	"golang.org/x/sys/unix"
)

// noFollow refuses to open what a symbolic link leads to.
const noFollow = unix.O_NOFOLLOW

// syncData makes the file's content last.
func syncData(file *os.File) error {
	for {
		if err := unix.Fdatasync(int(file.Fd())); err != unix.EINTR {
			return err
		}
	}
}
