package boltkv_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv/boltkv"
)

// FuzzDamagedFile changes a store's file in some places, and uses it: the only error is
// ErrDamaged.
func FuzzDamagedFile(f *testing.F) {
	all := samples(f)
	f.Add([]byte{0, 0, 0, 0}, -1)
	f.Add([]byte{0, 16, 9, 1, 0, 32, 10, 255}, -1)
	f.Add([]byte{}, 5000)
	f.Fuzz(func(t *testing.T, changes []byte, size int) {
		for _, s := range all {
			file := bytes.Clone(s.file)
			// Each change is an offset, in three bytes, and a mask for the byte there.
			for c := changes; len(c) >= 4; c = c[4:] {
				at := int(c[0])<<16 | int(c[1])<<8 | int(c[2])
				file[at%len(file)] ^= c[3]
			}
			if size >= 0 {
				file = file[:size%len(file)]
			}
			path := filepath.Join(t.TempDir(), "store")
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := probe(path); err != nil && !errors.Is(err, boltkv.ErrDamaged) {
				t.Errorf("%s: %v", s.name, err)
			}
		}
	})
}
