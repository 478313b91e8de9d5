package agent_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/agent"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// files is a provider whose volumes are files. Attaching one does nothing.
type files struct {
	storage.Provider
	mu   sync.Mutex
	dir  string
	from map[string]string // the IDs of imported volumes, by their original paths
}

func (f *files) Supports(kind storage.StorageKind) bool { return kind == storage.StorageKindBlock }
func (f *files) Scope() storage.Scope                   { return storage.ScopeMachine }
func (f *files) Dynamic() bool                          { return true }
func (f *files) Releasable() bool                       { return false }
func (f *files) DefaultPools() []*storage.Config        { return nil }
func (f *files) ValidateConfig(*storage.Config) error   { return nil }

func (f *files) VolumeSource(config *storage.Config) (storage.VolumeSource, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, _ := config.ValueString(storage.ConfigStorageDir)
	f.dir = filepath.Join(dir, "volumes")
	return &filesSource{files: f}, nil
}

type filesSource struct {
	storage.VolumeSource
	*files
}

func (s *filesSource) ImportVolume(_ envcontext.ProviderCallContext, path string, _ map[string]string) (storage.VolumeInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.from[path]
	if !ok {
		id = fmt.Sprintf("imported-%d", len(s.from))
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return storage.VolumeInfo{}, err
		}
		if err := os.Rename(path, filepath.Join(s.dir, id)); err != nil {
			return storage.VolumeInfo{}, errors.NewNotFound(err, "")
		}
		if s.from == nil {
			s.from = map[string]string{}
		}
		s.from[path] = id
	}
	info, err := os.Stat(filepath.Join(s.dir, id))
	if err != nil {
		return storage.VolumeInfo{}, err
	}
	return storage.VolumeInfo{VolumeId: id, Size: uint64(info.Size()) >> 20}, nil
}

func (s *filesSource) AttachVolumes(_ envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	results := make([]storage.AttachVolumesResult, len(all))
	for i, p := range all {
		results[i].VolumeAttachment = &storage.VolumeAttachment{Volume: p.Volume, Machine: p.Machine}
	}
	return results, nil
}

func (s *filesSource) DetachVolumes(_ envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams) ([]error, error) {
	return make([]error, len(all)), nil
}

func (s *filesSource) DestroyVolumes(_ envcontext.ProviderCallContext, ids []string) ([]error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if err := os.Remove(filepath.Join(s.dir, id)); err != nil {
			return nil, err
		}
		for path, of := range s.from {
			if of == id {
				delete(s.from, path)
			}
		}
	}
	return make([]error, len(ids)), nil
}

