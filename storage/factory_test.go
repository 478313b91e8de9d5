package storage_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
)

// A program opens the providers that its configuration names.
func ExampleFactoryRegistry() {
	var factories storage.FactoryRegistry
	err := factories.Register("san", func(config io.Reader, environ storage.ProviderEnviron) (storage.Provider, error) {
		var settings struct{ Endpoint string }
		if err := json.NewDecoder(config).Decode(&settings); err != nil {
			return nil, errors.NewNotValid(err, "configuration")
		}
		fmt.Println("connecting", environ.Config.Name(), "to", settings.Endpoint)
		return fakeProvider{name: "san"}, nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	environ, err := config.New(map[string]any{
		"name": "office", "type": "manual", "uuid": "0b8a4a3c-5d2b-4f0e-9c57-0c1d2e3f4a5b",
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	san, err := factories.Open("san", strings.NewReader(`{"endpoint": "10.0.0.7"}`), storage.ProviderEnviron{
		Scope: storage.ScopeEnviron, Config: environ,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	registry := storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{"san": san}}
	types, err := registry.StorageProviderTypes()
	fmt.Println(types, err)

	_, err = factories.Open("nas", nil, storage.ProviderEnviron{})
	fmt.Println(err, errors.Is(err, errors.NotFound))
	// Output:
	// connecting office to 10.0.0.7
	// [san] <nil>
	// factory of provider "nas" not found: registered: san true
}

func factoryOf(name string) storage.ProviderFactory {
	return func(io.Reader, storage.ProviderEnviron) (storage.Provider, error) {
		return fakeProvider{name: name}, nil
	}
}

// Behaviour O10.
func TestFactoryRegistryRegister(t *testing.T) {
	var r storage.FactoryRegistry
	if names := r.Names(); len(names) != 0 || r.IsRegistered("a") {
		t.Errorf("the zero value has %q", names)
	}
	for _, test := range []struct {
		name    string
		factory storage.ProviderFactory
		kind    error
		want    string
	}{
		{"tape", factoryOf("tape"), nil, ""},
		{"disk-2", factoryOf("first"), nil, ""},
		{"disk-2", factoryOf("second"), errors.AlreadyExists, `factory of provider "disk-2" already exists`},
		{"nil", nil, errors.NotValid, `nil factory of provider "nil" not valid`},
		{"", factoryOf("x"), errors.NotValid, `provider name "" is not valid: a letter, then letters, digits and hyphens, with single dots and slashes between them`},
		{"a,b\n", factoryOf("x"), errors.NotValid, `provider name "a,b\n" is not valid: a letter, then letters, digits and hyphens, with single dots and slashes between them`},
		{"../a", factoryOf("x"), errors.NotValid, `provider name "../a" is not valid: a letter, then letters, digits and hyphens, with single dots and slashes between them`},
		{"openebs.io/jiva", factoryOf("jiva"), nil, ""},
		{"openebs-io/jiva", factoryOf("x"), errors.NotValid, `providers "openebs.io/jiva" and "openebs-io/jiva" would both have the default pool openebs-io-jiva`},
	} {
		err := r.Register(test.name, test.factory)
		switch {
		case test.kind == nil && err != nil:
			t.Errorf("%q: %v", test.name, err)
		case test.kind != nil && (!errors.Is(err, test.kind) || err.Error() != test.want):
			t.Errorf("%q: got %v, want %s", test.name, err, test.want)
		}
	}
	if got := r.Names(); !slices.Equal(got, []string{"disk-2", "openebs.io/jiva", "tape"}) {
		t.Errorf("registered: %q", got)
	}
	if !r.IsRegistered("tape") || r.IsRegistered("nil") {
		t.Error("IsRegistered and Names disagree")
	}
	if p, err := r.Open("disk-2", nil, storage.ProviderEnviron{}); err != nil || p.(fakeProvider).name != "first" {
		t.Errorf("the second registration replaced the first: %v, %v", p, err)
	}
}

// Behaviour O10.
func TestFactoryRegistryOpenPassesArguments(t *testing.T) {
	environ := storage.ProviderEnviron{Scope: storage.ScopeMachine, StorageDir: "/srv/storage"}
	var r storage.FactoryRegistry
	var read []string
	err := r.Register("it", func(config io.Reader, got storage.ProviderEnviron) (storage.Provider, error) {
		text, err := io.ReadAll(config)
		read = append(read, string(text))
		if got != environ {
			t.Errorf("opened with %+v, want %+v", got, environ)
		}
		return fakeProvider{}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, config := range []io.Reader{strings.NewReader("some"), nil} {
		if _, err := r.Open("it", config, environ); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(read, []string{"some", ""}) {
		t.Errorf("the factory read the configurations %q", read)
	}
}

// A plugin is opened with the configuration in a file, and tells its name.
// Behaviour O10.
func TestFactoryRegistryOpenFile(t *testing.T) {
	supplier := &orchestrators{}
	var r storage.FactoryRegistry
	err := r.Register("openebs.io/jiva", func(config io.Reader, environ storage.ProviderEnviron) (storage.Provider, error) {
		text, err := io.ReadAll(config)
		if environ.Orchestrator != supplier {
			t.Errorf("opened with the orchestrator %v", environ.Orchestrator)
		}
		if string(text) == "bad" {
			return nil, errors.NotValidf("configuration")
		}
		return fakeProvider{name: string(text)}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "jiva.conf")
	for text, want := range map[string]string{"replicas: 3": "", "bad": `opening provider "openebs.io/jiva" with ` + path + `: configuration not valid`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := r.OpenFile("openebs.io/jiva", path, storage.ProviderEnviron{Orchestrator: supplier})
		switch {
		case want != "":
			if err == nil || err.Error() != want || !errors.Is(err, errors.NotValid) {
				t.Errorf("%q: %v, want %s", text, err, want)
			}
		case err != nil:
			t.Error(err)
		case p.Name() != "openebs.io/jiva" || p.Provider.(fakeProvider).name != text:
			t.Errorf("opened %q, %+v", p.Name(), p.Provider)
		}
	}
	if _, err := r.OpenFile("openebs.io/jiva", path+".missing", storage.ProviderEnviron{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is missing: %v", err)
	}
	if _, err := r.OpenFile("other", "", storage.ProviderEnviron{}); !errors.Is(err, errors.NotFound) {
		t.Errorf("a name that is not registered: %v", err)
	}
}

type orchestrators struct{ storage.OrchestratorSupplier }

// Behaviour O10.
func TestFactoryRegistryOpenErrors(t *testing.T) {
	for _, test := range []struct {
		about   string
		factory storage.ProviderFactory
		kind    error
		want    string
	}{
		{"nothing registered", nil, errors.NotFound, `factory of provider "it" not found: none is registered`},
		{"an error", func(io.Reader, storage.ProviderEnviron) (storage.Provider, error) {
			return fakeProvider{}, errors.NotValidf("key endpoint")
		}, errors.NotValid, `opening provider "it": key endpoint not valid`},
		{"nothing", func(io.Reader, storage.ProviderEnviron) (storage.Provider, error) {
			return nil, nil
		}, nil, `opening provider "it": the factory returned no provider`},
		{"a panic", func(_ io.Reader, environ storage.ProviderEnviron) (storage.Provider, error) {
			return fakeProvider{name: environ.Config.Name()}, nil
		}, nil, `opening provider "it": the factory panicked: runtime error: invalid memory address or nil pointer dereference`},
	} {
		var r storage.FactoryRegistry
		if test.factory != nil {
			if err := r.Register("it", test.factory); err != nil {
				t.Fatal(err)
			}
		}
		p, err := r.Open("it", nil, storage.ProviderEnviron{})
		if p != nil || err == nil || err.Error() != test.want || test.kind != nil && !errors.Is(err, test.kind) {
			t.Errorf("%s: got %v, %v; want %s", test.about, p, err, test.want)
		}
	}
}

// A factory may use the registry that holds it, while other goroutines use it too.
// Behaviour O10.
func TestFactoryRegistryConcurrentUse(t *testing.T) {
	var r storage.FactoryRegistry
	err := r.Register("outer", func(config io.Reader, environ storage.ProviderEnviron) (storage.Provider, error) {
		return r.Open("inner", config, environ)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Register("inner", factoryOf("inner")); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			if err := r.Register(fmt.Sprintf("p%d", n), factoryOf("p")); err != nil {
				t.Error(err)
			}
			if p, err := r.Open("outer", nil, storage.ProviderEnviron{}); err != nil || p.(fakeProvider).name != "inner" {
				t.Errorf("opened %v, %v", p, err)
			}
			_, _ = r.Names(), r.IsRegistered("p0")
		})
	}
	all.Wait()
	if n := len(r.Names()); n != 10 {
		t.Errorf("%d factories, want 10", n)
	}
}
