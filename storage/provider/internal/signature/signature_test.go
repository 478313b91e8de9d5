package signature

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/juju/errors"
)

func TestParseExport(t *testing.T) {
	const limits = "MINIMUM_IO_SIZE=512\nPHYSICAL_SECTOR_SIZE=512\nLOGICAL_SECTOR_SIZE=512\n"
	for _, test := range []struct {
		about, out string
		want       Signature
	}{
		{"blank", "DEVNAME=/dev/x\n" + limits, Signature{}},
		{"a blank partition", "PART_ENTRY_SCHEME=gpt\nPART_ENTRY_UUID=1\n" + limits, Signature{}},
		{"a filesystem", "LABEL=my\\ data\nUUID=7f\nTYPE=ext4\nUSAGE=filesystem\n" + limits, Signature{"ext4", "7f", "my\\ data"}},
		{"a partition table", "PTUUID=33\nPTTYPE=gpt\n" + limits, Signature{Type: "gpt", UUID: "33"}},
		{"a type without a name", "USAGE=raid\n" + limits, Signature{Type: "raid"}},
	} {
		got, err := parseExport(test.out)
		if err != nil || got != test.want {
			t.Errorf("%s: got %+v, %v", test.about, got, err)
		}
	}
	if _, err := parseExport("DEVNAME=/dev/x\n"); err == nil {
		t.Error("output without a sign that the device was read passes as blank")
	}
}

// place puts bytes, in hexadecimal, at offsets of a blank device.
func place(t testing.TB, parts map[int]string) []byte {
	t.Helper()
	data := make([]byte, 128<<10)
	for at, part := range parts {
		b, err := hex.DecodeString(part)
		if err != nil {
			t.Fatal(err)
		}
		copy(data[at:], b)
	}
	return data
}

const (
	idHex = "0123456789abcdef0123456789abcdef"
	id    = "01234567-89ab-cdef-0123-456789abcdef"
	label = "6d79206c6162656c" // "my label"
)

func TestReadSuperblock(t *testing.T) {
	for _, test := range []struct {
		about string
		parts map[int]string
		want  Signature
	}{
		{"nothing", nil, Signature{}},
		{"ext4", map[int]string{1024 + 0x38: "53ef", 1024 + 0x60: "40", 1024 + 0x68: idHex, 1024 + 0x78: label}, Signature{"ext4", id, "my label"}},
		{"ext3", map[int]string{1024 + 0x38: "53ef", 1024 + 0x5c: "04", 1024 + 0x68: idHex}, Signature{"ext3", id, ""}},
		{"ext2", map[int]string{1024 + 0x38: "53ef", 1024 + 0x68: idHex}, Signature{"ext2", id, ""}},
		{"xfs", map[int]string{0: hex.EncodeToString([]byte("XFSB")), 32: idHex, 108: label}, Signature{"xfs", id, "my label"}},
		{"btrfs", map[int]string{65536 + 0x40: hex.EncodeToString([]byte("_BHRfS_M")), 65536 + 0x20: idHex, 65536 + 0x12b: label}, Signature{"btrfs", id, "my label"}},
	} {
		got, err := ReadSuperblock(bytes.NewReader(place(t, test.parts)))
		if err != nil || got != test.want {
			t.Errorf("%s: got %+v, %v", test.about, got, err)
		}
	}
}

func TestReadSuperblockOfATinyDevice(t *testing.T) {
	got, err := ReadSuperblock(bytes.NewReader(make([]byte, 512)))
	if err != nil || got != (Signature{}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

type unreadable struct{}

func (unreadable) ReadAt([]byte, int64) (int, error) { return 0, errors.New("input/output error") }

func TestReadSuperblockTellsErrors(t *testing.T) {
	if _, err := ReadSuperblock(unreadable{}); err == nil || !strings.Contains(err.Error(), "input/output error") {
		t.Errorf("got %v", err)
	}
}