// startImporter starts an agent whose provider loop can import. It returns a directory with
// two files of 4 MiB: "fs", which holds an ext4, and "raw", which holds only zeros.
func startImporter(t *testing.T) (*agent.Agent, *files, string) {
	t.Helper()
	dir, f := t.TempDir(), &files{}
	for _, name := range []string{"fs", "raw"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 4<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mkfs := exec.Command("mkfs.ext4", "-q", "-F", "-U", "11111111-2222-3333-4444-555555555555", filepath.Join(dir, "fs"))
	if out, err := mkfs.CombinedOutput(); err != nil {
		t.Skipf("mkfs.ext4: %v: %s", err, out)
	}
	c := config(t, filepath.Join(dir, "agent"), &memory{})
	c.Registry.(storage.StaticProviderRegistry).Providers["loop"] = f
	a, _ := start(t, c)
	return a, f, dir
}

func TestImportTakesOverFile(t *testing.T) {
	a, f, dir := startImporter(t)
	for _, test := range []struct {
		args   user.ImportArgs
		kind   string
		detail string
	}{
		{user.ImportArgs{Name: "data", Pool: "loop", Source: dir + "/fs", Mount: "/srv/data"}, "filesystem", "filesystem, pool loop, 4M, ext4, on /srv/data"},
		{user.ImportArgs{Name: "raw", Pool: "loop", Source: dir + "/raw", Block: true}, "block", "block, pool loop, 4M"},
	} {
		r, err := a.Import(t.Context(), test.args)
		want := []user.Change{{Action: user.ActionImport, Item: "storage", Name: test.args.Name, Detail: test.detail}}
		if err != nil || !reflect.DeepEqual(r.Changes, want) {
			t.Errorf("%+v, %v, want %+v", r, err, want)
		}
		if _, err := os.Stat(test.args.Source); !os.IsNotExist(err) {
			t.Errorf("%s is still there (%v)", test.args.Source, err)
		}
		// With a second name, removing one storage would destroy the data of both.
		test.args.Name, test.args.Mount = "again", ""
		if _, err := a.Import(t.Context(), test.args); !errors.Is(err, errors.AlreadyExists) ||
			err.Error() != fmt.Sprintf(`importing storage "again": the source was already imported as storage %q`, want[0].Name) {
			t.Errorf("imported again: %v", err)
		}
		rows, err := a.Storage(t.Context(), []string{want[0].Name})
		if err != nil || rows[0].Kind != test.kind || rows[0].SizeMiB != 4 || rows[0].WantedMiB != 4 || rows[0].Pool != "loop" {
			t.Errorf("%+v, %v", rows, err)
		}
	}
	until(t, a, func(rows map[string]user.Storage) bool { return rows["raw"].Status == "attached" })

	if err := a.Remove(t.Context(), user.RemoveArgs{Names: []string{"data", "raw"}}); err != nil {
		t.Fatal(err)
	}
	until(t, a, all(0, ""))
	if left, err := os.ReadDir(f.dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// The provider has imported a file, but the agent died before it recorded that. Repeating the
// import with the same path finishes it.
func TestInterruptedImportIsFinished(t *testing.T) {
	a, f, dir := startImporter(t)
	refused := user.ImportArgs{Name: "other", Pool: "loop", Source: dir + "/raw"}
	for _, name := range []string{"fs", "raw"} {
		config, err := storage.NewConfig("loop", "loop", storage.Attrs{storage.ConfigStorageDir: dir + "/agent/storage/loop"})
		if err != nil {
			t.Fatal(err)
		}
		source, err := f.VolumeSource(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := source.(storage.VolumeImporter).ImportVolume(envcontext.New(context.Background()), filepath.Join(dir, name), nil); err != nil {
			t.Fatal(err)
		}
	}
	r, err := a.Import(t.Context(), user.ImportArgs{Name: "data", Pool: "loop", Source: dir + "/fs", Mount: "/srv/data"})
	if err != nil || r.Changes[0].Detail != "filesystem, pool loop, 4M, ext4, on /srv/data" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := a.Import(t.Context(), refused); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "--block") {
		t.Errorf("got %v", err)
	}
	refused.Block = true
	if _, err := a.Import(t.Context(), refused); err != nil {
		t.Error(err)
	}
}

func TestRefusedImportChangesNothing(t *testing.T) {
	a, _, dir := startImporter(t)
	if err := apply(t, a, two); err != nil {
		t.Fatal(err)
	}
	small := filepath.Join(dir, "small")
	if err := os.WriteFile(small, make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("fs", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		about   string
		change  func(*user.ImportArgs)
		kind    error
		message string
	}{
		{"name that is taken", func(a *user.ImportArgs) { a.Name = "data" }, errors.AlreadyExists, `importing storage "data": there is storage of that name`},
		{"unknown pool", func(a *user.ImportArgs) { a.Pool = "slow" }, errors.NotFound, `pool "slow" is not known`},
		{"relative path", func(a *user.ImportArgs) { a.Source = "fs" }, errors.NotValid, `"fs" is not an absolute path`},
		{"path with ..", func(a *user.ImportArgs) { a.Source = dir + "/../x" }, errors.NotValid, "is not an absolute path in its shortest form"},
		{"missing file", func(a *user.ImportArgs) { a.Source = dir + "/none" }, errors.NotFound, "none"},
		{"a link", func(a *user.ImportArgs) { a.Source = dir + "/link" }, errors.NotValid, "is a symbolic link"},
		{"a directory", func(a *user.ImportArgs) { a.Source = dir }, errors.NotValid, "is not a regular file"},
		{"no filesystem", func(a *user.ImportArgs) { a.Source = dir + "/raw" }, errors.NotValid, "no known filesystem at its start: import it as a block device with --block"},
		{"too small", func(a *user.ImportArgs) { a.Source, a.Block = small, true }, errors.NotValid, "has 1000 bytes: storage has at least 1 MiB"},
		{"unknown UUID", func(a *user.ImportArgs) { a.Source = "UUID=99999999-2222-3333-4444-555555555555" }, errors.NotFound, "no block device has a filesystem with UUID"},
		{"empty UUID", func(a *user.ImportArgs) { a.Source = "UUID=" }, errors.NotFound, "no block device has a filesystem with UUID"},
		{"provider that cannot import", func(a *user.ImportArgs) { a.Pool = "memory" }, errors.NotSupported, "provider memory cannot import existing storage"},
	} {
		args := user.ImportArgs{Name: "new", Pool: "loop", Source: dir + "/fs"}
		test.change(&args)
		if r, err := a.Import(t.Context(), args); !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.message) {
			t.Errorf("%s: %+v, %v", test.about, r, err)
		}
	}
	for _, name := range []string{"fs", "raw", "small"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if rows, err := a.Storage(t.Context(), nil); err != nil || len(rows) != 2 {
		t.Errorf("%+v, %v", rows, err)
	}
}
