package signature

import (
	"bytes"
	"errors"
	"testing"
)

func checkEdges(t *testing.T, data []byte, size int64) error {
	t.Helper()
	r, err := newReaderAt(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	return r.checkEdges(t.Context(), size)
}

func TestEdges(t *testing.T) {
	const size = 10 << 20
	for _, test := range []struct {
		about string
		size  int
		at    int64 // of the only byte that is not zero; negative: all are zero
		blank bool
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
		err := checkEdges(t, data, int64(test.size))
		var notBlank *NotBlankError
		if (err == nil) != test.blank || err != nil && (!errors.As(err, &notBlank) || notBlank.At != test.at) {
			t.Errorf("%s: got %v", test.about, err)
		}
	}
}

func TestEdgesReadError(t *testing.T) {
	if err := checkEdges(t, make([]byte, edge), 3*edge); describesContent(err) {
		t.Error("a device that ends too early is accepted as zero")
	}
	if err := checkEdges(t, nil, 0); describesContent(err) {
		t.Error("an empty device is accepted as zero")
	}
}
