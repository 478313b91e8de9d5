package fsync

import (
	"os"

	"golang.org/x/sys/unix"
)

func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}
