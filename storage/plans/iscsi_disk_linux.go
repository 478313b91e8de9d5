package plans

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// diskInterval is the interval at which sysfs is polled: without udev no event announces the
// disk of a session.
const diskInterval = 100 * time.Millisecond

// awaitDisk waits until sysfs shows the target's disk.
func (p *iscsi) awaitDisk(ctx context.Context, t target) (storage.BlockDevice, error) {
	start := p.config.Clock.Now()
	for {
		sessions, disks := p.look(t)
		switch {
		case len(disks) == 1:
			return disks[0], nil
		case len(disks) > 1:
			return storage.BlockDevice{}, errors.Errorf(
				"the target shows several block devices, %s and %s: want one logical unit and one session",
				disks[0].DeviceName, disks[1].DeviceName)
		}
		if waited := p.config.Clock.Now().Sub(start); waited >= p.config.DeviceTimeout {
			return storage.BlockDevice{}, errors.NewTimeout(nil, fmt.Sprintf(
				"no block device %s after the login (sessions there: %d): check that the target has a logical unit for this machine",
				waited, sessions))
		}
		if err := p.pause(ctx, diskInterval); err != nil {
			return storage.BlockDevice{}, errors.Annotate(err, "waiting for the block device")
		}
	}
}

// look returns the number of sessions with the target in sysfs, and those of their disks that
// are ready. It may miss a session or disk that appears or disappears during the call.
func (p *iscsi) look(t target) (sessions int, disks []storage.BlockDevice) {
	sysfs := sysfs{os.DirFS(p.config.SysfsDir)}
	for _, session := range sysfs.glob("class/iscsi_session/session*") {
		if !sysfs.isWith(session, t) {
			continue
		}
		sessions++
		for _, block := range sysfs.glob(session + "/device/target*/*/block/*") {
			if disk, ready := sysfs.disk(block); ready {
				disks = append(disks, disk)
			}
		}
	}
	return sessions, disks
}

type sysfs struct {
	root fs.FS
}

// isWith reports whether a session is with the target at its portal. The target may have
// redirected the session to another address; the persistent address is the one that the
// session was created for. If the portal is a host name, the persistent address is one that
// the name resolved to at that time, so isWith compares only the port.
func (s sysfs) isWith(session string, t target) bool {
	if s.attribute(session+"/targetname") != t.iqn {
		return false
	}
	want, err := netip.ParseAddr(t.host)
	isName := err != nil
	for _, connection := range s.glob(session + "/device/connection*/iscsi_connection/connection*") {
		if s.attribute(connection+"/persistent_port") != t.port {
			continue
		}
		address, err := netip.ParseAddr(s.attribute(connection + "/persistent_address"))
		if isName || err == nil && address.Unmap() == want {
			return true
		}
	}
	return false
}

// disk describes the block device of a SCSI device. The device is ready once it has a size.
func (s sysfs) disk(block string) (disk storage.BlockDevice, ready bool) {
	sectors, err := strconv.ParseUint(s.attribute(block+"/size"), 10, 64)
	if err != nil || sectors == 0 {
		return storage.BlockDevice{}, false
	}
	const sectorsPerMiB = 2048 // a sector in sysfs has 512 bytes, whatever the device's sector size
	scsiDevice := path.Dir(path.Dir(block))
	return storage.BlockDevice{
		DeviceName: path.Base(block),
		WWN:        storage.SysfsWWN(s.attribute(scsiDevice + "/wwid")),
		Size:       sectors / sectorsPerMiB,
	}, true
}

func (s sysfs) glob(pattern string) []string {
	// The only possible error is a bad pattern, and these patterns are valid.
	names, _ := fs.Glob(s.root, pattern)
	return names
}

// attribute returns the contents of a file, or "" if it cannot be read.
func (s sysfs) attribute(name string) string {
	data, _ := fs.ReadFile(s.root, name)
	return strings.TrimSpace(string(data))
}
