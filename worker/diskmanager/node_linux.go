package diskmanager

import (
	"fmt"
	"os"
	"path"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// errOtherDevice means that a node in /dev is not the node of the device with its name.
const errOtherDevice = errors.ConstError("the node is another device's")

// openNode opens the node of a block device for reading, and checks that it belongs to the
// device with the given number. Opening for reading has no side effect: udev processes a
// device again only when a writer closes it.
func openNode(name, number string) (node, error) {
	nodePath := path.Join("/dev", name)
	// O_NONBLOCK: do not wait for a drive without a medium.
	f, err := os.OpenFile(nodePath, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, errors.Trace(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, errors.Annotatef(err, "examining %s", nodePath)
	}
	got := fmt.Sprintf("%d:%d", unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)))
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || got != number {
		f.Close()
		return nil, errors.Annotatef(errOtherDevice, "%s is not block device %s", nodePath, number)
	}
	return fileNode{f}, nil
}

type fileNode struct{ *os.File }

// LoopBacking implements node.
func (n fileNode) LoopBacking() (dev, inode uint64, err error) {
	info, err := unix.IoctlLoopGetStatus64(int(n.Fd()))
	if err != nil {
		return 0, 0, errors.Annotatef(err, "examining %s", n.Name())
	}
	return info.Device, info.Inode, nil
}
