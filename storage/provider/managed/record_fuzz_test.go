//go:build linux

package managed

import (
	"path/filepath"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// FuzzManagedRecord gives the managed source a record with arbitrary contents.
func FuzzManagedRecord(f *testing.F) {
	const id = "f4c3b2a1-0011-2233-4455-66778899aabb"
	for _, record := range []string{
		`{"volume": "volume-0-1", "type": "ext4", "uuid": "` + id + `", "phase": "ready", "size": 67108864, "device": {"boot-id": "5d1c", "diskseq": 44, "backing-dev": 65024, "backing-ino": 12}, "mount-point": "OUTSIDE/deep/a", "made-dirs": ["OUTSIDE/deep/a"]}`,
		`{"volume": "volume-0-1", "type": "xfs", "uuid": "` + id + `", "phase": "formatting", "size": -1}`,
		`{"volume": "volume-0-1", "type": "ext4", "uuid": "` + id + `", "phase": "ready", "size": 1, "mount-point": "OUTSIDE/full/a", "made-dirs": ["OUTSIDE/empty"]}`,
		`{"type": "btrfs", "uuid": "` + id + `", "phase": "ready", "size": 1, "mkfs-options": "label=a", "mount-options": "noatime,\"x"}`,
		`{"volume": "machine-0", "type": "vfat", "uuid": "", "phase": "ready"}`, `{}`, `null`, ``,
	} {
		f.Add([]byte(record))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := sourcetest.NewFuzzedStorage(t, sourcetest.FuzzedFilesystem, data)
		source := NewSource(s.Dir, noDevices{})
		attachment := sourcetest.FuzzedAttachment(filepath.Join(s.Dir, "at"))
		s.Check("attaching", sourcetest.Result(source.AttachFilesystems(s.Ctx, attachment)).Error)
		s.CheckFilesystem(source, attachment)
	})
}

type noDevices struct{}

func (noDevices) Filesystem(names.FilesystemTag) (storage.Filesystem, bool) {
	return storage.Filesystem{}, false
}

func (noDevices) BlockDevice(names.VolumeTag) (storage.BlockDevice, bool) {
	return storage.BlockDevice{}, false
}
