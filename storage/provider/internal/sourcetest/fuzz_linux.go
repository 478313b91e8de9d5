//go:build linux

package sourcetest

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
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// In the seeds, OUTSIDE stands for a directory in which nothing belongs to a provider, and
// INSIDE for the storage directory.
const (
	FuzzedVolume     = "volume-0-1"
	FuzzedFilesystem = "filesystem-0-1"
)

func FuzzedAttachment(path string) []storage.FilesystemAttachmentParams {
	return []storage.FilesystemAttachmentParams{{
		AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0")},
		Filesystem:       names.NewFilesystemTag("0/1"), FilesystemId: FuzzedFilesystem, Path: path,
	}}
}

// fuzzedStorage is a storage directory with one record, and files beside it that do not belong
// to its provider.
type fuzzedStorage struct {
	*testing.T
	Ctx     envcontext.ProviderCallContext
	Dir     string
	outside string
	place   object.Placement // as recorded
	damaged bool             // the record is not JSON
	before  []string
}

func NewFuzzedStorage(t *testing.T, id string, data []byte) *fuzzedStorage {
	t.Helper()
	base := memoryDir(t)
	s := &fuzzedStorage{
		T: t, Ctx: envcontext.New(context.Background()),
		Dir: filepath.Join(base, "storage"), outside: filepath.Join(base, "outside"),
	}
	text := strings.NewReplacer("OUTSIDE", s.outside, "INSIDE", s.Dir).Replace(string(data))
	_ = json.Unmarshal([]byte(text), &s.place)
	s.damaged = !json.Valid([]byte(text))
	// The test must not change the machine that runs it.
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
	s.make(filepath.Join(s.Dir, "records", id+".json"), text)
	s.before = s.list()
	return s
}

// memoryDir returns a temporary directory in memory, where nothing waits for a disk.
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

// File makes a file with the name of the object.
func (s *fuzzedStorage) File(dir, name string) {
	s.Helper()
	s.make(filepath.Join(s.Dir, dir, name), "theirs")
}

// list returns what is outside the storage directory, except directories that may have been
// made because of the record: the mount point and its parents.
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

// Check fails the test if something outside was touched, or if a record that cannot be parsed
// was not reported as damaged.
func (s *fuzzedStorage) Check(doing string, err error) {
	s.Helper()
	if s.damaged && doing != "listing" && !errors.Is(err, errors.NotValid) {
		s.Errorf("%s with a damaged record: %v, want an error that is not valid", doing, err)
	}
	if after := s.list(); !slices.Equal(s.before, after) {
		s.Fatalf("%s: outside are %q, were %q", doing, after, s.before)
	}
}

func (s *fuzzedStorage) CheckFilesystem(source storage.FilesystemSource, attachment []storage.FilesystemAttachmentParams) {
	s.Helper()
	ids := []string{FuzzedFilesystem}
	s.Check("detaching", Result(source.DetachFilesystems(s.Ctx, attachment)))
	s.Check("releasing", Result(source.ReleaseFilesystems(s.Ctx, ids)))
	s.Check("destroying", Result(source.DestroyFilesystems(s.Ctx, ids)))
}

// Result returns the only result of a bulk call for one item. It panics if the call fails as a
// whole.
func Result[T any](results []T, err error) T {
	if err != nil {
		panic(err)
	}
	return results[0]
}
