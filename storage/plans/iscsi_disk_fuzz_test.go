//go:build linux

package plans

import (
	"strings"
	"testing"
	"testing/fstest"
)

// FuzzISCSISysfs looks for a target's disk in a sysfs with arbitrary contents. A session
// is the target's only if name and port match, and a disk is ready only if it has a size.
func FuzzISCSISysfs(f *testing.F) {
	f.Add("iqn.2001-04.com.example:volume-1\n", "3260\n", "192.0.2.1\n", "2048\n", "naa.6001405\n")
	f.Add("iqn.2001-04.com.example:volume-1", "3260", "::ffff:192.0.2.1", "18446744073709551615", "eui.0123")
	f.Add("iqn.2001-04.com.example:volume-10", "03260", "192.0.2.1%eth0", "-1", "t10.ATA")
	f.Add("iqn.2001-04.com.example:volume-10", "3260", "192.0.2.1", "0", "")
	f.Add("iqn.2001-04.com.example:volume-1", "3261", "192.0.2.1", "1", "naa.")
	f.Add("", "", "", "", "")
	f.Fuzz(func(t *testing.T, name, port, address, size, wwid string) {
		const (
			session    = "class/iscsi_session/session1"
			connection = session + "/device/connection1:0/iscsi_connection/connection1:0"
			block      = session + "/device/target1:0:0/1:0:0:0/block/sda"
		)
		sysfs := sysfs{fstest.MapFS{
			session + "/targetname":                      {Data: []byte(name)},
			connection + "/persistent_port":              {Data: []byte(port)},
			connection + "/persistent_address":           {Data: []byte(address)},
			block + "/size":                              {Data: []byte(size)},
			session + "/device/target1:0:0/1:0:0:0/wwid": {Data: []byte(wwid)},
		}}
		for _, host := range []string{"192.0.2.1", "host.example"} {
			want := target{iqn: "iqn.2001-04.com.example:volume-1", host: host, port: "3260"}
			if sysfs.isWith(session, want) && (strings.TrimSpace(name) != want.iqn || strings.TrimSpace(port) != want.port) {
				t.Errorf("session of %q on port %q matches %s", name, port, want)
			}
		}
		blocks := sysfs.glob(session + "/device/target*/*/block/*")
		if len(blocks) != 1 || blocks[0] != block {
			t.Fatalf("looked for the disk at %q", blocks)
		}
		disk, ready := sysfs.disk(block)
		if !ready {
			return
		}
		if disk.DeviceName != "sda" || disk.WWN != "" && !strings.HasSuffix(strings.TrimSpace(wwid), disk.WWN[2:]) {
			t.Errorf("with wwid %q got disk %+v", wwid, disk)
		}
		if digits := strings.TrimSpace(size); strings.Trim(digits, "0123456789") != "" || strings.Trim(digits, "0") == "" {
			t.Errorf("size %q is accepted: %+v", size, disk)
		}
	})
}
