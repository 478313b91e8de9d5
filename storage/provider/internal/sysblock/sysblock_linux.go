// Package sysblock lists the machine's block devices.
package sysblock

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// Dir has an entry for each block device, partitions included.
const Dir = "/sys/class/block"

// Names returns the names in Dir of the block devices, in no particular order. It omits loop
// devices that are not attached: a machine that had many volumes may have a thousand of them.
// A device that exists during the whole call is in the list.
//
// /proc/partitions would be one file to read instead, but the kernel continues a reading at the
// number of the line: it leaves out a device when one before it is removed between two reads.
func Names() ([]string, error) {
	dir, err := os.Open(Dir)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer dir.Close()
	all, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, errors.Annotatef(err, "reading %s", Dir)
	}
	names := all[:0]
	for _, name := range all {
		if _, ok := LoopNumber(name); ok {
			attached := filepath.Join(name, "loop/backing_file")
			if err := unix.Faccessat(int(dir.Fd()), attached, unix.F_OK, 0); errors.Is(err, unix.ENOENT) {
				continue
			}
		}
		names = append(names, name)
	}
	return names, nil
}

// LoopNumber returns the number of the loop device with a name, such as "loop7".
func LoopNumber(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, "loop")
	number, err := strconv.Atoi(digits)
	return number, ok && err == nil && number >= 0
}
