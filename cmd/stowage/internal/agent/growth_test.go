package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// resizableProvider is the provider memory with filesystems that can grow.
type resizableProvider struct{ *memory }

func (e resizableProvider) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	return resizableSource{&memorySource{memory: e.memory}}, nil
}

type resizableSource struct{ *memorySource }

func (s resizableSource) ResizeFilesystems(_ envcontext.ProviderCallContext, all []storage.FilesystemResizeParams) ([]storage.ResizeFilesystemsResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	results := make([]storage.ResizeFilesystemsResult, len(all))
	for i, p := range all {
		s.made[p.FilesystemId] = p.Size
		results[i].FilesystemInfo = &storage.FilesystemInfo{FilesystemId: p.FilesystemId, Size: p.Size}
	}
	return results, nil
}

// haveSizes returns a condition: data/0 and data/1 have grown to these sizes.
func haveSizes(sizes ...uint64) func(map[string]user.Storage) bool {
	return func(rows map[string]user.Storage) bool {
		return rows["data/0"].SizeMiB == sizes[0] && rows["data/1"].SizeMiB == sizes[1]
	}
}

// warnings is a logger that keeps the warnings.
type warnings struct {
	logger
	mu       sync.Mutex
	messages []string
}

func (w *warnings) Warningf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.messages = append(w.messages, fmt.Sprintf(format, args...))
}

func (w *warnings) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.messages)
}

func TestResize(t *testing.T) {
	c := config(t, t.TempDir(), &memory{})
	c.Registry.(storage.StaticProviderRegistry).Providers["elastic"] = resizableProvider{&memory{}}
	a, stop := start(t, c)
	const elastics = "storage: [{name: data, directive: 'elastic,64M,2', kind: filesystem, mount: /srv/data}, {name: stiff, directive: 'memory,64M', kind: filesystem, mount: /srv/stiff}]"
	if err := apply(t, a, elastics); err != nil {
		t.Fatal(err)
	}
	until(t, a, all(3, status.Attached))
	wanted := func(sizes ...uint64) {
		t.Helper()
		rows, err := a.Storage(t.Context(), []string{"data"})
		if err != nil || len(rows) != 2 || rows[0].WantedMiB != sizes[0] || rows[1].WantedMiB != sizes[1] {
			t.Errorf("%+v, %v, want %d", rows, err, sizes)
		}
	}
	resize := func(size uint64, more bool, names ...string) (user.ChangesResult, error) {
		return a.Resize(t.Context(), user.ResizeArgs{Names: names, SizeMiB: size, More: more})
	}
	if r, err := resize(128, false, "data/1"); err != nil || len(r.Changes) != 1 || r.Changes[0].Detail != "64 MiB to 128 MiB" {
		t.Errorf("%+v, %v", r, err)
	}
	wanted(64, 128)
	if r, err := resize(64, true, "data"); err != nil || len(r.Changes) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	wanted(128, 192)
	until(t, a, haveSizes(128, 192))
	for _, test := range []struct {
		size    uint64
		names   []string
		kind    error
		message string
	}{
		{130, []string{"data"}, errors.NotValid, `resizing storage "data/1": it has 192 MiB and cannot shrink to 130 MiB`},
		{256, []string{"data", "stiff"}, errors.NotSupported, `resizing storage "stiff": provider memory cannot make storage larger`},
		{256, []string{"data", "none"}, errors.NotFound, `storage "none" not found`},
		{256, nil, errors.NotValid, "no storage is named"},
	} {
		if _, err := resize(test.size, false, test.names...); !errors.Is(err, test.kind) || !strings.HasPrefix(err.Error(), test.message) {
			t.Errorf("%d, %q: %v", test.size, test.names, err)
		}
		wanted(128, 192)
	}

	// A file can ask for a larger size, but not for a smaller one.
	if err := apply(t, a, strings.Replace(elastics, "64M", "256M", 1)); err != nil {
		t.Error(err)
	}
	wanted(256, 256)
	until(t, a, haveSizes(256, 256))
	if err := apply(t, a, elastics); err == nil || !strings.HasPrefix(err.Error(), "f.yaml:1: storage data: directive: data/0 has 256M and cannot become smaller") {
		t.Errorf("got %v", err)
	}
	if err := apply(t, a, strings.NewReplacer("elastic,64M", "elastic,256M", "memory,64M", "memory,65M").Replace(elastics)); err == nil || !strings.Contains(err.Error(), "cannot make storage larger") {
		t.Errorf("got %v", err)
	}

	// An agent starts with a file that is older than the growth.
	stop()
	c.Spec = &user.ApplyArgs{File: "f.yaml", Content: elastics}
	warnings := &warnings{logger: logger{t}}
	c.Logger = warnings
	a, _ = start(t, c)
	wanted(256, 256)
	if want := "f.yaml: storage data differs from the file, and is left as it is: 2 of 2: 256M, not 64M"; !slices.Contains(warnings.list(), want) {
		t.Errorf("warnings %q, want %q", warnings.list(), want)
	}
}
