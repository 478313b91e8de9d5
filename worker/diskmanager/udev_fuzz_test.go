package diskmanager

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func FuzzUdevRecord(f *testing.F) {
	f.Add("S:disk/by-path/pci-0000:00:1f.2-ata-1\nS:disk/by-id/wwn-0x5000c500a0b1c2d3\nS:disk/by-id/ata-ACME_X1\nL:0\nI:1320\n" +
		"E:ID_BUS=ata\nE:ID_SERIAL=ACME_X1\nE:ID_SERIAL_SHORT=X1\nE:ID_WWN=0x5000c500a0b1c2d3\nE:DEVLINKS=a b\nG:systemd\nQ:systemd\nV:1\n")
	f.Add("S:disk/by-id/virtio-vol-1\nE:ID_SERIAL=vol-1\nE:ID_FS_TYPE=ext4\nE:ID_FS_UUID_ENC=\\x20\n")
	f.Add("S:\nS:/\nS:..\nS:../../etc/passwd\nE:\nE:=\nE\n:")
	f.Fuzz(func(t *testing.T, text string) {
		root := fstest.MapFS{"run/udev/data/b8:0": &fstest.MapFile{Data: []byte(text)}}
		record, err := readUdevRecord(root, "8:0")
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range record.links {
			if !strings.HasPrefix(link, "/dev/") || strings.Contains(link+"/", "/../") {
				t.Errorf("link %q leads out of /dev", link)
			}
		}
		if !slices.IsSorted(record.links) {
			t.Errorf("links %q are not sorted", record.links)
		}
		if id := record.hardwareId(); id != "" && (strings.Contains(id, "/") || !slices.Contains(record.links, "/dev/disk/by-id/"+id)) {
			t.Errorf("hardware id %q, links %q", id, record.links)
		}
		// The last lines count, whatever precedes them.
		root["run/udev/data/b8:0"].Data = []byte(text + "\nE:ID_SERIAL=last\nS:disk/by-id/last\n")
		record, err = readUdevRecord(root, "8:0")
		if err != nil {
			t.Fatal(err)
		}
		if record.first("ID_SERIAL") != "last" || !slices.Contains(record.links, "/dev/disk/by-id/last") {
			t.Errorf("%q hides what comes after it: %+v", text, record)
		}
	})
}
