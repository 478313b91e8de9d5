package signature

import (
	"bytes"
	"testing"
)

func TestZeroEdges(t *testing.T) {
	const size = 10 << 20
	for _, test := range []struct {
		about string
		size  int
		at    int // of the one byte that is not zero; none if negative
		zero  bool
	}{
		{"nothing", size, -1, true},
		{"the first byte", size, 0, false},
		{"the last byte of the first 4 MiB", size, edge - 1, false},
		{"between the edges", size, edge, true},
		{"the first byte of the last 4 MiB", size, size - edge, false},
		{"the last byte", size, size - 1, false},
		{"smaller than both edges, nothing", edge + 512, -1, true},
		{"smaller than both edges, the last byte", edge + 512, edge + 511, false},
		{"smaller than one edge, the last byte", 4096, 4095, false},
	} {
		data := make([]byte, test.size)
		if test.at >= 0 {
			data[test.at] = 1
		}
		zero, err := zeroEdges(bytes.NewReader(data), int64(test.size))
		if err != nil || zero != test.zero {
			t.Errorf("%s: got %v, %v", test.about, zero, err)
		}
	}
}

func TestZeroEdgesOfWhatCannotBeReadIsAnError(t *testing.T) {
	if _, err := zeroEdges(bytes.NewReader(make([]byte, edge)), 3*edge); err == nil {
		t.Error("a device that ends too early passes as zero")
	}
	if _, err := zeroEdges(bytes.NewReader(nil), 0); err == nil {
		t.Error("an empty device passes as zero")
	}
}
