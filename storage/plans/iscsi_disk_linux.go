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

// diskInterval is how often sysfs is looked at: without udev nothing tells when a
// disk of a session has come.
const diskInterval = 100 * time.Millisecond

// awaitDisk waits until the target shows its disk.
func (p *iscsi) awaitDisk(ctx context.Context, t target) (storage.BlockDevice, error) {
	start := p.config.Clock.Now()
	for {
		sessions, disks := p.look(t)
		switch {
		case len(disks) == 1:
			return disks[0], nil
		case len(disks) > 1:
			return storage.BlockDevice{}, errors.Errorf(
				"it shows as several block devices, %s and %s: want one logical unit and one session",
				disks[0].DeviceName, disks[1].DeviceName)
		}
		if waited := p.config.Clock.Now().Sub(start); waited >= p.config.DeviceTimeout {
			return storage.BlockDevice{}, errors.NewTimeout(nil, fmt.Sprintf(
				"no block device %s after the login (sessions there: %d): see that the target has a logical unit for this machine",
				waited, sessions))
		}
		if err := p.pause(ctx, diskInterval); err != nil {
			return storage.BlockDevice{}, errors.Annotate(err, "waiting for the block device")
		}
	}
}

// look returns how many sessions with the target sysfs shows, and their disks that
// are ready. A session or disk that comes or goes during the call may be missing.
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

// isWith reports whether a session is with the target at its portal. The target may
// have redirected the session to another address; the persistent address is the one
// that the session was made for. If the portal is a host name, that is an address
// which the name had at that time, so only the port is compared.
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

// disk describes a block device of a SCSI device, which is ready once it has a
// size.
func (s sysfs) disk(block string) (disk storage.BlockDevice, ready bool) {
	sectors, err := strconv.ParseUint(s.attribute(block+"/size"), 10, 64)
	if err != nil || sectors == 0 {
		return storage.BlockDevice{}, false
	}
	const sectorsPerMiB = 2048 // a sector has 512 bytes here, whatever the device's
	scsiDevice := path.Dir(path.Dir(block))
	return storage.BlockDevice{
		DeviceName: path.Base(block),
		WWN:        storage.SysfsWWN(s.attribute(scsiDevice + "/wwid")),
		Size:       sectors / sectorsPerMiB,
	}, true
}

func (s sysfs) glob(pattern string) []string {
	// The only error is a bad pattern, and these are not.
	names, _ := fs.Glob(s.root, pattern)
	return names
}

// attribute returns what the file says, "" if it cannot be read.
func (s sysfs) attribute(name string) string {
	data, _ := fs.ReadFile(s.root, name)
	return strings.TrimSpace(string(data))
}
