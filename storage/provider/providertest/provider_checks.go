package providertest

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

func checkSupports(t testing.TB, config Config) {
	p := config.Provider
	supported := 0
	for _, k := range kinds() {
		_, err := k.open(p, config.SourceConfig, config.Patience)
		switch {
		case p.Supports(k.kind):
			supported++
			if err != nil {
				t.Errorf("%s storage is supported, but opening a source of it failed: %v", k.kind, err)
			}
		case err == nil:
			t.Errorf("%s storage is not supported, but opening a source of it succeeded", k.kind)
		case !errors.Is(err, errors.NotSupported):
			t.Errorf("opening a source of %s storage, which is not supported: got %v, want a \"not supported\" error", k.kind, err)
		}
	}
	if supported == 0 {
		t.Errorf("neither block nor filesystem storage is supported")
	}
	if storage.MountsVolumes(p, config.SourceConfig.Attrs()) && (!p.Supports(storage.StorageKindBlock) || p.Supports(storage.StorageKindFilesystem)) {
		t.Errorf("volumes are filesystems: block storage must be supported, and filesystem storage must not")
	}
	if p.Supports(storage.StorageKindUnknown) {
		t.Errorf("%s storage is supported", storage.StorageKindUnknown)
	}
	if scope := p.Scope(); scope != storage.ScopeEnviron && scope != storage.ScopeMachine {
		t.Errorf("the scope is %d, want ScopeEnviron or ScopeMachine", scope)
	}
}

func checkAnswersStayTheSame(t testing.TB, config Config) {
	type answers struct {
		scope                                  storage.Scope
		dynamic, releasable, block, filesystem bool
		pools                                  string
	}
	ask := func(p storage.Provider) answers {
		a := answers{
			scope: p.Scope(), dynamic: p.Dynamic(), releasable: p.Releasable(),
			block: p.Supports(storage.StorageKindBlock), filesystem: p.Supports(storage.StorageKindFilesystem),
		}
		for _, pool := range p.DefaultPools() {
			a.pools += fmt.Sprintf("%s of %s with %v; ", pool.Name(), pool.Provider(), pool.Attrs())
		}
		return a
	}
	want := ask(config.Provider)
	got := make([]answers, 4)
	var askers sync.WaitGroup
	for i := range got {
		askers.Go(func() {
			for _, k := range kinds() {
				// Another rule checks that unsupported kinds are refused.
				_, _ = k.open(config.Provider, config.SourceConfig, config.Patience)
			}
			got[i] = ask(config.Provider)
		})
	}
	askers.Wait()
	for _, a := range append(got, ask(config.Restart())) {
		if a != want {
			t.Errorf("the results changed from %+v to %+v", want, a)
		}
	}
}

func checkDefaultPools(t testing.TB, config Config) {
	seen := make(map[string]bool)
	for _, pool := range config.Provider.DefaultPools() {
		name := pool.Name()
		if !storage.IsValidPoolName(name) {
			t.Errorf("default pool %q: the name is invalid", name)
		}
		if seen[name] {
			t.Errorf("default pool %q: two default pools have this name", name)
		}
		seen[name] = true
		if want := config.SourceConfig.Provider(); pool.Provider() != want {
			t.Errorf("default pool %q: it belongs to provider %q, not %q", name, pool.Provider(), want)
		}
		if err := config.Provider.ValidateConfig(pool); err != nil {
			t.Errorf("default pool %q: %v", name, err)
		}
	}
}

func checkSettings(t testing.TB, config Config) {
	before := config.SourceConfig.Attrs()
	if err := config.Provider.ValidateConfig(config.SourceConfig); err != nil {
		t.Errorf("Config.SourceConfig, for which sources are opened, is refused: %v", err)
	}
	if after := config.SourceConfig.Attrs(); !reflect.DeepEqual(before, after) {
		t.Errorf("validating changed the settings from %v to %v", before, after)
	}
	for name, value := range config.InvalidAttrs {
		attrs := storage.Attrs{}
		for n, v := range before {
			attrs[n] = v
		}
		attrs[name] = value
		pool, err := storage.NewConfig(config.SourceConfig.Name(), config.SourceConfig.Provider(), attrs)
		if err != nil {
			t.Fatal(err)
		}
		if err := config.Provider.ValidateConfig(pool); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), name) {
			t.Errorf("a pool with %s = %v: got %v, want a \"not valid\" error that names the attribute", name, value, err)
		}
		for _, k := range kinds() {
			if !config.Provider.Supports(k.kind) {
				continue
			}
			if _, err := k.open(config.Provider, pool, config.Patience); !errors.Is(err, errors.NotValid) {
				t.Errorf("opening a source of %ss for a pool with %s = %v: got %v, want a \"not valid\" error", k.noun, name, value, err)
			}
		}
	}
}

func checkKubernetes(t testing.TB, config Config) {
	for _, attributes := range []map[string]any{
		nil,
		{"providertest-has-no-such-attribute": "value"},
		{storage.K8sStorageMedium: 1},
	} {
		if err := config.Provider.ValidateForK8s(attributes); err != nil && !errors.Is(err, errors.NotValid) {
			t.Errorf("attributes %v: got %v, want nil or a \"not valid\" error", attributes, err)
		}
	}
}
