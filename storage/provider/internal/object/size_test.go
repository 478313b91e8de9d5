package object

import (
	"testing"

	"github.com/juju/errors"
)

func TestSizeInBytes(t *testing.T) {
	for mib, want := range map[uint64]uint64{1: 1 << 20, 1024: 1 << 30, 1<<43 - 1: 1<<63 - 1<<20, 0: 0, 1 << 43: 0, 1<<64 - 1: 0} {
		got, err := SizeInBytes(mib)
		if got != want || (err != nil) != (want == 0) || err != nil && !errors.Is(err, errors.NotValid) {
			t.Errorf("%d MiB: %d, %v; want %d", mib, got, err, want)
		}
	}
}
