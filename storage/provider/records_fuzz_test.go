//go:build linux

package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// In the seeds, OUTSIDE is a directory in which nothing is a provider's, and INSIDE
// is the storage directory.
const (
	fuzzedVolume     = "volume-0-1"
	fuzzedFilesystem = "filesystem-0-1"
)

// FuzzLoopRecord gives the loop provider a record that holds anything.
func FuzzLoopRecord(f *testing.F) {
	for _, record := range []string{
		`{"size": 4194304, "phase": "ready", "dev": 65024, "ino": 12, "boot-id": "5d1c8b5e-0b6f-4d2f-9b3f-0a4a5c1c2d3e"}`,
		`{"size": 4194304, "phase": "attached", "dev": 65024, "ino": 12, "boot-id": "5d1c8b5e", "device": "loop3", "diskseq": 44, "read-only": true}`,
		`{"size": 4194304, "phase": "creating"}`,
		`{"size": 4194304, "phase": "importing", "imported-from": "OUTSIDE/full/file", "dev": 65024, "ino": 12}`,
		`{"size": 4194304, "growing": 8388608, "phase": "attached", "dev": 65024, "ino": 12}`,
		`{"size": 18446744073709551615, "phase": "destroying", "ino": 18446744073709551615}`,
		`{"phase": "", "size": 0}`, `{}`, `null`, `[]`, `{"size": "4"}`, ``, `{"device": "../../OUTSIDE/full"}`,
	} {
		f.Add([]byte(record))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := newFuzzedStorage(t, fuzzedVolume, data)
		source, err := newLoopSource(s.dir)
		if err != nil {
			t.Fatal(err)
		}
		s.file("volumes", fuzzedVolume)
		_, err = source.ListVolumes(s.ctx)
		s.check("listing", err)
		s.check("describing", result(source.DescribeVolumes(s.ctx, []string{fuzzedVolume})).Error)
		attachment := []storage.VolumeAttachmentParams{{
			AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0")},
			Volume:           names.NewVolumeTag("0/1"), VolumeId: fuzzedVolume,
		}}
		s.check("attaching", result(source.AttachVolumes(s.ctx, attachment)).Error)
		s.check("detaching", result(source.DetachVolumes(s.ctx, attachment)))
		s.check("releasing", result(source.ReleaseVolumes(s.ctx, []string{fuzzedVolume})))
		s.check("destroying", result(source.DestroyVolumes(s.ctx, []string{fuzzedVolume})))
	})
}

// FuzzManagedRecord gives the managed source a record that holds anything.
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
		s := newFuzzedStorage(t, fuzzedFilesystem, data)
		source := NewManagedFilesystemSource(s.dir, noDevices{})
		attachment := fuzzedAttachment(filepath.Join(s.dir, "at"))
		s.check("attaching", result(source.AttachFilesystems(s.ctx, attachment)).Error)
		s.checkFilesystem(source, attachment)
	})
}

type noDevices struct{}

func (noDevices) Filesystem(names.FilesystemTag) (storage.Filesystem, bool) {
	return storage.Filesystem{}, false
}

func (noDevices) BlockDevice(names.VolumeTag) (storage.BlockDevice, bool) {
	return storage.BlockDevice{}, false
}

// FuzzRootfsRecord gives the rootfs provider a record that holds anything.
func FuzzRootfsRecord(f *testing.F) {
	for _, record := range []string{
		`{"size": 1048576, "phase": "ready", "dev": 65024, "ino": 12, "boot-id": "5d1c8b5e", "mount-point": "OUTSIDE/deep/a", "made-dirs": ["OUTSIDE/deep/a"]}`,
		`{"size": 1048576, "phase": "destroying", "made-dirs": ["OUTSIDE/empty", "OUTSIDE/deep/../empty"]}`,
		`{"size": 1048576, "phase": "creating", "mount-point": "INSIDE/at", "made-dirs": ["INSIDE/at"]}`,
		`{"size": 1048576, "phase": "importing", "imported-from": "OUTSIDE/full", "dev": 65024, "ino": 12}`,
		`{"size": 1048576, "phase": "ready", "mount-point": "at", "made-dirs": ["..", "/"]}`,
		`{"size": 1048576, "phase": "importing", "imported-from": "OUTSIDE/full", "ino": 12}`,
		`{"size": 1048576, "phase": "ready", "imported-from": "../OUTSIDE", "project": 7, "limit": 1048576}`,
		`{}`, `null`, ``,
	} {
		f.Add([]byte(record))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := newFuzzedStorage(t, fuzzedFilesystem, data)
		source, err := newRootfsSource(s.dir, noLogger{})
		if err != nil {
			t.Fatal(err)
		}
		s.file(filepath.Join("filesystems", fuzzedFilesystem), "data")
		attachment := fuzzedAttachment(filepath.Join(s.dir, "at"))
		s.check("attaching", result(source.AttachFilesystems(s.ctx, attachment)).Error)
		s.checkFilesystem(source, attachment)
	})
}

