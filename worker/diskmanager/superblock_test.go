package diskmanager

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

const testUUID = "f4c3b2a1-0011-2233-4455-66778899aabb"

var testUUIDBytes = "\xf4\xc3\xb2\xa1\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb"

// image is a device of 1 MiB with strings at offsets.
type image map[int]string

func (i image) reader() *bytes.Reader {
	b := make([]byte, 1<<20)
	for offset, s := range i {
		copy(b[offset:], s)
	}
	return bytes.NewReader(b)
}

func ext(compat, incompat, roCompat uint32) image {
	features := binary.LittleEndian.AppendUint32(nil, compat)
	features = binary.LittleEndian.AppendUint32(features, incompat)
	features = binary.LittleEndian.AppendUint32(features, roCompat)
	return image{
		1024 + 0x38: "\x53\xef",
		1024 + 0x5c: string(features),
		1024 + 0x68: testUUIDBytes,
		1024 + 0x78: "data",
	}
}

func TestReadFilesystem(t *testing.T) {
	for _, test := range []struct {
		about  string
		device image
		want   filesystem
	}{
		{"blank", image{}, filesystem{}},
		{"noise", image{0: "XFSX", 1024: "\xff\xff", 65600: "_BHRfS_"}, filesystem{}},
		{"ext2", ext(0, 0x2, 0x3), filesystem{"ext2", testUUID, "data"}},
		{"ext3", ext(0x4, 0x2|0x4, 0x3), filesystem{"ext3", testUUID, "data"}},
		{"ext4", ext(0x4, 0x2|0x40, 0x3|0x400), filesystem{"ext4", testUUID, "data"}},
		{"ext4 without a journal", ext(0, 0x2|0x40, 0), filesystem{"ext4", testUUID, "data"}},
		{"ext4's external journal", ext(0, 0x8, 0), filesystem{"jbd", testUUID, "data"}},
		{"xfs", image{0: "XFSB", 32: testUUIDBytes, 108: "twelve chars and more"}, filesystem{"xfs", testUUID, "twelve chars"}},
		{"btrfs", image{65536 + 0x40: "_BHRfS_M", 65536 + 0x20: testUUIDBytes, 65536 + 0x12b: "b"}, filesystem{"btrfs", testUUID, "b"}},
		{"swap", image{4086: "SWAPSPACE2", 1036: testUUIDBytes, 1052: "s"}, filesystem{"swap", testUUID, "s"}},
		{"swap of a machine with pages of 64 KiB", image{65526: "SWAPSPACE2", 1036: testUUIDBytes}, filesystem{"swap", testUUID, ""}},
		{"no UUID", image{0: "XFSB"}, filesystem{"xfs", "", ""}},
		{"a label that is no text", image{0: "XFSB", 108: "a\xffb"}, filesystem{"xfs", "", "a\uFFFDb"}},
		{"two signatures", image{0: "XFSB", 4086: "SWAPSPACE2"}, filesystem{}},
	} {
		t.Run(test.about, func(t *testing.T) {
			got, err := readFilesystem(test.device.reader())
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

func TestReadFilesystemOnATinyDevice(t *testing.T) {
	got, err := readFilesystem(bytes.NewReader([]byte("XFSB")))
	if err != nil || got.Type != "xfs" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestReadFilesystemReportsReadErrors(t *testing.T) {
	want := errors.New("input/output error")
	if _, err := readFilesystem(brokenReader{want}); err != want {
		t.Errorf("got %v, want %v", err, want)
	}
}

type brokenReader struct{ err error }

func (r brokenReader) ReadAt([]byte, int64) (int, error) { return 0, r.err }
