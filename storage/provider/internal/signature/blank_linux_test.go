package signature

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/uuid"
)

func isZeroAtEdges(t *testing.T, data []byte, size int64) (bool, error) {
	t.Helper()
	r, err := newReaderAt(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	return r.isZeroAtEdges(t.Context(), size)
}

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
		zero, err := isZeroAtEdges(t, data, int64(test.size))
		if err != nil || zero != test.zero {
			t.Errorf("%s: got %v, %v", test.about, zero, err)
		}
	}
}

func TestZeroEdgesOfWhatCannotBeReadIsAnError(t *testing.T) {
	if _, err := isZeroAtEdges(t, make([]byte, edge), 3*edge); err == nil {
		t.Error("a device that ends too early passes as zero")
	}
	if _, err := isZeroAtEdges(t, nil, 0); err == nil {
		t.Error("an empty device passes as zero")
	}
}

// sparse is a device that is blank but for one block.
type sparse struct {
	at    int64
	block []byte
}

func (s sparse) ReadAt(p []byte, at int64) (int, error) {
	clear(p)
	if at == s.at {
		copy(p, s.block)
	}
	return len(p), nil
}

type unreadable struct{}

func (unreadable) ReadAt([]byte, int64) (int, error) { return 0, errors.New("input/output error") }

func TestCopiesOfABtrfsSuperblockAreFound(t *testing.T) {
	id := uuid.New()
	block := make([]byte, copySize)
	copy(block[0x20:], id[:])
	copy(block[0x40:], "_BHRfS_M")
	for _, test := range []struct {
		at, size int64
		found    bool
	}{
		{64 << 20, 109 << 20, true},
		{64 << 20, 64<<20 + copySize, true},
		{64 << 20, 64 << 20, false},
		{256 << 30, 300 << 30, true},
		{256 << 30, 256 << 30, false},
		{128 << 20, 300 << 30, false},
	} {
		got, err := btrfsCopy(sparse{test.at, block}, test.size)
		if err != nil || (got == Signature{Type: "btrfs", UUID: id.String()}) != test.found {
			t.Errorf("at %d of %d bytes: got %+v, %v", test.at, test.size, got, err)
		}
	}
	if _, err := btrfsCopy(unreadable{}, 65<<20); err == nil {
		t.Error("a copy that cannot be read passes as none")
	}
}
