//go:build linux

package tmpfs

import (
	"path/filepath"
	"testing"

	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// FuzzTmpfsRecord gives the tmpfs provider a record with arbitrary contents. It attaches
// nothing, as that mounts, and a fuzzer may be killed at any moment.
func FuzzTmpfsRecord(f *testing.F) {
	for _, record := range []string{
		`{"size": 1048576, "mount-point": "OUTSIDE/deep/a", "made-dirs": ["OUTSIDE/deep/a"]}`,
		`{"size": 1048576, "made-dirs": ["OUTSIDE/empty"]}`,
		`{"size": 1048576, "mount-point": "OUTSIDE/full", "made-dirs": ["OUTSIDE/full", "OUTSIDE/empty"]}`,
		`{"size": 1048576, "mount-options": "noexec,mode=0700", "mount-point": "OUTSIDE/deep/a"}`,
		`{"size": 1048576, "mount-options": "size=1,,suid"}`,
		`{"size": 0, "mount-point": ""}`, `{}`, `null`, ``,
	} {
		f.Add([]byte(record))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := sourcetest.NewFuzzedStorage(t, sourcetest.FuzzedFilesystem, data)
		source, err := newSource(s.Dir)
		if err != nil {
			t.Fatal(err)
		}
		s.CheckFilesystem(source, sourcetest.FuzzedAttachment(filepath.Join(s.Dir, "at")))
	})
}
