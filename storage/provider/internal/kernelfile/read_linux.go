// Package kernelfile reads the small files in which the kernel shows single values, in /proc
// and /sys. It makes three system calls for a file. [os.ReadFile] makes nine, because it
// prepares the file for waiting and looks for more content. The package is not for lists such
// as mountinfo, which may be longer than one read returns.
package kernelfile

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxSize is the size of a page, which limits what such a file contains.
const maxSize = 4096

// Read returns the content of a file without the space around it.
func Read(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var content [maxSize]byte
	n, err := unix.Read(fd, content[:])
	for err == unix.EINTR {
		n, err = unix.Read(fd, content[:])
	}
	if err != nil {
		return "", &os.PathError{Op: "read", Path: path, Err: err}
	}
	return strings.TrimSpace(string(content[:n])), nil
}
