package takeover_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/takeover"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/providertest"
	"github.com/stowage-io/stowage/testing/providerfake"
)

// guard returns a provider as the worker of a server gets it.
func (w *world) guard(p storage.Provider) storage.Provider {
	w.Helper()
	lease := &lock{term: 1, done: make(chan struct{})}
	t, err := takeover.New(takeover.Config{State: w.leader(lease), Machine: w.Machine, Lease: lease, Clock: w.clock})
	w.must(err)
	registry, err := t.Registry(func(*config.Config) (storage.ProviderRegistry, error) { return registryOf(p), nil })(nil)
	w.must(err)
	guarded, err := registry.StorageProvider("disk")
	w.must(err)
	return guarded
}

// A guarded provider keeps the contract of providers.
func TestGuardedProviderConforms(t *testing.T) {
	w := newWorld(t)
	pool, err := storage.NewConfig("disk", "disk", nil)
	w.must(err)
	providertest.Run(t, providertest.Config{Provider: w.guard(providerfake.New(providerfake.Options{})), SourceConfig: pool})
	w.wantNotes(0)
}

// A guarded source has every optional capability that the worker looks for, and without that of its
// source it behaves like a source that lacks it.
func TestGuardHasAllCapabilities(t *testing.T) {
	w := newWorld(t)
	p := w.guard(disk{source: &source{backend: w.backend}})
	pool, err := storage.NewConfig("disk", "disk", nil)
	w.must(err)
	s, err := p.VolumeSource(pool)
	w.must(err)
	_, resizes := s.(storage.VolumeResizer)
	_, checks := s.(storage.VolumeChecker)
	_, remarks := s.(storage.VolumeRemarker)
	_, isNew := s.(storage.NewVolumes)
	_, owners := s.(storage.VolumeOwnerLister)
	_, clones := s.(storage.VolumeCloner)
	_, qualifies := s.(storage.VolumeQualifier)
	_, guards := s.(storage.VolumeDeletionGuard)
	_, concurrent := s.(storage.ConcurrentSource)
	_, limits := s.(storage.RateLimiter)
	_, pools := p.(storage.PoolSources)
	_, fsQualifies := p.(storage.FilesystemQualifier)
	_, fsGuards := p.(storage.FilesystemDeletionGuard)
	_, contexts := s.(storage.ContextSource)
	has := map[string]bool{
		"ContextSource": contexts,
		"VolumeResizer": resizes, "VolumeChecker": checks, "VolumeRemarker": remarks, "NewVolumes": isNew, "VolumeCloner": clones,
		"VolumeOwnerLister": owners, "VolumeQualifier": qualifies, "VolumeDeletionGuard": guards,
		"ConcurrentSource": concurrent, "RateLimiter": limits, "PoolSources": pools,
		"FilesystemQualifier": fsQualifies, "FilesystemDeletionGuard": fsGuards,
		// It matters only on the machine that makes filesystems on the volumes.
		"FileVolumes": true,
	}
	used := regexp.MustCompile(`(?:\.\(|Capabilities\[)storage\.(\w+)`)
	for _, dir := range []string{"", "internal/translate"} {
		files, err := filepath.Glob(filepath.Join("../../../../worker/storageprovisioner", dir, "*.go"))
		w.must(err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			w.must(err)
			for _, match := range used.FindAllStringSubmatch(string(text), -1) {
				name := match[1]
				onVolumes := !strings.HasPrefix(name, "Filesystem") || strings.HasSuffix(name, "Qualifier") || strings.HasSuffix(name, "Guard")
				if isCapability(name) && onVolumes && !has[name] {
					t.Errorf("%s looks for a storage.%s, which a guarded source is not", file, name)
				}
			}
		}
	}

	resized, err := s.(storage.VolumeResizer).ResizeVolumes(w.ctx(), make([]storage.VolumeResizeParams, 1))
	if err != nil || !errors.Is(resized[0].Error, errors.NotSupported) {
		t.Errorf("resizing: %v, %v", resized, err)
	}
	if got, err := s.(storage.VolumeCloner).CloneVolumes(w.ctx(), make([]storage.VolumeCloneParams, 1)); err != nil || !errors.Is(got[0].Error, errors.NotSupported) {
		t.Errorf("cloning: %v, %v", got, err)
	}
	if got, err := s.(storage.VolumeChecker).CheckVolumes(w.ctx(), make([]string, 2)); err != nil || len(got) != 2 || got[0] != nil {
		t.Errorf("checking: %v, %v", got, err)
	}
	if _, err := s.(storage.VolumeOwnerLister).ListVolumeOwners(w.ctx()); !errors.Is(err, errors.NotSupported) {
		t.Errorf("listing owners: %v", err)
	}
	if got := s.(storage.ContextSource).VolumeContext("a"); len(got) != 0 {
		t.Errorf("the context of a volume: %v", got)
	}
	w.must(s.(storage.RateLimiter).WaitToCall(t.Context()))
	if n := s.(storage.ConcurrentSource).MaxConcurrentCalls(); n != 1 {
		t.Errorf("%d calls at once", n)
	}
	if !s.(storage.VolumeQualifier).ShouldCreateVolume(storage.VolumeParams{}) || !s.(storage.VolumeDeletionGuard).ShouldDestroyVolume("a") ||
		!p.(storage.FilesystemQualifier).ShouldCreateFilesystem(storage.FilesystemParams{}) || !p.(storage.FilesystemDeletionGuard).ShouldDestroyFilesystem("a") ||
		s.(storage.NewVolumes).IsNewVolume("a") || s.(storage.VolumeRemarker).VolumeRemark("a") != "" || p.(storage.PoolSources).SourcesByPool() {
		t.Error("a capability that the source lacks has an effect")
	}
}

// isCapability reports whether the name is that of an interface, not of a value that is asserted.
func isCapability(name string) bool {
	return !strings.HasSuffix(name, "Params") && !strings.HasSuffix(name, "Info") && !strings.HasSuffix(name, "Attachment")
}

// Only the providers of the environment's volumes are guarded.
func TestOtherProvidersAreNotGuarded(t *testing.T) {
	w := newWorld(t)
	for _, options := range []providerfake.Options{
		{Scope: storage.ScopeMachine},
		{Unsupported: []storage.StorageKind{storage.StorageKindBlock}},
	} {
		p := providerfake.New(options)
		if w.guard(p) != storage.Provider(p) {
			t.Errorf("a provider with %+v is guarded", options)
		}
	}
}