type noLogger struct{}

func (noLogger) Debugf(string, ...any) {}

// FuzzTmpfsRecord gives the tmpfs provider a record that holds anything. Nothing
// is attached: that mounts, and a fuzzer is killed at any moment.
func FuzzTmpfsRecord(f *testing.F) {
	for _, record := range []string{
		`{"size": 1048576, "mount-point": "OUTSIDE/deep/a", "made-dirs": ["OUTSIDE/deep/a"]}`,
		`{"size": 1048576, "made-dirs": ["OUTSIDE/empty"]}`,
		`{"size": 1048576, "mount-point": "OUTSIDE/full", "made-dirs": ["OUTSIDE/full", "OUTSIDE/empty"]}`,
		`{"size": 0, "mount-point": ""}`, `{}`, `null`, ``,
	} {
		f.Add([]byte(record))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := newFuzzedStorage(t, fuzzedFilesystem, data)
		source, err := newTmpfsSource(s.dir)
		if err != nil {
			t.Fatal(err)
		}
		s.checkFilesystem(source, fuzzedAttachment(filepath.Join(s.dir, "at")))
	})
}

func fuzzedAttachment(path string) []storage.FilesystemAttachmentParams {
	return []storage.FilesystemAttachmentParams{{
		AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0")},
		Filesystem:       names.NewFilesystemTag("0/1"), FilesystemId: fuzzedFilesystem, Path: path,
	}}
}

// fuzzedStorage is a storage directory with one record, beside things that are
// none of its provider's.
type fuzzedStorage struct {
	*testing.T
	ctx     envcontext.ProviderCallContext
	dir     string
	outside string
	place   placement // as recorded
	damaged bool      // the record is no JSON of the right form
	before  []string
}

func newFuzzedStorage(t *testing.T, id string, data []byte) *fuzzedStorage {
	t.Helper()
	base := memoryDir(t)
	s := &fuzzedStorage{
		T: t, ctx: envcontext.New(context.Background()),
		dir: filepath.Join(base, "storage"), outside: filepath.Join(base, "outside"),
	}
	text := strings.NewReplacer("OUTSIDE", s.outside, "INSIDE", s.dir).Replace(string(data))
	_ = json.Unmarshal([]byte(text), &s.place)
	s.damaged = !json.Valid([]byte(text))
	// The machine that runs the test stays as it is.
	for _, path := range append(slices.Clone(s.place.MadeDirs), s.place.MountPoint) {
		if path = filepath.Clean(path); filepath.IsAbs(path) && !strings.HasPrefix(path, base+"/") {
			t.Skip()
		}
	}
	s.make(filepath.Join(s.outside, "full", "file"), "theirs")
	for _, dir := range []string{"empty", "deep/a"} {
		if err := os.MkdirAll(filepath.Join(s.outside, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.make(filepath.Join(s.dir, "records", id+".json"), text)
	s.before = s.list()
	return s
}

// memoryDir returns a temporary directory in memory, where nothing waits for a
// disk.
func memoryDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "stowage-fuzz-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func (s *fuzzedStorage) make(path, content string) {
	s.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		s.Fatal(err)
	}
}

// file makes a file that has the name of the object.
func (s *fuzzedStorage) file(dir, name string) {
	s.Helper()
	s.make(filepath.Join(s.dir, dir, name), "theirs")
}

// list returns what is outside, but for directories that a record may have been
// made for: the mount point, and those that it is in.
func (s *fuzzedStorage) list() []string {
	s.Helper()
	var found []string
	err := filepath.WalkDir(s.outside, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() || !strings.HasPrefix(s.place.MountPoint+"/", path+"/") {
			found = append(found, fmt.Sprint(path, entry.Type()))
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Fatal(err)
	}
	return found
}

// check fails unless nothing outside was touched, and a record that cannot be
// understood was told to be damaged.
func (s *fuzzedStorage) check(doing string, err error) {
	s.Helper()
	if s.damaged && doing != "listing" && !errors.Is(err, errors.NotValid) {
		s.Errorf("%s with a damaged record: %v, want an error that is not valid", doing, err)
	}
	if after := s.list(); !slices.Equal(s.before, after) {
		s.Fatalf("%s: outside are %q, were %q", doing, after, s.before)
	}
}

func (s *fuzzedStorage) checkFilesystem(source storage.FilesystemSource, attachment []storage.FilesystemAttachmentParams) {
	s.Helper()
	ids := []string{fuzzedFilesystem}
	s.check("detaching", result(source.DetachFilesystems(s.ctx, attachment)))
	s.check("releasing", result(source.ReleaseFilesystems(s.ctx, ids)))
	s.check("destroying", result(source.DestroyFilesystems(s.ctx, ids)))
}

// result returns the one result of a bulk call that works on one thing. It panics
// where the call fails as a whole.
func result[T any](results []T, err error) T {
	if err != nil {
		panic(err)
	}
	return results[0]
}
