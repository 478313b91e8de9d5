//go:build linux

package rootfs

import (
	"path/filepath"
	"testing"

	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// FuzzRootfsRecord gives the rootfs provider a record with arbitrary contents.
func FuzzRootfsRecord(f *testing.F) {
	for _, record := range []string{
		`{"size": 1048576, "phase": "ready", "dev": 65024, "ino": 12, "boot-id": "5d1c8b5e", "mount-point": "OUTSIDE/deep/a", "made-dirs": ["OUTSIDE/deep/a"]}`,
		`{"size": 1048576, "phase": "destroying", "made-dirs": ["OUTSIDE/empty", "OUTSIDE/deep/../empty"]}`,
		`{"size": 1048576, "phase": "creating", "mount-point": "INSIDE/at", "made-dirs": ["INSIDE/at"]}`,
		`{"size": 1048576, "phase": "importing", "imported-from": "OUTSIDE/full", "dev": 65024, "ino": 12}`,
		`{"size": 1048576, "phase": "ready", "mount-point": "at", "made-dirs": ["..", "/"]}`,
		`{"size": 1048576, "phase": "importing", "imported-from": "OUTSIDE/full", "ino": 12}`,
		`{"size": 1048576, "phase": "ready", "imported-from": "../OUTSIDE", "project": 7, "limit": 1048576}`,
		`{"size": 1048576, "phase": "ready", "mount-options": "mode=0,,suid"}`,
		`{}`, `null`, ``,
	} {
		f.Add([]byte(record))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := sourcetest.NewFuzzedStorage(t, sourcetest.FuzzedFilesystem, data)
		source, err := newSource(s.Dir, noLogger{})
		if err != nil {
			t.Fatal(err)
		}
		s.File(filepath.Join("filesystems", sourcetest.FuzzedFilesystem), "data")
		attachment := sourcetest.FuzzedAttachment(filepath.Join(s.Dir, "at"))
		s.Check("attaching", sourcetest.Result(source.AttachFilesystems(s.Ctx, attachment)).Error)
		s.CheckFilesystem(source, attachment)
	})
}

type noLogger struct{}

func (noLogger) Debugf(string, ...any) {}
