package object

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// markSize is the size of a mark, in bytes of the hash.
const markSize = 8

// newMark returns the mark of a directory of records. It is valid as long as the directory is
// the same, within one boot.
func newMark(bootID, dir string) (string, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return "", errors.Annotatef(err, "reading %s", dir)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d:%d %d %d.%09d", bootID, st.Dev_major, st.Dev_minor, st.Ino, st.Btime.Sec, st.Btime.Nsec))
	return hex.EncodeToString(sum[:markSize]), nil
}

// Label returns an object's name beside the mark: the UUID of its owner, or else its ID.
func (o Ownership) Label(id string) string {
	if owner := o.Owner(); owner.EntityUUID != "" {
		return owner.EntityUUID
	}
	return id
}
